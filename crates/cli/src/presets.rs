//! Presets: configs inside the binary, by name.

use std::path::Path;

use agent::train::TrainConfig;
use anyhow::{Result, bail};

use crate::args::{ConfigArgs, DeviceArgs, PrecisionName};
use crate::config::suggestion;
use crate::output::program;

const PRESETS: [(&str, &str); 9] = [
    (DEFAULT, include_str!("../presets/tiny-fast.toml")),
    ("tiny", include_str!("../presets/tiny.toml")),
    ("atari-small", include_str!("../presets/atari-small.toml")),
    ("atari-sprint", include_str!("../presets/atari-sprint.toml")),
    ("atari-100k", include_str!("../presets/atari-100k.toml")),
    (RELEASE, include_str!("../presets/atari-100k-release.toml")),
    ("atari-100k-64tokens", include_str!("../presets/atari-100k-64tokens.toml")),
    ("atari-fast", include_str!("../presets/atari-fast.toml")),
    ("atari-10m", include_str!("../presets/atari-10m.toml")),
];

/// The preset of runs that name none.
pub const DEFAULT: &str = "tiny-fast";

/// The preset that trains as the authors' release does.
const RELEASE: &str = "atari-100k-release";

/// The TOML of a preset.
pub fn find(preset: &str) -> Result<&'static str> {
    match PRESETS.iter().find(|(name, _)| *name == preset) {
        Some((_, text)) => Ok(text),
        None => {
            let names = PRESETS.map(|(name, _)| name);
            bail!(
                "no preset is called `{preset}`; there are {}{}",
                names.join(", "),
                suggestion(preset, names.into_iter())
            )
        }
    }
}

/// Refuses a run whose perceptual network is not there, and the release's settings without a pretrained one: its scores come with those weights.
pub fn check(args: &ConfigArgs, config: &TrainConfig) -> Result<()> {
    let perceptual = config.tokenizer.perceptual.as_str();
    let none = matches!(perceptual, "random" | "none");
    if Path::new(perceptual).is_dir() || none && args.preset != RELEASE {
        return Ok(());
    }
    let needs = match args.preset == RELEASE {
        true => format!("the preset {RELEASE} needs the pretrained perceptual network, but "),
        false => String::new(),
    };
    let what = if none { "is not a folder" } else { "is not a folder that exists" };
    bail!(
        "{needs}tokenizer.perceptual={perceptual} {what}. Make it with `{} import-perceptual vgg16-397923af.pth vgg.pth --out vgg16-lpips` (docs/training.md says where these files are), or name its folder with tokenizer.perceptual=FOLDER",
        program()
    )
}

