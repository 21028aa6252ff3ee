//! `iris sweep` on tiny budgets: what is written down, pools that are stopped and killed, runs that fail, and bad input. GPUs and Slurm are in `sweep_places.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg(unix)]

mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use common::sweeps::{counts, expect_undisturbed, kill, new, run, run_folder, status, sweep};
use common::{SMALL, Scratch, assert_same_results, iris, stderr, train};

/// A pool and the lines it says.
fn start(folder: &Path, more: &[&str]) -> (Child, impl Iterator<Item = String> + use<>) {
    let mut child = sweep(&["run"], folder, more).stderr(Stdio::piped()).spawn().unwrap();
    let said = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    (child, said)
}

/// The process that a pool with one job has started.
fn child_of(pool: &Child) -> String {
    let children = format!("/proc/{0}/task/{0}/children", pool.id());
    std::fs::read_to_string(children).unwrap().split_whitespace().next().unwrap().to_string()
}

#[test]
fn a_sweep_is_written_down_once() {
    let scratch = Scratch::new("sweep-new");
    let folder = scratch.0.join("sweep");
    let arguments = ["--games", "catch,pong", "--seeds", "0..1", "epochs=2,3"];
    let made = sweep(&["new"], &folder, &arguments).output().unwrap();
    assert!(made.status.success(), "{}", stderr(&made));
    assert!(String::from_utf8_lossy(&made.stdout).contains("8 runs in "));
    let lines = std::fs::read_to_string(folder.join("runs.jsonl")).unwrap();
    let lines: Vec<&str> = lines.lines().collect();
    assert_eq!(
        (lines.len(), lines[3]),
        (
            8,
            r#"{"run":3,"env":"arcade/pong","seed":0,"overrides":["epochs=3"],"folder":"runs/epochs=3/arcade/pong/seed0"}"#
        )
    );
    assert_eq!(counts(&folder), [0, 0, 8, 0]);
    let words = String::from_utf8(sweep(&["status"], &folder, &[]).output().unwrap().stdout).unwrap();
    assert!(words.ends_with("\n0.0 run-hours so far\n"), "{words}");
    assert_eq!(status(&folder)["runs"][3]["epochs"], 3);

    // The same once more changes nothing; another one is refused, here and inside of it.
    let again = sweep(&["new"], &folder, &arguments).output().unwrap();
    assert!(again.status.success() && String::from_utf8_lossy(&again.stdout).contains("nothing was changed"));
    let refused = |folder: &Path, words: &[&str]| {
        let output = sweep(&["new"], folder, words).output().unwrap();
        let text = stderr(&output);
        assert!(output.status.code() == Some(1) && text.lines().count() == 1, "{text}");
        text
    };
    let other = refused(&folder, &["--games", "catch", "--seeds", "0"]);
    assert!(other.contains("holds another sweep, of 8 runs: choose another folder"), "{other}");
    let inside = refused(&folder.join("more"), &["--games", "catch"]);
    assert!(inside.contains("lies in the sweep"), "{inside}");
    for path in ["more", "more/../other", "../sweep/more"] {
        let mut relative = iris();
        relative.current_dir(&folder).args(["sweep", "new", path, "--games", "catch"]);
        let text = stderr(&relative.output().unwrap());
        assert!(text.contains(&format!("{path} lies in the sweep ")), "{text}");
    }
    let nowhere = scratch.0.join("nowhere");
    let unknown = refused(&nowhere, &["--games", "catch,brakout"]);
    assert!(
        unknown.contains("no game is called `brakout`. Did you mean") && unknown.contains("envs` lists"),
        "{unknown}"
    );
    let seeds = refused(&nowhere, &["--games", "catch", "--seeds", "4..0"]);
    assert_eq!(seeds, "error: seeds `4..0`: a range goes up, write 0..4\n");
    let preset = refused(&nowhere, &["--games", "catch", "--preset", "tini"]);
    assert!(preset.contains("no preset is called `tini`"), "{preset}");
    assert!(!nowhere.exists());
    let a_run = scratch.0.join("run");
    assert!(train(&a_run, &["epochs=1"]).status.success());
    assert!(refused(&a_run, &["--games", "catch"]).contains("holds a run or an agent"));

    // Files that were changed are named, by every command.
    let plan = std::fs::read_to_string(folder.join("sweep.toml")).unwrap();
    for (file, text, answer) in [
        ("runs.jsonl", lines.join("\n").replace("\"seed\":1", "\"seed\":2"), "line 5 of "),
        ("sweep.toml", plan.replace("seeds", "sedes"), "sweep.toml is no sweep: unknown field `sedes`"),
        (
            "sweep.toml",
            plan.replace("arcade/pong", "arcade/../../pong"),
            "sweep.toml is no sweep: no game is called",
        ),
        ("sweep.toml", "\0".into(), "sweep.toml is no sweep: "),
    ] {
        let whole = std::fs::read(folder.join(file)).unwrap();
        std::fs::write(folder.join(file), text).unwrap();
        for words in [&["status"][..], &["run"], &["slurm"]] {
            let output = sweep(words, &folder, &[]).output().unwrap();
            assert!(
                output.status.code() == Some(1) && stderr(&output).contains(answer),
                "{}",
                stderr(&output)
            );
            assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
        }
        std::fs::write(folder.join(file), whole).unwrap();
    }
    let none = sweep(&["status"], &scratch.0, &[]).output().unwrap();
    assert!(stderr(&none).contains("holds no sweep: make one with"), "{}", stderr(&none));
}

