//! A session of play: the game, its reconstruction and a dream side by side, from the same frame with the same actions.

use std::rc::Rc;

use agent::{Action, Asked, Dream, PlayedGame, Player, episode_seed, evaluation_seed};
use engine::{Device, Key};
use envs::{Game, Purpose};
use serde::Deserialize;

use super::history::{
    By, DreamFacts, Expected, Facts, GameFacts, History, How, Image, Moment, Place, PolicyFacts,
};
use super::real::Real;
use crate::compute::{Loaded, refused};
use crate::problem::Problem;

/// Side of the frames of a game that is played without an agent and is not square.
const PLAIN_SIZE: usize = 64;
/// The paper's temperature of evaluation.
pub const TEMPERATURE: f32 = 0.5;

/// What a session begins with.
#[derive(Clone, Debug)]
pub enum Begin {
    /// The game that `iris eval` begins with for the seed.
    Evaluation,
    /// A game as it is played in training, from its beginning.
    Training,
    /// A recorded step.
    Recorded {
        /// RGB bytes of the frame, after those before it that warm the policy up.
        frames: Vec<u8>,
        /// What was done before the frame, the newest last.
        actions: Vec<usize>,
        /// The real game up to that frame, where it can be played again.
        played: Option<PlayedGame>,
    },
}

/// Whose frames the policy acts on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Eyes {
    #[default]
    Game,
    Dream,
}

/// How the next step is taken.
#[derive(Clone, Copy, Debug)]
pub struct Orders {
    /// What a person does; the policy acts if there is none.
    pub action: Option<usize>,
    pub eyes: Eyes,
    /// Of the policy.
    pub temperature: f32,
    /// The dream is shown reality after so many dreamt steps; 0 for never.
    pub horizon: usize,
}

pub struct Session {
    device: Device,
    agent: Option<Rc<Loaded>>,
    game: Game,
    seed: u64,
    begin: Begin,
    size: usize,
    names: Vec<String>,
    real: Option<Real>,
    player: Option<Player>,
    dream: Option<Dream>,
    history: History,
    /// Of the policy, when it next looks at the game.
    temperature: f32,
    /// The step that the page looks at.
    cursor: usize,
    /// The step that game, policy and dream are at; none after an error, which may have come in the middle of one.
    live: Option<usize>,
}

fn failed(error: engine::Error) -> Problem {
    Problem::internal(error)
}

impl Session {
    /// With an agent, or a game without a dream.
    pub fn new(
        device: &Device,
        agent: Option<Rc<Loaded>>,
        game: Game,
        seed: u64,
        begin: Begin,
    ) -> Result<Session, Problem> {
        let purpose = match begin {
            Begin::Evaluation => Purpose::Evaluate,
            Begin::Training | Begin::Recorded { .. } => Purpose::Train,
        };
        let size = match &agent {
            Some(agent) => agent.size(),
            // The game's own, which no resizing blurs.
            None => match (game.make)(purpose).map_err(refused)?.frame_size() {
                (height, width) if height == width => height,
                _ => PLAIN_SIZE,
            },
        };
        let mut real = Real::new(&game, purpose, size)?;
        let names = real.action_names();
        let alone = match &begin {
            // A game that does not lead to the recorded frame is another one than that was recorded.
            Begin::Recorded { frames, played: Some(played), .. } => {
                let again = real.begin(played.clone()).map(|()| real.frame());
                !again.is_ok_and(|frame| frames.ends_with(&frame.pixels))
            }
            begin => matches!(begin, Begin::Recorded { .. }),
        };
        let real = if alone { None } else { Some(Real::new(&game, purpose, size)?) };
        let player = match &agent {
            Some(agent) if real.is_some() => {
                Some(Player::with_thoughts(device, &agent.agent, 1).map_err(failed)?)
            }
            _ => None,
        };
        let snapshot_bytes = agent.as_ref().map_or(1, |agent| snapshot_bytes(agent));
        let mut session = Session {
            device: device.clone(),
            agent,
            game,
            seed,
            begin,
            size,
            names,
            real,
            player,
            dream: None,
            history: History::new(snapshot_bytes),
            temperature: TEMPERATURE,
            cursor: 0,
            live: None,
        };
        session.begin_game()?;
        Ok(session)
    }

    pub fn names(&self) -> &[String] {
        &self.names
    }

    pub fn game(&self) -> &Game {
        &self.game
    }

    pub fn size(&self) -> usize {
        self.size
    }

    pub fn has_dream(&self) -> bool {
        self.dream.is_some()
    }

    pub fn has_game(&self) -> bool {
        self.real.is_some()
    }

