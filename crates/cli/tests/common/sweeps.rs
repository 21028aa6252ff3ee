//! What tests of sweeps share.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use super::{SMALL, Scratch, assert_same_results, iris, stderr, train};

pub fn sweep(words: &[&str], folder: &Path, more: &[&str]) -> Command {
    let mut command = iris();
    command.arg("sweep").args(words).arg(folder).args(more);
    command
}

/// A sweep of tiny runs of arcade/catch.
pub fn new(folder: &Path, seeds: &str) {
    let made = sweep(&["new"], folder, &["--games", "catch", "--seeds", seeds]).args(SMALL).output().unwrap();
    assert!(made.status.success(), "{}", stderr(&made));
}

pub fn run(folder: &Path, more: &[&str]) -> Output {
    sweep(&["run"], folder, more).output().unwrap()
}

pub fn status(folder: &Path) -> Value {
    let output = sweep(&["status"], folder, &["--json"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

pub fn counts(folder: &Path) -> [u64; 4] {
    let status = status(folder);
    ["done", "running", "waiting", "failed"].map(|state| status[state].as_u64().unwrap())
}

pub fn run_folder(folder: &Path, seed: u64) -> PathBuf {
    folder.join(format!("runs/arcade/catch/seed{seed}"))
}

/// The runs with seeds 0 to `last` are those of `iris train`, to the bit.
pub fn expect_undisturbed(folder: &Path, last: u64) {
    for seed in 0..=last {
        let whole = folder.with_extension(format!("whole{seed}"));
        assert!(train(&whole, &[&format!("seed={seed}")]).status.success());
        assert_same_results(&whole, &run_folder(folder, seed), &format!("with seed {seed}"));
    }
}

pub fn kill(signal: &str, process: &str) {
    assert!(Command::new("kill").args([signal, process]).status().unwrap().success());
}

/// A folder with a program of this name that runs a shell script.
pub fn fake(scratch: &Scratch, name: &str, script: &str) -> PathBuf {
    let folder = scratch.0.join("bin");
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    folder
}