/// Two jobs, and the report of what they made.
#[test]
fn a_pool_trains_every_run_as_train_does() {
    let scratch = Scratch::new("sweep-pool");
    let folder = scratch.0.join("sweep");
    new(&folder, "0..2");
    let output = run(&folder, &["--jobs", "2"]);
    let text = stderr(&output);
    assert!(output.status.success() && text.contains("all 3 runs are done"), "{text}");
    assert_eq!(text.matches(" is done").count(), 3, "{text}");
    expect_undisturbed(&folder, 2);
    let all = status(&folder);
    assert!(all["done"] == 3 && all["run_hours"].as_f64().unwrap() > 0.0, "{all}");
    let words = String::from_utf8(sweep(&["status"], &folder, &[]).output().unwrap().stdout).unwrap();
    assert!(words.starts_with("3 runs: 3 done, 0 running, 0 waiting, 0 failed\n"), "{words}");
    // What is done is left alone.
    let again = run(&folder, &[]);
    assert!(again.status.success() && !stderr(&again).contains("begins"), "{}", stderr(&again));
    let mut report = iris();
    report.arg("report").arg(&folder).args(["--reps", "50", "--out"]).arg(scratch.0.join("report"));
    let report = report.output().unwrap();
    assert!(report.status.success(), "{}", stderr(&report));
    let page = std::fs::read_to_string(scratch.0.join("report/report.json")).unwrap();
    assert!(page.contains("arcade/catch"), "{page}");
}

/// A sweep that is planned anew in the same folder does not take over what the old one left.
#[test]
fn runs_of_another_plan_are_refused() {
    let scratch = Scratch::new("sweep-foreign");
    let folder = scratch.0.join("sweep");
    new(&folder, "0");
    let alone = run(&folder, &[]);
    assert!(alone.status.success() && stderr(&alone).contains("\nthe run is done. "), "{}", stderr(&alone));
    let plan = std::fs::read_to_string(folder.join("sweep.toml")).unwrap();
    for file in ["sweep.toml", "runs.jsonl"] {
        std::fs::remove_file(folder.join(file)).unwrap();
    }
    let again = |more: &[&str]| {
        sweep(&["new"], &folder, &["--games", "catch", "--seeds", "0"])
            .args(SMALL)
            .args(more)
            .output()
            .unwrap()
    };
    let other = again(&["agent.world_model.dropout=0.3"]);
    let text = stderr(&other);
    assert!(other.status.code() == Some(1) && text.lines().count() == 1, "{text}");
    assert!(
        text.contains("seed0 was begun with other settings than this sweep's: agent.world_model."),
        "{text}"
    );
    assert!(!folder.join("sweep.toml").exists());
    assert!(again(&[]).status.success());

    // The same by hand.
    std::fs::remove_file(folder.join("runs.jsonl")).unwrap();
    std::fs::write(folder.join("sweep.toml"), plan.replace("collection.steps=50", "collection.steps=60"))
        .unwrap();
    let answer =
        "was begun with other settings than this sweep's: collection.steps is 50, not 60. Move it away";
    for words in [&["run"][..], &["task"]] {
        let number = if words == ["task"] { &["0"][..] } else { &[] };
        let output = sweep(words, &folder, number).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert!(words == ["run"] || stderr(&output).contains(answer), "{}", stderr(&output));
    }
    assert!(status(&folder)["runs"][0]["reason"].as_str().unwrap().contains(answer));
    assert_eq!(counts(&folder), [0, 0, 0, 1]);
    expect_undisturbed(&folder, 0);
}

