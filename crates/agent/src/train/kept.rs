//! Episodes that a run keeps for people, in NumPy archives of one each: the newest and the best of training, evaluation and imagination.
//!
//! ```text
//! episodes/evaluation/000012-003-return=21.npz    episode 3 of epoch 12
//! ```
//!
//! Everything about them is in their names, so that a run that goes on needs no other record of them. An episode that must go is removed only after
//! the checkpoint of the epoch that displaced it: a run that is killed before can go back.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use envs::{Game, Purpose};
use rayon::prelude::*;

use super::ended::Ended;
use super::held_out::HeldOut;
use super::{Made, Result, RunError, TrainError};
use crate::Dreamt;
use crate::episodes::{EpisodesError, Frames, export_dreams, export_episodes, write};
use crate::files::{FileError, failed};
use crate::replay::Episode;

/// Newest episodes that are kept.
const NEWEST: usize = 10;

/// Where an episode was played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpisodeKind {
    /// Collected to learn from.
    Train,
    Evaluation,
    /// Dreamt, as `dream.png` shows it.
    Imagination,
}

impl EpisodeKind {
    pub const ALL: [EpisodeKind; 3] = [EpisodeKind::Train, EpisodeKind::Evaluation, EpisodeKind::Imagination];

    pub fn name(self) -> &'static str {
        match self {
            EpisodeKind::Train => "train",
            EpisodeKind::Evaluation => "evaluation",
            EpisodeKind::Imagination => "imagination",
        }
    }

    fn folder(self, run: &Path) -> PathBuf {
        run.join("episodes").join(self.name())
    }
}

/// An episode that a run has kept.
#[derive(Clone, Debug, PartialEq)]
pub struct KeptEpisode {
    pub path: PathBuf,
    pub epoch: usize,
    /// Of those of its kind in the epoch.
    pub number: usize,
    /// Its return.
    pub total: f32,
}

impl KeptEpisode {
    fn new(folder: &Path, epoch: usize, number: usize, total: f32) -> KeptEpisode {
        let path = folder.join(format!("{epoch:06}-{number:03}-return={total}.npz"));
        KeptEpisode { path, epoch, number, total }
    }

    /// None for a file with another name.
    fn parse(path: &Path) -> Option<KeptEpisode> {
        let name = path.file_name()?.to_str()?.strip_suffix(".npz")?;
        let (numbers, total) = name.split_once("-return=")?;
        let (epoch, number) = numbers.split_once('-')?;
        let (epoch, number, total) = (epoch.parse().ok()?, number.parse().ok()?, total.parse().ok()?);
        let kept = KeptEpisode::new(path.parent()?, epoch, number, total);
        (kept.path == path).then_some(kept)
    }

    /// The first of those with the highest return.
    pub fn best(kept: &[KeptEpisode]) -> Option<&KeptEpisode> {
        let totals: Vec<f32> = kept.iter().map(|episode| episode.total).collect();
        kept.get(best(&totals)?)
    }
}

/// The episodes of a kind that a run has kept, oldest first.
pub fn kept_episodes(run: &Path, kind: EpisodeKind) -> Result<Vec<KeptEpisode>, FileError> {
    let mut kept: Vec<KeptEpisode> =
        files(&kind.folder(run))?.iter().filter_map(|path| KeptEpisode::parse(path)).collect();
    kept.sort_by_key(|episode| (episode.epoch, episode.number));
    Ok(kept)
}

fn files(folder: &Path) -> Result<Vec<PathBuf>, FileError> {
    match std::fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        entries => {
            let entries = entries.map_err(failed("read", folder))?;
            Ok(entries.filter_map(|entry| Some(entry.ok()?.path())).collect())
        }
    }
}

/// Whether a folder holds episodes of a run.
pub(super) fn are_in(run: &Path) -> bool {
    EpisodeKind::ALL.into_iter().any(|kind| kept_episodes(run, kind).is_ok_and(|kept| !kept.is_empty()))
}

