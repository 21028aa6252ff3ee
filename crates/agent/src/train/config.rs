//! The config of a run: together with the seed it determines everything. The defaults are the paper's.

use std::collections::BTreeMap;

use engine::MOST_RANGED;
use envs::{EnvError, Game};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{AtariConfig, InitConfig, Phase};
use crate::{AgentConfig, ConfigError, ReturnScale, Returns, Sampling};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TrainConfig {
    /// Name of the game; `iris envs` lists all games.
    pub env: String,
    /// Seed of all random numbers of the run.
    pub seed: u64,
    /// Number of epochs; each plays, then updates the networks (see `collection` and the three schedules).
    pub epochs: usize,
    pub agent: AgentConfig,
    pub init: InitConfig,
    pub collection: CollectionConfig,
    pub tokenizer: TokenizerTraining,
    pub world_model: WorldModelTraining,
    pub actor_critic: ActorCriticTraining,
    pub evaluation: EvaluationConfig,
    pub replay: ReplayConfig,
    pub atari: AtariConfig,
}

impl Default for TrainConfig {
    fn default() -> TrainConfig {
        TrainConfig {
            env: "arcade/catch".into(),
            seed: 0,
            epochs: 600,
            agent: AgentConfig::default(),
            init: InitConfig::default(),
            collection: CollectionConfig::default(),
            tokenizer: TokenizerTraining::default(),
            world_model: WorldModelTraining::default(),
            actor_critic: ActorCriticTraining::default(),
            evaluation: EvaluationConfig::default(),
            replay: ReplayConfig::default(),
            atari: AtariConfig::default(),
        }
    }
}

impl TrainConfig {
    /// What every key means, by its dotted name: the doc comments of the structs.
    pub fn key_docs() -> BTreeMap<String, String> {
        let settings = schemars::generate::SchemaSettings::default().with(|s| s.inline_subschemas = true);
        let schema = settings.into_generator().into_root_schema_for::<TrainConfig>();
        let mut docs = BTreeMap::new();
        collect_docs(schema.as_value(), "", &mut docs);
        docs
    }
}

// More than any machine can take.
const LARGEST_BATCH: usize = 65_536;
const MOST_EPISODES: usize = 1_000_000;
const MOST_ENVS: usize = 1024;
/// Updates of one epoch: at a thousand a second they take hours. More epochs train longer.
const MOST_UPDATES: usize = 10_000_000;
/// Epochs, and steps within one, are numbered with 32 bits in the keys of random numbers.
const MOST_NUMBERED: usize = u32::MAX as usize;
/// Tokens and actions that the world model remembers.
const MOST_POSITIONS: usize = 65_536;

impl TrainConfig {
    /// When and how much each network learns.
    pub fn schedules(&self) -> [(Phase, &Schedule); 3] {
        [
            (Phase::Tokenizer, &self.tokenizer.schedule),
            (Phase::WorldModel, &self.world_model.schedule),
            (Phase::ActorCritic, &self.actor_critic.schedule),
        ]
    }

    /// The game of the run, or another one, as the run plays it.
    pub fn game(&self, other: Option<&str>) -> Result<Game, EnvError> {
        let [training, evaluation] = self.atari.protocols();
        Ok(Game::find(other.unwrap_or(&self.env))?.with_protocols(training, evaluation))
    }

