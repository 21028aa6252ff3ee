//! What a sweep's folder says about its runs beside their own folders: logs, failures, stops.

use std::io::Write;
use std::path::PathBuf;

use agent::write_atomically;
use anyhow::{Context, Result};

use super::plan::Sweep;

impl Sweep {
    /// A file about a run, by its number.
    fn numbered(&self, folder: &str, run: usize, ending: &str) -> PathBuf {
        self.folder.join(folder).join(format!("{run:06}{ending}"))
    }

    /// What a run printed.
    pub fn log(&self, run: usize) -> PathBuf {
        self.numbered("logs", run, ".log")
    }

    /// Why a run failed.
    pub fn failure(&self, run: usize) -> Option<String> {
        let text = std::fs::read_to_string(self.numbered("failed", run, ".txt")).ok()?;
        Some(text.trim().to_string())
    }

    pub fn record_failure(&self, run: usize, reason: &str) -> Result<()> {
        let _ = std::fs::remove_file(self.numbered("logs", run, ".stops"));
        let path = self.numbered("failed", run, ".txt");
        std::fs::create_dir_all(self.folder.join("failed"))
            .with_context(|| format!("cannot create {}", self.folder.join("failed").display()))?;
        Ok(write_atomically(&path, format!("{reason}\n").as_bytes())?)
    }

    /// Counts stops of a run without a new epoch. After a failure it starts anew.
    pub fn count_stop(&self, run: usize, epoch: usize) -> Result<usize> {
        let path = self.numbered("logs", run, ".stops");
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let last = text.trim().split_once(' ').filter(|(at, _)| at.parse() == Ok(epoch));
        let stops = last.and_then(|(_, stops)| stops.parse::<usize>().ok()).unwrap_or(0) + 1;
        std::fs::create_dir_all(self.folder.join("logs"))?;
        write_atomically(&path, format!("{epoch} {stops}\n").as_bytes())?;
        Ok(stops)
    }

    /// Notes that from this epoch on a run has a GPU with so many sharers, itself among them, or none at all.
    pub fn record_sharers(&self, run: usize, epoch: usize, sharers: usize) -> std::io::Result<()> {
        std::fs::create_dir_all(self.folder.join("logs"))?;
        let path = self.numbered("logs", run, ".gpu");
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
        file.write_all(format!("{epoch} {sharers}\n").as_bytes())
    }

    /// (epoch, sharers from there on), in order.
    pub fn sharers(&self, run: usize) -> Vec<(usize, usize)> {
        let text = std::fs::read_to_string(self.numbered("logs", run, ".gpu")).unwrap_or_default();
        let parse = |line: &str| {
            let (epoch, sharers) = line.split_once(' ')?;
            Some((epoch.parse().ok()?, sharers.parse().ok()?))
        };
        text.lines().filter_map(parse).collect()
    }

    /// From now on a run has not failed.
    pub fn forget_failure(&self, run: usize) {
        let _ = std::fs::remove_file(self.numbered("failed", run, ".txt"));
    }
}