/// The first of the highest returns; NaN is never higher.
fn best(totals: &[f32]) -> Option<usize> {
    let higher = |best: usize, next: usize| totals[next] > totals[best] || totals[best].is_nan();
    (0..totals.len()).reduce(|best, next| if higher(best, next) { next } else { best })
}

/// Which episodes stay, by their returns, oldest first.
fn stay(totals: &[f32]) -> BTreeSet<usize> {
    (totals.len().saturating_sub(NEWEST)..totals.len()).chain(best(totals)).collect()
}

/// Removes episodes that others have displaced.
pub(super) fn prune(run: &Path) -> Result<(), FileError> {
    for kind in EpisodeKind::ALL {
        let kept = kept_episodes(run, kind)?;
        let stay = stay(&kept.iter().map(|episode| episode.total).collect::<Vec<_>>());
        let mut displaced = kept.iter().enumerate().filter(|(i, _)| !stay.contains(i));
        displaced.try_for_each(|(_, episode)| remove(&episode.path))?;
    }
    Ok(())
}

/// Before a run goes on after `epoch`: removes episodes of epochs that were not finished, and what an interrupted attempt left.
pub(super) fn resume(run: &Path, epoch: usize) -> Result<(), FileError> {
    for kind in EpisodeKind::ALL {
        for path in files(&kind.folder(run))? {
            let later = KeptEpisode::parse(&path).is_some_and(|episode| episode.epoch > epoch);
            let partial = path.extension().is_some_and(|ending| ending == "partial");
            if later || (partial && KeptEpisode::parse(&path.with_extension("")).is_some()) {
                remove(&path)?;
            }
        }
    }
    prune(run)
}

fn remove(path: &Path) -> Result<(), FileError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(failed("remove", path)),
    }
}

impl Ended<'_> {
    /// Writes those episodes of the epoch that just ended which are among the newest or better than all before.
    pub fn keep_episodes(&self, run: &Path, made: &Made, dreams: &[Dreamt]) -> Result<()> {
        let size = self.config.agent.tokenizer.frame_size;
        let known = &self.replay.table().episodes;
        let there = made.collected.iter().filter(|(_, kept)| known.iter().any(|e| e.start == kept.start));
        let collected: Vec<(f32, Episode)> = there.copied().collect();
        for (episode, path) in self.staying(run, EpisodeKind::Train, &collected)? {
            export_episodes(self.replay, &[*episode], size, &path, |_| {})?;
        }
        // Each is played from its first step, which takes longer than anything else here.
        let games = self.staying(run, EpisodeKind::Evaluation, &made.evaluated)?;
        let game = self.game;
        let write = |(held_out, path): (&HeldOut, PathBuf)| write_game(game, size, held_out, &path);
        self.device.on_host_threads(|| games.into_par_iter().try_for_each(write))?;
        let imagined: Vec<(f32, &Dreamt)> =
            dreams.iter().map(|dream| (dream.rewards.iter().sum(), dream)).collect();
        for (dream, path) in self.staying(run, EpisodeKind::Imagination, &imagined)? {
            export_dreams(&[*dream], size, &path)?;
        }
        Ok(())
    }

    /// Those of the episodes, each with its return, that stay, and where they are to be written.
    fn staying<'a, T>(
        &self,
        run: &Path,
        kind: EpisodeKind,
        episodes: &'a [(f32, T)],
    ) -> Result<Vec<(&'a T, PathBuf)>> {
        let before = kept_episodes(run, kind).map_err(RunError::from)?;
        let totals = before.iter().map(|kept| kept.total).chain(episodes.iter().map(|(total, _)| *total));
        let stay = stay(&totals.collect::<Vec<_>>());
        let folder = kind.folder(run);
        if stay.range(before.len()..).next().is_some() {
            std::fs::create_dir_all(&folder).map_err(|e| RunError::from(failed("create", &folder)(e)))?;
        }
        let path = |number: usize, total: f32| KeptEpisode::new(&folder, self.epoch, number, total).path;
        let numbered = (0..).zip(episodes).filter(|(number, _)| stay.contains(&(before.len() + number)));
        Ok(numbered.map(|(number, (total, episode))| (episode, path(number, *total))).collect())
    }
}

