//! What was played: the frames of every step, and what it takes to come back to one. Both are bounded: the oldest steps are forgotten, and of older steps
//! fewer snapshots are kept, between which the dream is dreamt again.

use std::collections::VecDeque;
use std::sync::Arc;

use agent::{PlayerState, Snapshot};
use engine::Key;
use serde::Serialize;

/// Steps that are kept at most, if their frames fit into [`MOST_BYTES`].
const MOST_STEPS: usize = 1000;
const MOST_BYTES: usize = 32 << 20;
/// Snapshots take up to so many bytes in all.
const SNAPSHOT_BYTES: usize = 96 << 20;

/// An image: height, width and RGB bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    pub height: usize,
    pub width: usize,
    pub pixels: Arc<[u8]>,
}

impl Image {
    pub fn square(size: usize, pixels: Vec<u8>) -> Image {
        Image { height: size, width: size, pixels: pixels.into() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    Person,
    Policy,
}

/// What a step told, as the page gets it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Facts {
    /// Counts from the start of the session.
    pub step: usize,
    /// What led here; none at the beginning of a game.
    pub action: Option<usize>,
    pub by: Option<By>,
    pub game: Option<GameFacts>,
    pub dream: Option<DreamFacts>,
    /// What the policy thinks of the game's frame: about the next action.
    pub policy: Option<PolicyFacts>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GameFacts {
    /// Counts the games of the session.
    pub number: usize,
    /// Steps since its beginning.
    pub steps: usize,
    pub reward: f32,
    /// All rewards of the game.
    pub total: f32,
    pub over: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DreamFacts {
    pub reward: f32,
    /// All dreamt rewards since the beginning, or since reality was put back.
    pub total: f32,
    pub over: bool,
    /// Steps since the dream last saw reality.
    pub dreamt: usize,
    /// It was shown what really happened.
    pub given: bool,
    /// The context window was full: the world model forgot the older half of its steps.
    pub slid: bool,
    /// Steps that the world model remembers, of how many it can.
    pub remembered: usize,
    pub window: usize,
    /// What was expected; none where nothing was dreamt.
    pub expected: Option<Expected>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Expected {
    /// Of a negative reward, of none, of a positive one.
    pub rewards: [f32; 3],
    pub end: f32,
    /// What the policy thought of the dream's frame before the action.
    pub policy: PolicyFacts,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PolicyFacts {
    pub probabilities: Vec<f32>,
    pub value: f32,
}

/// How the dream came to a step.
#[derive(Clone, Debug)]
pub enum How {
    /// It began with the last of these frames, after these actions; the frames before it warmed the policy up.
    Begun {
        frames: Arc<[u8]>,
        actions: Arc<[usize]>,
        key: Key,
    },
    Given(usize),
    Chosen {
        temperature: f32,
    },
    /// It was shown the game's frame after this action.
    Shown(usize),
    /// There is no dream.
    Absent,
}

/// Where the game was: which one, and after how many actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub game: usize,
    pub actions: usize,
}

/// One step of what was played.
pub struct Moment {
    pub facts: Facts,
    /// The game as the network gets it.
    pub frame: Option<Image>,
    /// The game as a person sees it, where that is more.
    pub full: Option<Image>,
    /// The frame as the agent sees it.
    pub seen: Option<Image>,
    pub dream: Option<Image>,
    pub how: How,
    pub place: Place,
    pub player: Option<PlayerState>,
    /// What the policy would do next in the game.
    pub proposed: Option<usize>,
    snapshot: Option<Snapshot>,
}

impl Moment {
    pub fn new(facts: Facts, how: How, place: Place) -> Moment {
        let (frame, full, seen, dream) = (None, None, None, None);
        Moment { facts, frame, full, seen, dream, how, place, player: None, proposed: None, snapshot: None }
    }

    fn bytes(&self) -> usize {
        let images = [&self.frame, &self.full, &self.seen, &self.dream];
        images.into_iter().flatten().map(|image| image.pixels.len()).sum::<usize>() + 1024
    }

    /// Whether the dream can be brought here without the steps before.
    fn is_base(&self) -> bool {
        self.snapshot.is_some() || matches!(self.how, How::Begun { .. } | How::Absent)
    }

    pub fn snapshot(&self) -> Option<&Snapshot> {
        self.snapshot.as_ref()
    }
}

pub struct History {
    moments: VecDeque<Moment>,
    bytes: usize,
    most_snapshots: usize,
}

impl History {
    /// For snapshots of so many bytes each.
    pub fn new(snapshot_bytes: usize) -> History {
        let most_snapshots = (SNAPSHOT_BYTES / snapshot_bytes.max(1)).clamp(4, 256);
        History { moments: VecDeque::new(), bytes: 0, most_snapshots }
    }

    /// Numbers of the oldest and the newest step.
    pub fn ends(&self) -> (usize, usize) {
        let step = |moment: Option<&Moment>| moment.map_or(0, |moment| moment.facts.step);
        (step(self.moments.front()), step(self.moments.back()))
    }

    fn index(&self, step: usize) -> Option<usize> {
        step.checked_sub(self.ends().0).filter(|index| *index < self.moments.len())
    }

    pub fn get(&self, step: usize) -> Option<&Moment> {
        self.moments.get(self.index(step)?)
    }

    /// Steps in a range, of those that are there.
    pub fn range(&self, from: usize, to: usize) -> impl Iterator<Item = &Moment> {
        self.moments.iter().filter(move |moment| (from..=to).contains(&moment.facts.step))
    }

    /// The newest step up to this one that the dream can be brought to without those before.
    pub fn base(&self, step: usize) -> Option<&Moment> {
        self.moments.range(..=self.index(step)?).rev().find(|moment| moment.is_base())
    }

    /// Forgets the steps after this one.
    pub fn cut_after(&mut self, step: usize) {
        while self.moments.back().is_some_and(|moment| moment.facts.step > step) {
            self.bytes -= self.moments.pop_back().map_or(0, |moment| moment.bytes());
        }
    }

    /// Appends a step, and forgets what is too much.
    pub fn push(&mut self, mut moment: Moment, snapshot: Option<Snapshot>) {
        moment.snapshot = snapshot;
        self.bytes += moment.bytes();
        self.moments.push_back(moment);
        let too_much = |history: &History| {
            history.moments.len() > MOST_STEPS || history.bytes > MOST_BYTES && history.moments.len() > 2
        };
        // What cannot be come back to goes with what it was dreamt from.
        while too_much(self) || self.moments.front().is_some_and(|moment| !moment.is_base()) {
            let Some(oldest) = self.moments.pop_front() else { break };
            self.bytes -= oldest.bytes();
        }
        self.thin_out();
    }

    /// Removes the snapshots whose absence costs least: the gap it leaves, measured against its age.
    fn thin_out(&mut self) {
        loop {
            let kept: Vec<usize> =
                (0..self.moments.len()).filter(|i| self.moments[*i].snapshot.is_some()).collect();
            if kept.len() <= self.most_snapshots {
                return;
            }
            let newest = self.moments.len();
            let cost = |at: usize| {
                let gap = kept[at + 1] - kept[at - 1];
                gap as f64 / (newest - kept[at]) as f64
            };
            let cheapest = (1..kept.len() - 1).min_by(|a, b| cost(*a).total_cmp(&cost(*b)));
            let Some(at) = cheapest else { return };
            self.moments[kept[at]].snapshot = None;
        }
    }
}