    /// Refuses values that a run cannot have.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.agent.validate().map_err(|e| e.within("agent"))?;
        self.check_finite()?;
        self.init.validate().map_err(|e| e.within("init"))?;
        self.atari.validate().map_err(|e| e.within("atari"))?;
        for (phase, schedule) in self.schedules() {
            schedule.validate().map_err(|e| e.within("schedule").within(phase.name()))?;
        }
        let (perceptual, size) = (&self.tokenizer.perceptual, self.agent.tokenizer.frame_size);
        if perceptual != "none" && !size.is_multiple_of(16) {
            let rule = format!(
                "which needs an agent.tokenizer.frame_size that 16 divides, not {size}; \"none\" does not"
            );
            return Err(ConfigError::new("tokenizer.perceptual", format!("{perceptual:?}"), rule));
        }
        let (steps, tokens) = (self.agent.world_model.steps, self.agent.tokenizer.tokens());
        if tokens >= MOST_POSITIONS {
            let rule = format!(
                "which makes {tokens} tokens of a frame, which are too many: a smaller one or more resolutions make fewer"
            );
            return Err(ConfigError::new("agent.tokenizer.frame_size", size, rule));
        }
        for (key, value, range) in [
            ("epochs", self.epochs, 1..=MOST_NUMBERED),
            ("collection.steps", self.collection.steps, 1..=MOST_NUMBERED),
            ("collection.envs", self.collection.envs, 1..=MOST_ENVS),
            ("collection.epochs", self.collection.epochs, 1..=usize::MAX),
            ("evaluation.episodes", self.evaluation.episodes, 1..=MOST_EPISODES),
            ("evaluation.final_episodes", self.evaluation.final_episodes, 0..=MOST_EPISODES),
            ("actor_critic.burn_in", self.actor_critic.burn_in, 0..=LARGEST_BATCH),
            ("agent.world_model.steps", steps, 1..=MOST_POSITIONS / (tokens + 1)),
        ] {
            ConfigError::unless_within(key, value, range)?;
        }
        let (envs, collected) = (self.collection.envs, self.collection.steps);
        if !collected.is_multiple_of(envs) {
            let rule = format!("which does not divide collection.steps, which is {collected}");
            return Err(ConfigError::new("collection.envs", envs, rule));
        }
        if envs > 1 && !self.replay.from.is_empty() {
            let rule = "but must be 1 where the replay begins with given episodes (replay.from)";
            return Err(ConfigError::new("collection.envs", envs, rule));
        }
        for (key, value) in [
            ("collection.temperature", self.collection.temperature),
            ("evaluation.temperature", self.evaluation.temperature),
            ("tokenizer.squared_weight", self.tokenizer.squared_weight),
            ("tokenizer.moving_weight", self.tokenizer.moving_weight),
            ("world_model.weight_decay", self.world_model.weight_decay),
            ("agent.world_model.init_std", self.agent.world_model.init_std),
        ] {
            if value < 0.0 {
                return Err(ConfigError::new(key, value, "but must be at least 0"));
            }
        }
        for (key, value) in [
            ("collection.epsilon", self.collection.epsilon),
            ("actor_critic.returns.gamma", self.actor_critic.returns.gamma),
            ("actor_critic.returns.lambda", self.actor_critic.returns.lambda),
        ] {
            if !(0.0..=1.0).contains(&value) {
                return Err(ConfigError::new(key, value, "but must be from 0 to 1"));
            }
        }
        let dropout = self.tokenizer.perceptual_dropout;
        if !(0.0..1.0).contains(&dropout) {
            return Err(ConfigError::new(
                "tokenizer.perceptual_dropout",
                dropout,
                "but must be from 0 to below 1",
            ));
        }
        let ranged =
            self.actor_critic.schedule.batch.saturating_mul(self.actor_critic.horizon.saturating_sub(1));
        if self.actor_critic.returns.scale == ReturnScale::Percentiles && ranged > MOST_RANGED {
            let rule = format!(
                "which takes percentiles of at most {MOST_RANGED} returns, but actor_critic.schedule.batch x (actor_critic.horizon - 1) is {ranged}: use smaller batches and actor_critic.schedule.accumulate"
            );
            return Err(ConfigError::new("actor_critic.returns.scale", "\"percentiles\"", rule));
        }
        let horizon = self.actor_critic.horizon;
        let context = self.agent.world_model.context;
        if context > self.actor_critic.burn_in {
            let rule = format!("but must be at most actor_critic.burn_in, {}", self.actor_critic.burn_in);
            return Err(ConfigError::new("agent.world_model.context", context, rule));
        }
        if !(2..=steps.saturating_sub(context)).contains(&horizon) {
            let less = if context > 0 { " less agent.world_model.context" } else { "" };
            let most = steps.saturating_sub(context);
            let rule = format!("but must be from 2 to agent.world_model.steps{less}, which is {most}");
            return Err(ConfigError::new("actor_critic.horizon", horizon, rule));
        }
        Ok(())
    }

    /// TOML knows `nan` and `inf`; nothing here does.
    fn check_finite(&self) -> Result<(), ConfigError> {
        // JSON has no such numbers: they become null, and no key is null otherwise.
        fn null(value: &serde_json::Value, path: &str) -> Option<String> {
            match value {
                serde_json::Value::Null => Some(path.into()),
                serde_json::Value::Object(keys) => keys.iter().find_map(|(key, value)| {
                    null(value, &if path.is_empty() { key.clone() } else { format!("{path}.{key}") })
                }),
                _ => None,
            }
        }
        let json = serde_json::to_value(self).unwrap_or_default();
        match null(&json, "") {
            Some(key) => Err(ConfigError::new(&key, "NaN or infinite", "but must be a number")),
            None => Ok(()),
        }
    }
}