/// A game of the evaluation, which is played again.
fn write_game(game: &Game, size: usize, held_out: &HeldOut, path: &Path) -> Result<(), EpisodesError> {
    let mut env = game.make(Purpose::Evaluate, size)?;
    let len = held_out.actions.len();
    let read = |_, frames: &mut Frames| {
        let mut records = Vec::with_capacity(len);
        held_out.play_again(env.as_mut(), size * size * 3, len, |frame, record| {
            records.push(record);
            frames(frame)
        })?;
        Ok(records)
    };
    write(path, size, &[len], read, |_| {})
}

impl From<EpisodesError> for TrainError {
    fn from(error: EpisodesError) -> TrainError {
        match error {
            EpisodesError::File(error) => TrainError::Save(error.into()),
            EpisodesError::Replay(error) => error.into(),
            EpisodesError::Env(error) => error.into(),
            error @ (EpisodesError::Incomplete { .. } | EpisodesError::NotEpisodes { .. }) => {
                TrainError::Save(RunError::Episodes(error))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scratch;

    #[test]
    fn the_newest_and_the_first_of_the_best_stay() {
        assert_eq!(stay(&[]), BTreeSet::new());
        assert_eq!(stay(&[1.0; 10]), (0..10).collect());
        // An equal one is no better than the first.
        assert_eq!(stay(&[1.0; 13]), [0].into_iter().chain(3..13).collect());
        let mut totals = vec![0.0; 13];
        totals[1] = 2.0;
        assert_eq!(stay(&totals), [1].into_iter().chain(3..13).collect());
        totals[12] = 3.0;
        assert_eq!(stay(&totals), (3..13).collect());
        totals[2] = f32::NAN;
        assert_eq!(best(&totals[2..4]), Some(1));
    }

    #[test]
    fn names_say_it_all() {
        let folder = Path::new("run/episodes/train");
        for (epoch, number, total) in [(12, 3, 21.0), (7, 1234, -0.1), (1_000_000, 0, f32::MAX)] {
            let kept = KeptEpisode::new(folder, epoch, number, total);
            assert_eq!(KeptEpisode::parse(&kept.path), Some(kept));
        }
        for name in
            ["12-3-return=1.npz", "000012-003-return=x.npz", "000012-003-return=1.npz.partial", "a.npz"]
        {
            assert_eq!(KeptEpisode::parse(&folder.join(name)), None, "{name}");
        }
    }

    #[test]
    fn a_run_that_goes_on_forgets_unfinished_epochs_alone() {
        let scratch = Scratch::new("kept");
        let run = &scratch.0;
        let folder = EpisodeKind::Train.folder(run);
        std::fs::create_dir_all(&folder).unwrap();
        // The best of all is in an epoch that is not finished: the best before it must still be there.
        let totals = |epoch: usize| if epoch == 2 { 5.0 } else { epoch as f32 / 100.0 };
        for epoch in 1..=14 {
            std::fs::write(KeptEpisode::new(&folder, epoch, 0, totals(epoch)).path, "").unwrap();
        }
        std::fs::write(KeptEpisode::new(&folder, 15, 0, 9.0).path, "").unwrap();
        for name in ["000015-001-return=0.npz.partial", "notes.txt", "notes.partial"] {
            std::fs::write(folder.join(name), "").unwrap();
        }
        resume(run, 14).unwrap();
        let kept = kept_episodes(run, EpisodeKind::Train).unwrap();
        let epochs: Vec<usize> = kept.iter().map(|episode| episode.epoch).collect();
        assert_eq!(epochs, [2, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]);
        assert_eq!(KeptEpisode::best(&kept).unwrap().epoch, 2);
        // Nobody else's files.
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 11 + 2);
        assert_eq!(kept_episodes(run, EpisodeKind::Imagination).unwrap(), []);
    }
}