/// Runs with other settings are other agents.
#[test]
fn a_report_has_an_agent_per_variant() {
    let scratch = Scratch::new("sweep-variants");
    let folder = scratch.0.join("sweep");
    let mut made = sweep(&["new"], &folder, &["--games", "catch", "--seeds", "0"]);
    let made = made.args(SMALL).arg("actor_critic.schedule.learning_rate=0.0001,0.1").output().unwrap();
    assert!(made.status.success(), "{}", stderr(&made));
    let agents = |input: &Path| -> Vec<String> {
        let mut report = iris();
        report.arg("report").arg(input).args(["--reps", "50", "--out"]).arg(scratch.0.join("report"));
        let report = report.output().unwrap();
        assert!(report.status.success(), "{}", stderr(&report));
        let page = std::fs::read(scratch.0.join("report/report.json")).unwrap();
        let page: Value = serde_json::from_slice(&page).unwrap();
        let agents = page["agents"].as_array().unwrap();
        agents.iter().map(|agent| agent["name"].as_str().unwrap().to_string()).collect()
    };
    let names = ["0.0001", "0.1"].map(|rate| format!("actor_critic.schedule.learning_rate={rate}"));
    // One is done before the other has begun.
    assert!(sweep(&["task"], &folder, &["0"]).status().unwrap().success());
    assert_eq!(agents(&folder), names[..1]);
    assert!(run(&folder, &[]).status.success());
    assert_eq!(agents(&folder), names);
    assert_eq!(agents(&folder.join("runs")), names);
    assert_eq!(agents(&folder.join("runs").join(&names[1])).len(), 1);
}