fn collect_docs(schema: &serde_json::Value, path: &str, docs: &mut BTreeMap<String, String>) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let key = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        match property["properties"].is_object() {
            true => collect_docs(property, &key, docs),
            false => {
                // Lines of a comment are one sentence after the other.
                let doc = property["description"].as_str().unwrap_or_default().replace('\n', " ");
                docs.insert(key, doc);
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CollectionConfig {
    /// Steps collected per epoch, over all games.
    pub steps: usize,
    /// Games played side by side, each with its share of the steps.
    pub envs: usize,
    /// Number of epochs that play; later ones only learn.
    pub epochs: usize,
    /// First epochs, in which actions are uniformly random.
    pub random_epochs: usize,
    /// Probability of a random action afterwards.
    pub epsilon: f32,
    /// Sampling temperature of the policy while it collects.
    pub temperature: f32,
}

impl Default for CollectionConfig {
    fn default() -> CollectionConfig {
        CollectionConfig {
            steps: 200,
            envs: 1,
            epochs: 500,
            random_epochs: 0,
            epsilon: 0.01,
            temperature: 1.0,
        }
    }
}

/// When and how much a network learns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Schedule {
    /// Epochs before this network starts to learn.
    pub start_after: usize,
    /// Updates in its first epoch of learning; 0 for as many as in the others.
    pub first_updates: usize,
    /// Updates per epoch.
    pub updates: usize,
    /// Batch size: frames (tokenizer), sequences (world model) or dreams (actor-critic) per update.
    pub batch: usize,
    /// Batches per update: their gradients are averaged before clipping. More of them have the effect of a larger batch without its memory.
    pub accumulate: usize,
    /// Learning rate of Adam.
    pub learning_rate: f32,
    /// Learning rate of the last epoch, reached by linear decay; 0 disables the decay.
    pub final_learning_rate: f32,
    /// Gradient clipping: a gradient with a larger norm is scaled down to it.
    pub max_grad_norm: f32,
}

impl Default for Schedule {
    fn default() -> Schedule {
        Schedule {
            start_after: 0,
            first_updates: 0,
            updates: 200,
            batch: 64,
            accumulate: 1,
            learning_rate: 1e-4,
            final_learning_rate: 0.0,
            max_grad_norm: 10.0,
        }
    }
}

impl Schedule {
    fn validate(&self) -> Result<(), ConfigError> {
        ConfigError::unless_within("batch", self.batch, 1..=LARGEST_BATCH)?;
        ConfigError::unless_within("accumulate", self.accumulate, 1..=LARGEST_BATCH)?;
        ConfigError::unless_within("updates", self.updates, 0..=MOST_UPDATES)?;
        ConfigError::unless_within("first_updates", self.first_updates, 0..=MOST_UPDATES)?;
        for (key, value) in [("learning_rate", self.learning_rate), ("max_grad_norm", self.max_grad_norm)] {
            if value <= 0.0 {
                return Err(ConfigError::new(key, value, "but must be above 0"));
            }
        }
        let last = self.final_learning_rate;
        match (0.0..=1.0).contains(&last) {
            true => Ok(()),
            false => Err(ConfigError::new("final_learning_rate", last, "but must be from 0 to 1")),
        }
    }

    /// Adam's step size in epoch number `epoch` of `epochs`, from 0 on.
    pub fn learning_rate_in(&self, epoch: usize, epochs: usize) -> f32 {
        match self.final_learning_rate {
            0.0 => self.learning_rate,
            last => {
                let share = epoch as f32 / epochs.saturating_sub(1).max(1) as f32;
                self.learning_rate + (last - self.learning_rate) * share.min(1.0)
            }
        }
    }

    /// Updates in epoch number `epoch`, from 0 on.
    pub fn updates_in(&self, epoch: usize) -> usize {
        match epoch {
            e if e < self.start_after => 0,
            e if e == self.start_after && self.first_updates > 0 => self.first_updates,
            _ => self.updates,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TokenizerTraining {
    pub schedule: Schedule,
    /// Weight of the squared reconstruction error, which is added to the absolute error.
    pub squared_weight: f32,
    /// Weight of another squared error, in which each number of a frame counts as much as it differs from its mean over the batch.
    pub moving_weight: f32,
    /// Network of the perceptual loss: "random" for a VGG16 with fixed random weights, "none" for no such loss, or the folder of the
    /// pretrained one, which `iris import-perceptual` made, or `iris import` from a checkpoint of the reference release.
    pub perceptual: String,
    /// Dropout on the features of the perceptual network; the reference release uses 0.5.
    pub perceptual_dropout: f32,
}

impl Default for TokenizerTraining {
    fn default() -> TokenizerTraining {
        let schedule = Schedule { start_after: 5, batch: 256, ..Schedule::default() };
        TokenizerTraining {
            schedule,
            squared_weight: 0.0,
            moving_weight: 0.0,
            perceptual: "random".into(),
            perceptual_dropout: 0.0,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WorldModelTraining {
    pub schedule: Schedule,
    /// Weight decay of the weights of linear layers; biases, norms and embeddings have none.
    pub weight_decay: f32,
    /// Whether the world model learns a time limit as an end of the episode, as in the paper. With false, only the end of a game counts as one:
    /// dreams go on beyond the time limit, and returns are bootstrapped there.
    pub truncation_ends_episode: bool,
}

impl Default for WorldModelTraining {
    fn default() -> WorldModelTraining {
        WorldModelTraining {
            schedule: Schedule { start_after: 25, ..Schedule::default() },
            weight_decay: 0.01,
            truncation_ends_episode: true,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ActorCriticTraining {
    pub schedule: Schedule,
    /// Imagined steps per dream.
    pub horizon: usize,
    /// Frames before the dream that warm up the policy's LSTM.
    pub burn_in: usize,
    pub returns: Returns,
}

impl Default for ActorCriticTraining {
    fn default() -> ActorCriticTraining {
        ActorCriticTraining {
            schedule: Schedule { start_after: 50, ..Schedule::default() },
            horizon: 20,
            burn_in: 20,
            returns: Returns::default(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EvaluationConfig {
    /// Epochs between evaluations; 0 evaluates only after the last epoch.
    pub every: usize,
    /// Games per evaluation.
    pub episodes: usize,
    /// Games in the evaluation after the last epoch; 0 treats the last epoch like the others.
    pub final_episodes: usize,
    /// Sampling temperature of the policy in evaluations.
    pub temperature: f32,
    /// Whether evaluations also measure the losses of tokenizer and world model, on the first `episodes` of their games and without dropout.
    pub losses: bool,
}

impl Default for EvaluationConfig {
    fn default() -> EvaluationConfig {
        EvaluationConfig { every: 5, episodes: 16, final_episodes: 100, temperature: 0.5, losses: false }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ReplayConfig {
    /// Capacity in steps; the oldest episodes are removed first.
    pub max_steps: usize,
    /// Capacity in bytes, counted as if frames were not compressed; 0 disables the limit. Files are deleted later, in shards of 8192 steps.
    pub max_bytes: u64,
    /// Run, folder of .npz files or .npz file whose episodes the replay begins with; empty to begin with nothing. Not needed to resume.
    pub from: String,
    /// What batches are drawn from: "episodes" for an episode and then one of its steps, as in the paper, "steps" for a step of all, so that long episodes count
    /// by their length, or "recent" for a step of the newest quarter in seven of ten cases and of all otherwise.
    pub sampling: Sampling,
}

impl Default for ReplayConfig {
    fn default() -> ReplayConfig {
        ReplayConfig { max_steps: 100_000, max_bytes: 0, from: String::new(), sampling: Sampling::Episodes }
    }
}

impl EvaluationConfig {
    /// Games to evaluate after `finished` epochs of `epochs`; 0 for no evaluation.
    pub fn episodes_after(&self, finished: usize, epochs: usize) -> usize {
        match finished == epochs && self.final_episodes > 0 {
            true => self.final_episodes,
            false if finished.is_multiple_of(self.every) => self.episodes,
            false => 0,
        }
    }
}

impl ReplayConfig {
    /// Steps that may be kept when each takes so many bytes.
    pub fn steps(&self, step_bytes: usize) -> usize {
        match self.max_bytes {
            0 => self.max_steps,
            bytes => self.max_steps.min((bytes / step_bytes as u64) as usize),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_learning_rate_comes_down_in_equal_steps() {
        let constant = Schedule { learning_rate: 0.5, ..Schedule::default() };
        assert_eq!([0, 9].map(|epoch| constant.learning_rate_in(epoch, 10)), [0.5, 0.5]);
        let falling = Schedule { final_learning_rate: 0.25, ..constant };
        assert_eq!([0, 1, 2].map(|epoch| falling.learning_rate_in(epoch, 3)), [0.5, 0.375, 0.25]);
        assert_eq!(falling.learning_rate_in(0, 1), 0.5);
    }

    #[test]
    fn the_last_evaluation_can_be_left_out() {
        let games = |every, final_episodes, finished| {
            let config =
                EvaluationConfig { every, episodes: 3, final_episodes, temperature: 1.0, losses: false };
            config.episodes_after(finished, 10)
        };
        assert_eq!([1, 5, 10].map(|finished| games(5, 7, finished)), [0, 3, 7]);
        assert_eq!([1, 5, 10].map(|finished| games(5, 0, finished)), [0, 3, 3]);
        assert_eq!([1, 5, 10].map(|finished| games(0, 0, finished)), [0, 0, 0]);
    }

    #[test]
    fn the_replay_is_capped_by_steps_or_bytes() {
        let cap =
            |max_bytes| ReplayConfig { max_steps: 1000, max_bytes, ..ReplayConfig::default() }.steps(100);
        assert_eq!([0, 50_000, 200_000].map(cap), [1000, 500, 1000]);
    }

    #[test]
    fn every_key_is_documented() {
        let docs = TrainConfig::key_docs();
        let undocumented: Vec<_> =
            docs.iter().filter(|(_, doc)| doc.is_empty()).map(|(key, _)| key).collect();
        assert!(undocumented.is_empty(), "{undocumented:?}");
        assert!(docs.len() > 50 && docs.contains_key("actor_critic.returns.gamma"), "{}", docs.len());
    }
}