/// What the release's settings advise about the device, from whichever preset or file they come.
pub fn remark(config: &TrainConfig, device: &DeviceArgs, is_gpu: bool) -> Option<String> {
    let release = config.tokenizer.perceptual_dropout > 0.0 && !config.actor_critic.returns.stop_at_end;
    let differs = release && is_gpu && device.precision == PrecisionName::Bf16;
    differs.then(|| "the release computes in f32; --precision f32 does so here, too".into())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use agent::{RewardModel, TokenizerConfig, WorldModelConfig};
    use toml::Value;

    use super::*;
    use crate::args::DeviceName;
    use crate::config::{combine, document};

    fn preset(name: &str, env: &str) -> TrainConfig {
        combine(name, None, &[format!("env={env}")]).unwrap()
    }

    /// Tables 2 to 6 of the paper's appendix.
    #[test]
    fn atari_100k_has_the_papers_hyper_parameters() {
        let config = preset("atari-100k", "Breakout");
        assert_eq!((config.env.as_str(), config.seed), ("atari/Breakout", 0));

        // Table 2, encoder and decoder: 64x64 pixels, 4 layers that halve them, 2 residual blocks each, 64 channels, attention at 8 and 16.
        let tokenizer = &config.agent.tokenizer;
        let TokenizerConfig { frame_size, channels, resolutions, residual_blocks, .. } = *tokenizer;
        assert_eq!((frame_size, resolutions - 1, residual_blocks, channels), (64, 4, 2, 64));
        assert_eq!((&tokenizer.attention_sizes[..], tokenizer.groups), (&[16, 8][..], 32));
        // Table 3, embedding: vocabulary, tokens per frame, dimension.
        assert_eq!((tokenizer.vocabulary, tokenizer.tokens(), tokenizer.embedding), (512, 16, 512));
        // Table 4, transformer: L, D, M, heads, weight decay, dropout of embeddings, attention and residuals.
        let world_model = &config.agent.world_model;
        let WorldModelConfig { steps, layers, heads, width, init_std, reward, .. } = *world_model;
        assert_eq!((steps, width, layers, heads), (20, 256, 10, 4));
        assert_eq!((config.world_model.weight_decay, world_model.dropout()), (0.01, [0.1; 3]));
        assert_eq!((init_std, reward), (0.02, RewardModel::Sign));
        // Section A.3: four convolutions and an LSTM of 512 units.
        let policy = &config.agent.actor_critic;
        assert_eq!((&policy.channels[..], policy.hidden), (&[32, 32, 64, 64][..], 512));
        assert_eq!((policy.dense, policy.skip), (0, false));

        // Table 5, training loop.
        let collection = &config.collection;
        assert_eq!((config.epochs, collection.epochs, collection.steps), (600, 500, 200));
        assert_eq!(collection.epochs * collection.steps, 100_000);
        assert_eq!((collection.epsilon, collection.temperature, collection.random_epochs), (0.01, 1.0, 0));
        let evaluation = &config.evaluation;
        assert_eq!((evaluation.temperature, evaluation.every), (0.5, 5));
        assert_eq!((evaluation.episodes, evaluation.final_episodes), (16, 100));
        let schedules = config.schedules().map(|(_, schedule)| schedule);
        assert_eq!(schedules.map(|schedule| schedule.start_after), [5, 25, 50]);
        assert_eq!(schedules.map(|schedule| schedule.batch), [256, 64, 64]);
        for schedule in schedules {
            assert_eq!((schedule.updates, schedule.first_updates, schedule.accumulate), (200, 0, 1));
            assert_eq!((schedule.learning_rate, schedule.final_learning_rate), (1e-4, 0.0));
            assert_eq!(schedule.max_grad_norm, 10.0);
        }
        let adam = engine::Adam::default();
        assert_eq!((adam.beta1, adam.beta2, adam.epsilon), (0.9, 0.999, 1e-8));
        assert_eq!((config.tokenizer.squared_weight, config.tokenizer.perceptual_dropout), (0.0, 0.0));

        // Table 6, reinforcement learning: H, gamma, lambda, eta.
        let returns = &config.actor_critic.returns;
        assert_eq!((config.actor_critic.horizon, config.actor_critic.burn_in), (20, 20));
        assert_eq!((returns.gamma, returns.lambda, returns.entropy_weight), (0.995, 0.95, 0.001));
        assert!(returns.stop_at_end && config.world_model.truncation_ends_episode);
    }

    #[test]
    fn the_releases_settings_advise_f32_on_a_gpu() {
        let device = |precision| DeviceArgs { device: DeviceName::Cuda, precision, threads: None };
        let advised = |name, precision, is_gpu| {
            remark(&preset(name, "arcade/catch"), &device(precision), is_gpu).is_some()
        };
        assert!(advised(RELEASE, PrecisionName::Bf16, true));
        assert!(!advised(RELEASE, PrecisionName::F32, true));
        assert!(!advised(RELEASE, PrecisionName::Bf16, false));
        assert!(!advised("atari-100k", PrecisionName::Bf16, true));
    }

    /// Appendix H: Freeway is collected at temperature 0.01, under each of its names.
    #[test]
    fn freeway_is_collected_at_a_low_temperature() {
        for (name, _) in PRESETS.iter().filter(|(name, _)| name.starts_with("atari-")) {
            for env in ["atari/Freeway", "Freeway", "FreewayNoFrameskip-v4", "ALE/Freeway-v5"] {
                assert_eq!(preset(name, env).collection.temperature, 0.01, "{name}, {env}");
            }
            for env in ["atari/Pong", "arcade/freeway"] {
                assert_eq!(preset(name, env).collection.temperature, 1.0, "{name}, {env}");
            }
            let own = ["env=Freeway", "collection.temperature=0.5"].map(String::from);
            assert_eq!(combine(name, None, &own).unwrap().collection.temperature, 0.5);
        }
    }

    /// Every key, with its value as TOML writes it.
    fn keys(config: &TrainConfig) -> BTreeMap<String, String> {
        fn walk(value: &Value, path: &str, keys: &mut BTreeMap<String, String>) {
            match value {
                Value::Table(table) => {
                    table.iter().for_each(|(key, value)| walk(value, &format!("{path}.{key}"), keys))
                }
                value => _ = keys.insert(path.trim_start_matches('.').into(), value.to_string()),
            }
        }
        let mut keys = BTreeMap::new();
        // As it is printed: f32 has fewer digits than TOML's floats.
        walk(&Value::Table(toml::to_string(config).unwrap().parse().unwrap()), "", &mut keys);
        keys
    }

    /// The keys of a preset whose values are not those of `atari-100k` with the same game.
    fn changed(name: &str, env: &str) -> Vec<String> {
        differing(name, "atari-100k", env)
    }

    /// The keys of a preset whose values are not those of another one with the same game.
    fn differing(name: &str, other: &str, env: &str) -> Vec<String> {
        let usual = keys(&preset(other, env));
        let own = keys(&preset(name, env));
        own.iter().filter(|(key, value)| usual[*key] != **value).map(|(k, v)| format!("{k}={v}")).collect()
    }

    #[test]
    fn the_other_presets_differ_in_these_keys() {
        assert_eq!(changed("atari-100k-64tokens", "Alien"), ["agent.tokenizer.resolutions=4"]);
        assert_eq!(preset("atari-100k-64tokens", "Alien").agent.tokenizer.tokens(), 64);
        assert_eq!(
            changed("atari-100k-release", "Alien"),
            [
                "actor_critic.returns.stop_at_end=false",
                "evaluation.losses=true",
                "tokenizer.perceptual=\"vgg16-lpips\"",
                "tokenizer.perceptual_dropout=0.5",
            ]
        );
        assert_eq!(
            changed("atari-10m", "Alien"),
            ["collection.epochs=1000", "collection.steps=10000", "epochs=1100", "replay.max_steps=1000000"]
        );
        let config = preset("atari-10m", "Alien");
        assert_eq!(config.collection.epochs * config.collection.steps, 10_000_000);
        assert_eq!(config.collection.steps, 50 * config.world_model.schedule.updates);
        assert_eq!(changed("atari-small", "Pong"), SMALL);
        assert_eq!(changed("atari-sprint", "Pong"), SPRINT);
        let config = preset("atari-sprint", "Boxing");
        assert_eq!(config.collection.epochs * config.collection.steps, 100_000);
        assert_eq!(changed("tiny", "arcade/catch"), TINY);
        assert_eq!(changed("atari-fast", "Boxing"), FAST);
        assert_eq!(
            differing("tiny-fast", "tiny", "arcade/catch"),
            [
                "actor_critic.horizon=7",
                "actor_critic.schedule.final_learning_rate=0.0002",
                "agent.actor_critic.channels=[32, 32]",
                "agent.actor_critic.previous_action=true",
                "agent.actor_critic.sees=\"codes\"",
                "agent.tokenizer.embedding=3",
                "agent.tokenizer.kind=\"fsq\"",
                "agent.tokenizer.resolutions=3",
                "agent.tokenizer.vocabulary=64",
                "agent.world_model.context=1",
                "agent.world_model.draws=\"in-order\"",
                "agent.world_model.kind=\"frame\"",
                "agent.world_model.patch=2",
                "epochs=14",
            ]
        );
    }

    const FAST: [&str; 49] = [
        "actor_critic.horizon=12",
        "actor_critic.returns.gamma=0.99",
        "actor_critic.returns.scale=\"percentiles\"",
        "actor_critic.schedule.batch=128",
        "actor_critic.schedule.learning_rate=0.0002",
        "actor_critic.schedule.max_grad_norm=3.0",
        "actor_critic.schedule.start_after=12",
        "actor_critic.schedule.updates=100",
        "agent.actor_critic.channels=[64, 64, 64]",
        "agent.actor_critic.dense=512",
        "agent.actor_critic.previous_action=true",
        "agent.actor_critic.sees=\"codes\"",
        "agent.tokenizer.attention_sizes=[]",
        "agent.tokenizer.channels=32",
        "agent.tokenizer.embedding=3",
        "agent.tokenizer.groups=8",
        "agent.tokenizer.kind=\"fsq\"",
        "agent.tokenizer.residual_blocks=0",
        "agent.tokenizer.resolutions=4",
        "agent.world_model.context=4",
        "agent.world_model.draws=\"in-order\"",
        "agent.world_model.heads=6",
        "agent.world_model.kind=\"frame\"",
        "agent.world_model.layers=6",
        "agent.world_model.patch=2",
        "agent.world_model.steps=16",
        "agent.world_model.width=384",
        "collection.envs=4",
        "collection.epochs=250",
        "collection.steps=400",
        "epochs=260",
        "evaluation.every=65",
        "replay.sampling=\"steps\"",
        "tokenizer.moving_weight=30.0",
        "tokenizer.perceptual=\"none\"",
        "tokenizer.schedule.batch=128",
        "tokenizer.schedule.final_learning_rate=0.00005",
        "tokenizer.schedule.first_updates=2000",
        "tokenizer.schedule.learning_rate=0.0003",
        "tokenizer.schedule.start_after=3",
        "tokenizer.schedule.updates=70",
        "tokenizer.squared_weight=10.0",
        "world_model.schedule.batch=32",
        "world_model.schedule.first_updates=1500",
        "world_model.schedule.learning_rate=0.0002",
        "world_model.schedule.max_grad_norm=3.0",
        "world_model.schedule.start_after=8",
        "world_model.schedule.updates=150",
        "world_model.weight_decay=0.05",
    ];

    const SMALL: [&str; 38] = [
        "actor_critic.burn_in=4",
        "actor_critic.horizon=10",
        "actor_critic.schedule.batch=16",
        "actor_critic.schedule.learning_rate=0.0005",
        "actor_critic.schedule.start_after=5",
        "actor_critic.schedule.updates=30",
        "agent.actor_critic.channels=[16, 16, 32, 32]",
        "agent.actor_critic.hidden=128",
        "agent.tokenizer.attention_sizes=[]",
        "agent.tokenizer.channels=16",
        "agent.tokenizer.embedding=64",
        "agent.tokenizer.groups=4",
        "agent.tokenizer.residual_blocks=1",
        "agent.tokenizer.vocabulary=128",
        "agent.world_model.attention_dropout=0.0",
        "agent.world_model.embedding_dropout=0.0",
        "agent.world_model.init_std=0.05",
        "agent.world_model.layers=3",
        "agent.world_model.residual_dropout=0.0",
        "agent.world_model.steps=10",
        "agent.world_model.width=128",
        "collection.random_epochs=5",
        "collection.steps=500",
        "epochs=10",
        "evaluation.episodes=2",
        "evaluation.final_episodes=4",
        "tokenizer.perceptual=\"none\"",
        "tokenizer.schedule.batch=32",
        "tokenizer.schedule.first_updates=4000",
        "tokenizer.schedule.learning_rate=0.001",
        "tokenizer.schedule.start_after=3",
        "tokenizer.schedule.updates=50",
        "tokenizer.squared_weight=1000.0",
        "world_model.schedule.batch=16",
        "world_model.schedule.first_updates=1500",
        "world_model.schedule.learning_rate=0.001",
        "world_model.schedule.start_after=4",
        "world_model.schedule.updates=100",
    ];

    const SPRINT: [&str; 31] = [
        "actor_critic.burn_in=8",
        "actor_critic.horizon=10",
        "actor_critic.returns.gamma=0.99",
        "actor_critic.returns.scale=\"percentiles\"",
        "actor_critic.schedule.first_updates=1000",
        "actor_critic.schedule.learning_rate=0.0002",
        "actor_critic.schedule.start_after=10",
        "actor_critic.schedule.updates=220",
        "agent.actor_critic.channels=[64, 64, 64]",
        "agent.actor_critic.dense=512",
        "agent.actor_critic.previous_action=true",
        "agent.actor_critic.sees=\"codes\"",
        "agent.world_model.steps=12",
        "collection.envs=8",
        "collection.epochs=100",
        "collection.steps=1000",
        "epochs=110",
        "evaluation.every=20",
        "replay.sampling=\"steps\"",
        "tokenizer.perceptual=\"none\"",
        "tokenizer.schedule.batch=128",
        "tokenizer.schedule.final_learning_rate=0.00005",
        "tokenizer.schedule.first_updates=1500",
        "tokenizer.schedule.learning_rate=0.0003",
        "tokenizer.schedule.start_after=2",
        "tokenizer.schedule.updates=125",
        "tokenizer.squared_weight=100.0",
        "world_model.schedule.first_updates=1500",
        "world_model.schedule.learning_rate=0.0002",
        "world_model.schedule.start_after=5",
        "world_model.schedule.updates=215",
    ];

    const TINY: [&str; 45] = [
        "actor_critic.burn_in=2",
        "actor_critic.horizon=8",
        "actor_critic.returns.entropy_weight=0.01",
        "actor_critic.returns.gamma=0.95",
        "actor_critic.schedule.batch=32",
        "actor_critic.schedule.learning_rate=0.001",
        "actor_critic.schedule.start_after=3",
        "actor_critic.schedule.updates=70",
        "agent.actor_critic.channels=[16, 32, 32]",
        "agent.actor_critic.dense=64",
        "agent.actor_critic.hidden=64",
        "agent.actor_critic.skip=true",
        "agent.tokenizer.attention_sizes=[]",
        "agent.tokenizer.channels=16",
        "agent.tokenizer.embedding=32",
        "agent.tokenizer.frame_size=32",
        "agent.tokenizer.groups=4",
        "agent.tokenizer.residual_blocks=0",
        "agent.tokenizer.resolutions=4",
        "agent.tokenizer.vocabulary=32",
        "agent.world_model.attention_dropout=0.0",
        "agent.world_model.embedding_dropout=0.0",
        "agent.world_model.init_std=0.1",
        "agent.world_model.layers=2",
        "agent.world_model.residual_dropout=0.0",
        "agent.world_model.steps=8",
        "agent.world_model.width=64",
        "collection.random_epochs=4",
        "collection.steps=400",
        "epochs=18",
        "evaluation.episodes=32",
        "evaluation.every=3",
        "evaluation.final_episodes=256",
        "tokenizer.perceptual=\"none\"",
        "tokenizer.schedule.batch=64",
        "tokenizer.schedule.first_updates=500",
        "tokenizer.schedule.learning_rate=0.001",
        "tokenizer.schedule.start_after=3",
        "tokenizer.schedule.updates=0",
        "tokenizer.squared_weight=50.0",
        "world_model.schedule.batch=16",
        "world_model.schedule.first_updates=800",
        "world_model.schedule.learning_rate=0.002",
        "world_model.schedule.start_after=3",
        "world_model.schedule.updates=100",
    ];

    /// The traces of Atari games hold for these numbers.
    #[test]
    fn the_printed_atari_protocol_is_the_papers() {
        for preset in PRESETS.map(|(name, _)| name) {
            let config = combine(preset, None, &["env=arcade/catch".into()]).unwrap();
            let text = document(&config).unwrap();
            let printed: Vec<&str> = text
                .lines()
                .skip_while(|line| *line != "[atari.training]")
                .filter(|line| !line.starts_with('#') && !line.is_empty())
                .collect();
            let (training, evaluation) = printed.split_at(7);
            let both = ["frame_skip = 4", "sticky = 0.0", "clip_rewards = false"];
            let expected = ["[atari.training]", "noops = 30", "life_loss_ends = true", "time_limit = 20000"];
            assert_eq!((&training[..4], &training[4..]), (&expected[..], &both[..]), "{preset}");
            let expected =
                ["[atari.evaluation]", "noops = 1", "life_loss_ends = false", "time_limit = 108000"];
            assert_eq!((&evaluation[..4], &evaluation[4..7]), (&expected[..], &both[..]), "{preset}");
        }
    }
}
