//! `iris export-episodes`: recorded episodes as NumPy arrays.

use agent::export_episodes;
use agent::train::Run;
use anyhow::{Result, bail};
use engine::Device;

use crate::args::ExportEpisodesArgs;
use crate::output::{say, warn};
use crate::progress::Progress;
use crate::words::counted;

pub fn run(args: ExportEpisodesArgs) -> Result<()> {
    let (config, _, replay) = Run::look(&Device::cpu(None)?, &args.run, warn)?;
    let table = &replay.table().episodes;
    // The newest may just have been begun.
    let known = table.len() - table.iter().rev().take_while(|episode| episode.len == 0).count();
    if known == 0 {
        bail!("{} has seen nothing yet: wait for its first epoch", args.run.display());
    }
    if args.out.exists() && !is_npz(&args.out) {
        bail!("{} exists and is not an .npz file: choose another file", args.out.display());
    }
    let episodes = &table[known - args.episodes.unwrap_or(known).min(known)..known];
    let steps = episodes.iter().map(|episode| episode.len).sum();
    let progress = Progress::new("exporting", steps);
    let size = config.agent.tokenizer.frame_size;
    export_episodes(&replay, episodes, size, &args.out, |done| progress.set(done))?;
    drop(progress);
    say!(
        "exported {} with {} to {}",
        counted(episodes.len(), "episode"),
        counted(steps, "step"),
        args.out.display()
    );
    Ok(())
}

/// Whether a file may be replaced: files of runs and agents have other names.
fn is_npz(path: &std::path::Path) -> bool {
    path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("npz"))
}
