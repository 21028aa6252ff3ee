//! Runs that are in a sweep's folder already: those of another plan are refused, not adopted.

use std::path::{Component, Path, PathBuf};

use agent::train::{Run, TrainConfig};
use anyhow::{Context, Result, bail};

use super::plan::{Planned, Sweep};
use crate::config::{changed, combine};
use crate::train::go_on::differences;

/// Why a run that is in a folder is not the planned one. What its preset said does not matter: a newer program may have another.
pub fn is_foreign(folder: &Path, planned: &Planned, config: &TrainConfig) -> Result<Option<String>> {
    let asked = changed(config, &planned.settings())?;
    describe(folder, config, asked)
}

/// Refuses a new plan for a folder that holds runs of another one.
pub fn check_runs(sweep: &Sweep) -> Result<()> {
    for planned in &sweep.runs {
        let folder = sweep.run_folder(planned);
        let Ok(run) = Run::glance(&folder, |_| ()) else { continue };
        let mut asked = combine(&sweep.plan.preset, None, &planned.settings())?;
        // Only the game knows it.
        asked.agent.actions = run.config.agent.actions;
        if let Some(reason) = describe(&folder, &run.config, asked)? {
            bail!("{reason}");
        }
    }
    Ok(())
}

/// A run may have been made longer.
fn describe(folder: &Path, config: &TrainConfig, asked: TrainConfig) -> Result<Option<String>> {
    let epochs = asked.epochs.max(config.epochs);
    let found = differences(config, TrainConfig { epochs, ..asked })?;
    let reason = |found| {
        format!(
            "the run in {} was begun with other settings than this sweep's: {found}. Move it away, or choose another folder for the sweep",
            folder.display()
        )
    };
    Ok(found.map(reason))
}

/// The sweep that a folder lies in.
pub fn enclosing(folder: &Path, file: &str) -> Result<Option<PathBuf>> {
    let path = std::path::absolute(folder).with_context(|| format!("cannot find {}", folder.display()))?;
    let path = without_dots(&path);
    Ok(path.ancestors().skip(1).find(|above| above.join(file).is_file()).map(Path::to_path_buf))
}

/// A path without `..`: the folder need not exist.
fn without_dots(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => _ = plain.pop(),
            part => plain.push(part),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lose_their_dots() {
        assert_eq!(without_dots(Path::new("/a/b/../../c/./d")), Path::new("/c/d"));
        assert_eq!(without_dots(Path::new("/../a")), Path::new("/a"));
    }
}