    pub fn history(&self) -> &History {
        &self.history
    }

    /// The games that were played, with their seeds.
    pub fn games(&self) -> &[PlayedGame] {
        self.real.as_ref().map_or(&[], |real| real.games())
    }

    /// The step that is looked at.
    pub fn now(&self) -> Result<&Moment, Problem> {
        self.history.get(self.cursor).ok_or_else(|| Problem::bad_request("this step is forgotten"))
    }

    /// Looks at another step; the next one branches off there.
    pub fn show(&mut self, step: usize) -> Result<&Moment, Problem> {
        if self.history.get(step).is_none() {
            let (first, last) = self.history.ends();
            return Err(Problem::bad_request(format!("steps {first} to {last} are kept, not {step}")));
        }
        self.cursor = step;
        self.now()
    }

    /// The next game, or the first, and a dream that begins with its first frame.
    fn begin_game(&mut self) -> Result<(), Problem> {
        let step = self.history.get(self.cursor).map_or(0, |moment| moment.facts.step + 1);
        self.live = None;
        let number = self.real.as_ref().map_or(0, |real| real.games().len());
        let seed = match self.begin {
            Begin::Evaluation => episode_seed(evaluation_seed(self.seed), number),
            _ => episode_seed(self.seed, number),
        };
        let first = match (&self.begin, number) {
            (Begin::Recorded { played: Some(played), .. }, 0) => played.clone(),
            _ => PlayedGame { seed, actions: Vec::new() },
        };
        if let Some(real) = &mut self.real {
            real.begin(first)?;
        }
        if let Some(player) = &mut self.player {
            player.set_key(Key::new(evaluation_seed(self.seed.wrapping_add(number as u64)), 1));
            player.forget(0).map_err(failed)?;
        }
        let (frames, actions) = match (&self.begin, &self.real) {
            (Begin::Recorded { frames, actions, .. }, real) if number == 0 || real.is_none() => {
                (frames.clone(), actions.clone())
            }
            (_, Some(real)) => (real.frame().pixels.to_vec(), Vec::new()),
            (_, None) => Default::default(),
        };
        if let (Some(player), Some(last)) = (&mut self.player, actions.last()) {
            player.took(0, *last).map_err(failed)?;
        }
        // Every game of a session has other random numbers; those of the first are those of `iris dream`.
        let key = Key::new(self.seed.wrapping_add(step as u64), 0);
        let how = match self.agent {
            Some(_) => How::Begun { frames: frames.into(), actions: actions.into(), key },
            None => How::Absent,
        };
        let came = self.come_to(&how, None)?;
        let (game, dream) = (self.game_facts(0.0, None), self.dream_facts(None, None));
        self.keep(Facts { step, game, dream, ..Facts::default() }, how, came.frame)?;
        Ok(())
    }

    /// Takes the dream to a step from the one before it.
    fn come_to(&mut self, how: &How, frame: Option<&Image>) -> Result<Came, Problem> {
        let Some(loaded) = self.agent.clone() else { return Ok(Came::default()) };
        let agent = &loaded.agent;
        if let How::Begun { frames, actions, key } = how {
            let (frames, actions) = ([frames.to_vec()], [actions.to_vec()]);
            let mut dream = Dream::from_frames(&self.device, agent, &frames, &actions, loaded.burn_in, *key)
                .map_err(failed)?;
            let frame = dream.look(agent).map_err(failed)?.pop();
            self.dream = Some(dream);
            return Ok(Came { frame: frame.map(|frame| frame.pixels), told: None });
        }
        let Some(dream) = &mut self.dream else { return Ok(Came::default()) };
        let action = match how {
            How::Given(action) => Action::Given(std::slice::from_ref(action)),
            How::Chosen { temperature } => Action::Policy { temperature: *temperature },
            How::Shown(action) => {
                let frame = frame.map_or(Vec::new(), |frame| frame.pixels.to_vec());
                let seen = dream.condition(agent, &[*action], &[frame]).map_err(failed)?.pop();
                return Ok(Came { frame: seen.map(|frame| frame.pixels), told: None });
            }
            How::Begun { .. } | How::Absent => return Ok(Came::default()),
        };
        let mut told = dream.step(agent, action, Asked::default()).map_err(failed)?.pop();
        let frame = told.as_mut().and_then(|told| told.next.take()).map(|frame| frame.pixels);
        Ok(Came { frame, told })
    }

