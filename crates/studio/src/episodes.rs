//! Episodes of a run: those of its replay, and those that it keeps for people. Pages address them by id:
//!
//! ```text
//! replay-1200              the episode of the replay that begins with record 1200
//! evaluation-12-3          episode 3 of those kept of the evaluation after epoch 12; also train and imagination
//! ```

use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use agent::train::{EpisodeKind, KeptEpisode, Run, TrainConfig, kept_episodes};
use agent::{Archive, Episode, EpisodesError, PlayedGame, Record, Replay, ReplayError};
use serde::Serialize;

use crate::Studio;
use crate::index::{Kind, RunEntry};
use crate::problem::Problem;

/// Replays that are kept open.
const OPEN: usize = 4;
/// Episodes in a list: the newest.
const LISTED: usize = 5000;

/// Open replays, the one that was used last at the end.
#[derive(Default)]
pub struct Replays(Mutex<Vec<Arc<Opened>>>);

/// A replay as the run's newest checkpoint knows it.
pub struct Opened {
    path: PathBuf,
    epoch: Option<usize>,
    pub config: TrainConfig,
    pub replay: Replay,
    totals: OnceLock<Vec<f32>>,
}

/// An episode in a list.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    pub id: String,
    /// `replay`, `train`, `evaluation` or `imagination`.
    pub source: &'static str,
    pub epoch: Option<usize>,
    /// Unknown before the file is opened.
    pub length: Option<usize>,
    /// Its return.
    pub total: f32,
    pub ended: bool,
}

/// The episodes of a run.
pub struct Episodes {
    run: RunEntry,
    pub opened: Arc<Opened>,
}

/// An episode that was found.
pub struct Recorded {
    opened: Arc<Opened>,
    source: From,
    pub records: Vec<Record>,
}

enum From {
    Replay { number: usize, episode: Episode },
    Archive(Archive),
}

/// What a dream can begin with.
pub struct Start {
    /// RGB bytes of the frame, after those before it that warm the policy up.
    pub frames: Vec<u8>,
    /// What was done before the frame, the newest last.
    pub actions: Vec<usize>,
    /// The real game up to that frame, where it can be played again.
    pub played: Option<PlayedGame>,
}

impl Replays {
    fn open(&self, run: &RunEntry) -> Result<Arc<Opened>, Problem> {
        let epoch = Run::newest_epoch(&run.path);
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = open.iter().position(|known| known.path == run.path && known.epoch == epoch) {
            let found = open.remove(at);
            open.push(found.clone());
            return Ok(found);
        }
        // That of an older checkpoint is of no use any more.
        open.retain(|known| known.path != run.path);
        let (config, replay) = Run::open_replay(&run.path, |_| {}).map_err(Problem::bad_request)?;
        let opened =
            Arc::new(Opened { path: run.path.clone(), epoch, config, replay, totals: OnceLock::new() });
        open.push(opened.clone());
        if open.len() > OPEN {
            open.remove(0);
        }
        Ok(opened)
    }
}

impl Opened {
    /// The returns of the replay's episodes, in their order.
    fn totals(&self) -> Result<&[f32], ReplayError> {
        if let Some(totals) = self.totals.get() {
            return Ok(totals);
        }
        let total =
            |episode: &Episode| episode.records().map(|record| Ok(self.replay.record(record)?.reward)).sum();
        let totals = self.replay.table().episodes.iter().map(total).collect::<Result<Vec<f32>, _>>()?;
        Ok(self.totals.get_or_init(|| totals))
    }
}

impl Episodes {
    pub fn open(studio: &Studio, run: &RunEntry) -> Result<Episodes, Problem> {
        match run.kind {
            Kind::Run => Ok(Episodes { run: run.clone(), opened: studio.replays.open(run)? }),
            Kind::Agent => Err(Problem::bad_request("an imported agent has no episodes: choose a run")),
        }
    }

    /// Those of the replay, newest first, then those that are kept.
    pub fn list(&self) -> Result<Vec<Summary>, Problem> {
        let totals = self.opened.totals().map_err(Problem::internal)?;
        let episodes = self.opened.replay.table().episodes.iter().zip(totals);
        let mut list: Vec<Summary> = episodes
            .rev()
            .filter(|(episode, _)| episode.len > 0)
            .take(LISTED)
            .map(|(episode, total)| Summary {
                id: format!("replay-{}", episode.start),
                source: "replay",
                epoch: None,
                length: Some(episode.len),
                total: *total,
                ended: episode.ended,
            })
            .collect();
        for kind in EpisodeKind::ALL {
            let kept = kept_episodes(&self.run.path, kind).map_err(Problem::internal)?;
            list.extend(kept.iter().rev().map(|kept| Summary {
                id: format!("{}-{}-{}", kind.name(), kept.epoch, kept.number),
                source: kind.name(),
                epoch: Some(kept.epoch),
                length: None,
                total: kept.total,
                ended: true,
            }));
        }
        Ok(list)
    }