/// A child is killed, the pool is stopped by Ctrl-C, and then killed itself.
#[cfg(target_os = "linux")]
#[test]
fn a_pool_that_is_killed_and_stopped_ends_with_the_same_bits() {
    let scratch = Scratch::new("sweep-kill");
    let folder = scratch.0.join("sweep");
    new(&folder, "0..3");
    let (mut pool, mut said) = start(&folder, &[]);
    assert!(said.any(|line| line.starts_with("run 0 (arcade/catch seed 0) begins")));
    kill("-KILL", &child_of(&pool));
    assert!(said.any(|line| line.starts_with("run 0") && line.ends_with("it is tried again")));
    assert!(said.any(|line| line.starts_with("run 1 (arcade/catch seed 1) begins")));
    kill("-INT", &pool.id().to_string());
    assert_eq!(pool.wait().unwrap().code(), Some(75));
    let last = said.last().unwrap();
    assert!(last.starts_with("stopped with 1 of 4 runs done."), "{last}");
    assert_eq!(counts(&folder), [1, 0, 3, 0]);

    let (mut pool, mut said) = start(&folder, &[]);
    assert!(said.any(|line| line.starts_with("run 2 (arcade/catch seed 2) begins")));
    kill("-KILL", &pool.id().to_string());
    pool.wait().unwrap();
    // What it had started stops by itself; the next pool waits for that, if it must.
    let output = run(&folder, &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(counts(&folder), [4, 0, 0, 0]);
    expect_undisturbed(&folder, 3);
}

#[test]
fn two_pools_share_a_sweep() {
    let scratch = Scratch::new("sweep-two");
    let folder = scratch.0.join("sweep");
    new(&folder, "0..3");
    let pools = [start(&folder, &["--jobs", "2"]), start(&folder, &["--jobs", "2"])];
    let mut done = 0;
    for (mut pool, said) in pools {
        let said: Vec<String> = said.collect();
        assert!(pool.wait().unwrap().success(), "{said:?}");
        done += said.iter().filter(|line| line.ends_with(") is done")).count();
    }
    assert_eq!(done, 4);
    expect_undisturbed(&folder, 3);
}

/// One run fails: the others go on, nothing is lost, and it is not tried again unless asked for.
#[cfg(target_os = "linux")]
#[test]
fn a_failed_run_is_recorded_and_tried_again_on_request() {
    let scratch = Scratch::new("sweep-failed");
    let folder = scratch.0.join("sweep");
    new(&folder, "0..1");
    let bad = run_folder(&folder, 0).join("replay");
    std::fs::create_dir_all(bad.parent().unwrap()).unwrap();
    std::fs::write(&bad, "").unwrap();
    let output = run(&folder, &[]);
    let text = stderr(&output);
    assert!(output.status.code() == Some(1) && text.contains("1 of 2 runs failed, 1 done"), "{text}");
    let all = status(&folder);
    assert_eq!(all["runs"][0]["state"], "failed");
    assert!(all["runs"][0]["reason"].as_str().unwrap().contains("seed0/replay: File exists"), "{all}");
    let words = String::from_utf8(sweep(&["status"], &folder, &[]).output().unwrap().stdout).unwrap();
    assert!(
        words.contains("    0  arcade/catch seed 0: failed after 0 of 4 epochs: cannot create the replay"),
        "{words}"
    );
    let again = run(&folder, &[]);
    assert!(again.status.code() == Some(1) && !stderr(&again).contains("begins"), "{}", stderr(&again));

    // As one element of an array it fails too.
    let task = sweep(&["task"], &folder, &["0"]).output().unwrap();
    let text = stderr(&task);
    assert!(task.status.code() == Some(1) && text.contains("seed0/replay: File exists"), "{text}");
    assert_eq!(counts(&folder), [1, 0, 0, 1]);
    std::fs::remove_file(&bad).unwrap();
    let output = run(&folder, &["--retry"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(counts(&folder), [2, 0, 0, 0]);
    expect_undisturbed(&folder, 1);
}

/// A full disk is no fault of the runs: nothing is recorded, and the same command goes on when there is room.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_stops_the_pool() {
    let scratch = Scratch::new("sweep-full");
    let folder = scratch.0.join("sweep");
    new(&folder, "0..1");
    let expect_full = |folder: &Path| {
        let output = run(folder, &["--jobs", "2"]);
        let text = stderr(&output);
        let last = text.lines().last().unwrap();
        let start = format!("error: the disk of {} is full (", folder.display());
        assert!(output.status.code() == Some(1) && last.starts_with(&start), "{text}");
        assert!(last.contains("No space left") && last.ends_with("the same command goes on"), "{text}");
    };
    let full = run_folder(&folder, 0).join("metrics.jsonl");
    std::fs::create_dir_all(full.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink("/dev/full", &full).unwrap();
    expect_full(&folder);
    assert_eq!(counts(&folder), [0, 0, 2, 0]);
    std::fs::remove_file(&full).unwrap();
    assert!(run(&folder, &[]).status.success());
    expect_undisturbed(&folder, 1);

    // A real one, where this may mount it.
    let disk = scratch.0.join("disk");
    std::fs::create_dir(&disk).unwrap();
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=24m", "none"]).arg(&disk).stderr(Stdio::null());
    if !mount.status().is_ok_and(|status| status.success()) {
        // Only root can.
        return;
    }
    let _unmount = Unmount(&disk);
    let folder = disk.join("sweep");
    new(&folder, "0");
    // As much as leaves room for a part of the run.
    let filler = disk.join("filler");
    for megabytes in [23, 20] {
        std::fs::write(&filler, vec![1; megabytes << 20]).unwrap();
        expect_full(&folder);
        assert_eq!(counts(&folder), [0, 0, 1, 0]);
    }
    std::fs::remove_file(&filler).unwrap();
    let output = run(&folder, &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_same_results(&scratch.0.join("sweep/runs/arcade/catch/seed0"), &run_folder(&folder, 0), "");
}

#[cfg(target_os = "linux")]
struct Unmount<'a>(&'a Path);

#[cfg(target_os = "linux")]
impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

/// Nothing can be written anywhere: the pool does not go through all runs.
#[test]
fn a_machine_on_which_every_run_fails_stops_the_pool() {
    let scratch = Scratch::new("sweep-machine");
    let folder = scratch.0.join("sweep");
    new(&folder, "0..4");
    std::fs::write(folder.join("runs"), "").unwrap();
    let output = run(&folder, &[]);
    let text = stderr(&output);
    assert!(output.status.code() == Some(1) && text.contains("3 runs failed one after the other"), "{text}");
    assert_eq!(counts(&folder), [0, 0, 2, 3]);
}

#[test]
fn a_task_is_one_run() {
    let scratch = Scratch::new("sweep-task");
    let folder = scratch.0.join("sweep");
    new(&folder, "0");
    let task = |number: &str| sweep(&["task"], &folder, &[number]).output().unwrap();
    let beyond = task("1");
    assert!(!beyond.status.success() && stderr(&beyond).contains("there is no run 1"), "{}", stderr(&beyond));
    let first = task("0");
    assert!(first.status.success(), "{}", stderr(&first));
    // It is over; and while another process has it, it is left alone.
    assert!(task("0").status.success());
    let lock = std::fs::File::open(run_folder(&folder, 0).join("lock")).unwrap();
    lock.lock().unwrap();
    let held = task("0");
    assert_eq!(held.status.code(), Some(75));
    assert!(stderr(&held).contains("is going on in another process"), "{}", stderr(&held));
    assert_eq!(counts(&folder), [0, 1, 0, 0]);
    drop(lock);
    expect_undisturbed(&folder, 0);
}