    /// Keeps the step that everything has come to.
    fn keep(&mut self, mut facts: Facts, how: How, dreamt: Option<Vec<u8>>) -> Result<&Moment, Problem> {
        let place = self.real.as_ref().map_or(Place { game: 0, actions: 0 }, Real::place);
        let (mut frame, mut full, mut seen) = (None, None, None);
        let (mut player_state, mut proposed) = (None, None);
        if let Some(real) = &self.real {
            (frame, full) = (Some(real.frame()), real.full());
        }
        let before =
            self.history.get(self.cursor).filter(|before| facts.action.is_some() && before.place == place);
        if let (Some(before), true) = (before, self.player.is_some()) {
            // The game is over, and nothing has happened in it since.
            (seen, player_state) = (before.seen.clone(), before.player.clone());
            facts.policy.clone_from(&before.facts.policy);
        } else if let (Some(player), Some(loaded), Some(frame)) = (&mut self.player, &self.agent, &frame) {
            let action = player.act(&loaded.agent, &frame.pixels, self.temperature).map_err(failed)?;
            proposed = action.first().map(|action| *action as usize);
            if let Some(thought) = player.thoughts().map_err(failed)?.pop() {
                seen = Some(Image::square(self.size, thought.seen.pixels));
                facts.policy =
                    Some(PolicyFacts { probabilities: thought.action_probabilities, value: thought.value });
            }
            player_state = Some(player.state().map_err(failed)?);
        }
        let snapshot = match (&mut self.dream, &self.agent) {
            (Some(dream), Some(loaded)) => Some(dream.snapshot(&loaded.agent).map_err(failed)?),
            _ => None,
        };
        let step = facts.step;
        let mut moment = Moment::new(facts, how, place);
        (moment.frame, moment.full, moment.seen) = (frame, full, seen);
        moment.dream = dreamt.map(|pixels| Image::square(self.size, pixels));
        (moment.player, moment.proposed) = (player_state, proposed);
        self.history.push(moment, snapshot);
        (self.cursor, self.live) = (step, Some(step));
        self.now()
    }

    /// The next step from the one that is looked at: what came after that before is forgotten. When game and dream are over, the next game begins.
    pub fn step(&mut self, orders: Orders) -> Result<&Moment, Problem> {
        if let Some(action) = orders.action.filter(|action| *action >= self.names.len()) {
            let known = self.names.len();
            return Err(Problem::bad_request(format!("there is no action {action}: the game has {known}")));
        }
        self.come_back(self.cursor)?;
        self.temperature = orders.temperature;
        let now = self.now()?;
        let (step, before, proposed) = (now.facts.step + 1, now.facts.clone(), now.proposed);
        let finished = self.real.as_ref().is_some_and(Real::over);
        // The dream has ended, or has gone on for so long that it is to be shown reality.
        let due = before.dream.as_ref().is_none_or(|dream| {
            dream.over || (orders.horizon > 0 && self.real.is_some() && dream.dreamt >= orders.horizon)
        });
        if due && (finished || (self.real.is_none() && self.dream.is_some())) {
            self.begin_game()?;
            return self.now();
        }
        let shown = due && self.dream.is_some();
        // From here on an error leaves them at different steps.
        self.live = None;
        let proposed = proposed.filter(|_| !finished);
        // The policy acts in the dream where nobody else does, and where it is asked to.
        let dreams_first = orders.action.is_none()
            && self.dream.is_some()
            && (proposed.is_none() || (orders.eyes == Eyes::Dream && !shown));
        let (mut how, mut came) = (How::Absent, Came::default());
        if dreams_first {
            how = How::Chosen { temperature: orders.temperature };
            came = self.come_to(&how, None)?;
        }
        let chosen = came.told.as_ref().map(|told| told.action);
        let action = orders.action.or(chosen).or(proposed).unwrap_or_else(|| self.idle());
        // A dream goes on alone after the end of the game.
        let outcome = if finished { None } else { self.play(action)? };
        if self.dream.is_some() && !dreams_first {
            how = if shown { How::Shown(action) } else { How::Given(action) };
            let frame = self.real.as_ref().filter(|_| shown).map(Real::frame);
            came = self.come_to(&how, frame.as_ref())?;
        }
        let facts = Facts {
            step,
            action: Some(action),
            by: Some(if orders.action.is_some() { By::Person } else { By::Policy }),
            game: self.game_facts(outcome.map_or(0.0, |step| step.reward), before.game.as_ref()),
            dream: self.dream_facts(came.told, before.dream.as_ref()),
            policy: None,
        };
        self.keep(facts, how, came.frame)
    }

    /// A step of the real game, if there is one, which the player hears of.
    fn play(&mut self, action: usize) -> Result<Option<envs::Step>, Problem> {
        if let Some(player) = &mut self.player {
            player.took(0, action).map_err(failed)?;
        }
        self.real.as_mut().map(|real| real.step(action)).transpose()
    }