    pub fn find(&self, id: &str) -> Result<Recorded, Problem> {
        let unknown =
            || Problem::not_found(format!("there is no episode {id}: it may have been forgotten since"));
        let (source, rest) = id.split_once('-').ok_or_else(unknown)?;
        let opened = self.opened.clone();
        if source == "replay" {
            let start: usize = rest.parse().map_err(|_| unknown())?;
            let episodes = &opened.replay.table().episodes;
            let number = episodes.iter().position(|e| e.start == start && e.len > 0).ok_or_else(unknown)?;
            let episode = episodes[number];
            let records = episode.records().map(|record| opened.replay.record(record));
            let records = records.collect::<Result<_, _>>().map_err(Problem::internal)?;
            return Ok(Recorded { opened, source: From::Replay { number, episode }, records });
        }
        let kind = EpisodeKind::ALL.into_iter().find(|kind| kind.name() == source).ok_or_else(unknown)?;
        let kept = kept_episodes(&self.run.path, kind).map_err(Problem::internal)?;
        let named = |kept: &&KeptEpisode| format!("{}-{}", kept.epoch, kept.number) == rest;
        let kept = kept.iter().find(named).ok_or_else(unknown)?;
        let archive = Archive::open(&kept.path).map_err(Problem::internal)?;
        let (found, needed) = (archive.size(), opened.config.agent.tokenizer.frame_size);
        if found != needed {
            return Err(Problem::bad_request(format!(
                "the episode has frames of {found} x {found} pixels, the agent sees {needed} x {needed}"
            )));
        }
        let records = archive.records().to_vec();
        Ok(Recorded { opened, source: From::Archive(archive), records })
    }

    /// What a session or a dream begins with at a step of an episode.
    pub fn start(&self, id: &str, step: usize) -> Result<Start, Problem> {
        let recorded = self.find(id)?;
        let before = step.saturating_sub(self.opened.config.actor_critic.burn_in);
        let frames = recorded.frames(before..step.saturating_add(1))?;
        let played = match recorded.source {
            From::Replay { number, .. } => self.played(number, step)?,
            From::Archive(_) => None,
        };
        let actions = (before.saturating_sub(1)..step).map(|step| recorded.action(step)).collect();
        Ok(Start { frames, actions, played })
    }

    /// The game of an episode of the replay up to one of its steps, from its fresh start over the lives lost since; none where that is forgotten.
    fn played(&self, number: usize, step: usize) -> Result<Option<PlayedGame>, Problem> {
        let episodes = &self.opened.replay.table().episodes;
        let place = episodes[number].game();
        let same: Vec<&Episode> =
            episodes[..=number].iter().filter(|episode| episode.game() == place).collect();
        let Some(first) = same.iter().rposition(|episode| !episode.continues) else { return Ok(None) };
        let game = &same[first..];
        if game.windows(2).any(|pair| pair[0].end() != pair[1].start) {
            return Ok(None);
        }
        let end = episodes[number].record(step);
        let records = game.iter().flat_map(|episode| episode.records()).take_while(|record| *record < end);
        let actions = records.map(|record| Ok(self.opened.replay.record(record)?.action as usize));
        let actions = actions.collect::<Result<_, ReplayError>>().map_err(Problem::internal)?;
        Ok(Some(PlayedGame { seed: game[0].seed, actions }))
    }
}

impl Recorded {
    /// Side of a frame in pixels.
    pub fn size(&self) -> usize {
        self.opened.config.agent.tokenizer.frame_size
    }

    pub fn config(&self) -> &TrainConfig {
        &self.opened.config
    }

    pub fn action(&self, step: usize) -> usize {
        self.records.get(step).map_or(0, |record| record.action as usize)
    }

    /// RGB bytes of some frames, one after the other.
    pub fn frames(&self, steps: Range<usize>) -> Result<Vec<u8>, Problem> {
        let length = self.records.len();
        if steps.start >= steps.end || steps.end > length {
            return Err(Problem::bad_request(format!(
                "steps {} to {} were asked for, but the episode has {length}, counted from 0",
                steps.start, steps.end
            )));
        }
        let bytes = self.size() * self.size() * 3;
        let mut out = vec![0; steps.len() * bytes];
        match &self.source {
            From::Replay { episode, .. } => {
                let records: Vec<usize> = steps.map(|step| episode.record(step)).collect();
                self.opened.replay.frames(&records, &mut out).map_err(Problem::internal)?;
            }
            From::Archive(archive) => {
                let mut places = out.chunks_exact_mut(bytes);
                let copy = |frame: &[u8]| -> Result<(), EpisodesError> {
                    if let Some(place) = places.next() {
                        place.copy_from_slice(frame);
                    }
                    Ok(())
                };
                archive.frames(steps, copy).map_err(Problem::internal)?;
            }
        }
        Ok(out)
    }
}
