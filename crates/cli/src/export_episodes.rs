//! `iris export-episodes`: episodes of a run as NumPy arrays.

use std::path::{Path, PathBuf};

use agent::train::{EpisodeKind, KeptEpisode, Run, kept_episodes};
use agent::{export_episodes, join_episodes};
use anyhow::{Result, bail};
use engine::Device;

use crate::args::{EpisodesFrom, ExportEpisodesArgs};
use crate::output::{say, warn};
use crate::progress::Progress;
use crate::words::counted;

pub fn run(args: ExportEpisodesArgs) -> Result<()> {
    if args.out.exists() && !is_npz(&args.out) {
        bail!("{} exists and is not an .npz file: choose another file", args.out.display());
    }
    let (episodes, steps) = match args.kind {
        EpisodesFrom::Replay => from_replay(&args)?,
        EpisodesFrom::Train => kept(&args, EpisodeKind::Train)?,
        EpisodesFrom::Evaluation => kept(&args, EpisodeKind::Evaluation)?,
        EpisodesFrom::Imagination => kept(&args, EpisodeKind::Imagination)?,
    };
    say!(
        "exported {} with {} to {}",
        counted(episodes, "episode"),
        counted(steps, "step"),
        args.out.display()
    );
    Ok(())
}

/// Episodes and steps that were written.
fn from_replay(args: &ExportEpisodesArgs) -> Result<(usize, usize)> {
    if args.best {
        bail!("--best needs --kind train, evaluation or imagination");
    }
    let (config, _, replay) = Run::look(&Device::cpu(None)?, &args.run, warn)?;
    let table = &replay.table().episodes;
    // The newest may just have been begun.
    let known = table.len() - table.iter().rev().take_while(|episode| episode.len == 0).count();
    if known == 0 {
        bail!("{} has seen nothing yet: wait for its first epoch", args.run.display());
    }
    let episodes = &table[known - args.episodes.unwrap_or(known).min(known)..known];
    let steps = episodes.iter().map(|episode| episode.len).sum();
    let progress = Progress::new("exporting", steps);
    let size = config.agent.tokenizer.frame_size;
    export_episodes(&replay, episodes, size, &args.out, |done| progress.set(done))?;
    Ok((episodes.len(), steps))
}

fn kept(args: &ExportEpisodesArgs, kind: EpisodeKind) -> Result<(usize, usize)> {
    let (config, _) = Run::newest_agent(&Device::cpu(None)?, &args.run, warn)?;
    let kept = kept_episodes(&args.run, kind)?;
    let chosen: Vec<PathBuf> = match args.best {
        true => KeptEpisode::best(&kept).into_iter().map(|episode| episode.path.clone()).collect(),
        false => {
            let newest = kept.len() - args.episodes.unwrap_or(kept.len()).min(kept.len());
            kept[newest..].iter().map(|episode| episode.path.clone()).collect()
        }
    };
    if chosen.is_empty() {
        let first = match kind {
            EpisodeKind::Train => "first episode to end",
            EpisodeKind::Evaluation | EpisodeKind::Imagination => "next evaluation",
        };
        bail!("{} has kept no episode of {} yet: wait for the {first}", args.run.display(), kind.name());
    }
    let mut steps = 0;
    let size = config.agent.tokenizer.frame_size;
    join_episodes(&chosen, size, &args.out, |done| steps = done)?;
    Ok((chosen.len(), steps))
}

/// Whether a file may be replaced: files of runs and agents have other names.
pub fn is_npz(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("npz"))
}