    /// Shows the dream the game's frame at the step that is looked at, instead of what it dreamt.
    pub fn put_reality_back(&mut self) -> Result<&Moment, Problem> {
        let now = self.now()?;
        let (step, mut facts, frame) = (now.facts.step, now.facts.clone(), now.frame.clone());
        let action = match (&now.how, facts.action) {
            (How::Given(_) | How::Chosen { .. }, Some(action)) if frame.is_some() => action,
            // It is reality already, or there is none.
            _ => return self.now(),
        };
        self.come_back(step - 1)?;
        self.live = None;
        let how = How::Shown(action);
        if self.real.as_ref().is_some_and(|real| !real.over()) {
            self.play(action)?;
        }
        let came = self.come_to(&how, frame.as_ref())?;
        facts.dream = self.dream_facts(None, None);
        self.keep(facts, how, came.frame)
    }

    /// Brings game, policy and dream to a step, and forgets what came after it.
    fn come_back(&mut self, step: usize) -> Result<(), Problem> {
        if self.live == Some(step) {
            return Ok(());
        }
        let unknown = || Problem::bad_request("this step is forgotten: choose a later one");
        self.live = None;
        let target = self.history.get(step).ok_or_else(unknown)?;
        if let Some(real) = &mut self.real {
            real.go_to(target.place)?;
        }
        if let (Some(player), Some(state)) = (&mut self.player, &target.player) {
            player.put_back(state).map_err(failed)?;
        }
        let base = self.history.base(step).ok_or_else(unknown)?;
        let first = base.facts.step;
        match (base.snapshot(), &mut self.dream) {
            (Some(snapshot), Some(dream)) => dream.put_back(snapshot).map_err(failed)?,
            _ => {
                let how = base.how.clone();
                self.come_to(&how, None)?;
            }
        }
        for between in first + 1..=step {
            let moment = self.history.get(between).ok_or_else(unknown)?;
            let (how, frame) = (moment.how.clone(), moment.frame.clone());
            self.come_to(&how, frame.as_ref())?;
        }
        self.history.cut_after(step);
        (self.cursor, self.live) = (step, Some(step));
        Ok(())
    }

    /// What nobody does: the action that does nothing, if there is one.
    pub fn idle(&self) -> usize {
        let nothing = ["noop", "stay", "wait", "none", "nothing"];
        self.names.iter().position(|name| nothing.contains(&name.to_lowercase().as_str())).unwrap_or(0)
    }

    /// What the game says after a step.
    fn game_facts(&self, reward: f32, before: Option<&GameFacts>) -> Option<GameFacts> {
        let real = self.real.as_ref()?;
        let total = before.map_or(0.0, |before| before.total) + reward;
        let Place { game: number, actions: steps } = real.place();
        Some(GameFacts { number, steps, reward, total, over: real.over() })
    }

    /// What the dream says after a step. It saw reality if it was not dreamt.
    fn dream_facts(&self, told: Option<agent::Moment>, before: Option<&DreamFacts>) -> Option<DreamFacts> {
        let (dream, agent) = (self.dream.as_ref()?, self.agent.as_ref()?);
        let window = agent.agent.config.world_model.steps;
        let remembered = dream.remembered();
        let slid = before.is_some_and(|before| remembered != before.remembered + 1);
        let facts = DreamFacts { remembered, window, slid, ..DreamFacts::default() };
        let Some(told) = told else { return Some(DreamFacts { given: true, ..facts }) };
        let reward = agent.agent.config.world_model.reward.shown(told.reward);
        let (total, dreamt) = before.map_or((0.0, 0), |before| (before.total, before.dreamt));
        let policy = PolicyFacts { probabilities: told.action_probabilities, value: told.value };
        Some(DreamFacts {
            reward,
            total: total + reward,
            over: told.end,
            dreamt: dreamt + 1,
            expected: Some(Expected {
                rewards: told.reward_probabilities,
                end: told.end_probability,
                policy,
            }),
            ..facts
        })
    }
}

/// Where a step took the dream: its frame, and what a dreamt step told.
#[derive(Default)]
struct Came {
    frame: Option<Vec<u8>>,
    told: Option<agent::Moment>,
}

/// About how many bytes a snapshot of a dream takes: keys and values of every position, for the most part.
fn snapshot_bytes(loaded: &Loaded) -> usize {
    let (model, k) = (&loaded.agent.config.world_model, loaded.agent.world_model.tokens);
    let positions = model.steps * (k + 1);
    4 * (2 * model.layers * positions * model.width + 2 * loaded.agent.config.actor_critic.hidden + positions)
}
