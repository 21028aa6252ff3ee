//! `iris sweep` on tiny budgets: what is written down, pools that are stopped and killed, runs that fail, and bad input.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg(unix)]

mod common;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use common::{SMALL, Scratch, iris, results, stderr, train};
use serde_json::Value;

fn sweep(words: &[&str], folder: &Path, more: &[&str]) -> Command {
    let mut command = iris();
    command.arg("sweep").args(words).arg(folder).args(more);
    command
}

/// A sweep of tiny runs of arcade/catch.
fn new(folder: &Path, seeds: &str) {
    let made = sweep(&["new"], folder, &["--games", "catch", "--seeds", seeds]).args(SMALL).output().unwrap();
    assert!(made.status.success(), "{}", stderr(&made));
}

fn run(folder: &Path, more: &[&str]) -> Output {
    sweep(&["run"], folder, more).output().unwrap()
}

fn status(folder: &Path) -> Value {
    let output = sweep(&["status"], folder, &["--json"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn counts(folder: &Path) -> [u64; 4] {
    let status = status(folder);
    ["done", "running", "waiting", "failed"].map(|state| status[state].as_u64().unwrap())
}

fn run_folder(folder: &Path, seed: u64) -> PathBuf {
    folder.join(format!("runs/arcade/catch/seed{seed}"))
}

/// The runs with seeds 0 to `last` are those of `iris train`, to the bit.
fn expect_undisturbed(folder: &Path, last: u64) {
    for seed in 0..=last {
        let whole = folder.with_extension(format!("whole{seed}"));
        assert!(train(&whole, &[&format!("seed={seed}")]).status.success());
        for ((name, expected), (_, got)) in
            results(&whole).into_iter().zip(results(&run_folder(folder, seed)))
        {
            assert!(expected == got, "{name} of seed {seed} differs");
        }
    }
}

/// A pool and the lines it says.
fn start(folder: &Path, more: &[&str]) -> (Child, impl Iterator<Item = String> + use<>) {
    let mut child = sweep(&["run"], folder, more).stderr(Stdio::piped()).spawn().unwrap();
    let said = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    (child, said)
}

fn kill(signal: &str, process: &str) {
    assert!(Command::new("kill").args([signal, process]).status().unwrap().success());
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
    assert!(run(&folder, &[]).status.success());
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

/// A full disk under one run: the others go on, nothing is lost, and it is not tried again unless asked for.
#[cfg(target_os = "linux")]
#[test]
fn a_failed_run_is_recorded_and_tried_again_on_request() {
    let scratch = Scratch::new("sweep-failed");
    let folder = scratch.0.join("sweep");
    new(&folder, "0..1");
    let full = run_folder(&folder, 0).join("metrics.jsonl");
    std::fs::create_dir_all(full.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink("/dev/full", &full).unwrap();
    let output = run(&folder, &[]);
    let text = stderr(&output);
    assert!(output.status.code() == Some(1) && text.contains("1 of 2 runs failed, 1 are done"), "{text}");
    let all = status(&folder);
    assert_eq!(all["runs"][0]["state"], "failed");
    assert!(all["runs"][0]["reason"].as_str().unwrap().contains("No space left"), "{all}");
    let words = String::from_utf8(sweep(&["status"], &folder, &[]).output().unwrap().stdout).unwrap();
    assert!(
        words.contains("    0  arcade/catch seed 0: failed after 0 of 4 epochs: cannot save the run"),
        "{words}"
    );
    let again = run(&folder, &[]);
    assert!(again.status.code() == Some(1) && !stderr(&again).contains("begins"), "{}", stderr(&again));

    // As one element of an array it fails too, now because it cannot go on.
    let task = sweep(&["task"], &folder, &["0"]).output().unwrap();
    let text = stderr(&task);
    assert!(
        task.status.code() == Some(1) && text.contains("metrics.jsonl: it is not a regular file"),
        "{text}"
    );
    assert_eq!(counts(&folder), [1, 0, 0, 1]);
    std::fs::remove_file(&full).unwrap();
    let output = run(&folder, &["--retry"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(counts(&folder), [2, 0, 0, 0]);
    expect_undisturbed(&folder, 1);
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

/// A folder with a program of this name that runs a shell script.
fn fake(scratch: &Scratch, name: &str, script: &str) -> PathBuf {
    let folder = scratch.0.join("bin");
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

/// No GPU is there, whatever the test says: the daemon is looked at, and that no run falls back to the CPU.
#[cfg(target_os = "linux")]
#[test]
fn several_runs_on_one_gpu_have_a_daemon() {
    let scratch = Scratch::new("sweep-mps");
    let folder = scratch.0.join("sweep");
    new(&folder, "0..1");
    let log = scratch.0.join("mps.log");
    let said = |words: &[&str], path: &Path| {
        let mut command = sweep(&["run"], &folder, words);
        command.env("PATH", path).env("CUDA_VISIBLE_DEVICES", "5,7").env("TMPDIR", &scratch.0);
        command.output().unwrap()
    };
    let nothing = scratch.0.join("nothing");
    let missing = said(&["--jobs", "2", "--gpus", "1"], &nothing);
    let text = stderr(&missing);
    assert!(missing.status.code() == Some(1) && text.lines().count() == 1, "{text}");
    assert!(
        text.contains("nvidia-cuda-mps-control is not on the PATH") && !folder.join("logs").exists(),
        "{text}"
    );
    let absent = said(&["--gpus", "2"], &nothing);
    assert!(
        stderr(&absent).contains("there is no GPU 2: CUDA_VISIBLE_DEVICES is `5,7`"),
        "{}",
        stderr(&absent)
    );

    let script = format!(
        "if [ \"$1\" = -d ]; then echo \"start $CUDA_VISIBLE_DEVICES $CUDA_MPS_PIPE_DIRECTORY\" >> {0}; else read word; echo \"$word $CUDA_MPS_PIPE_DIRECTORY\" >> {0}; fi",
        log.display()
    );
    let path = fake(&scratch, "nvidia-cuda-mps-control", &script);
    // Of a pool that was killed: no process has this number.
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let left = scratch.0.join(format!("iris-mps-{}-4999999-0", host.trim()));
    std::fs::create_dir(&left).unwrap();
    let output = said(&["--jobs", "2", "--gpus", "1"], &path);
    let text = stderr(&output);
    assert!(output.status.code() == Some(1) && text.contains("2 of 2 runs failed"), "{text}");
    assert_eq!(text.matches("failed: no GPU can be used").count(), 2, "{text}");
    assert!(!run_folder(&folder, 0).exists());
    let lines = std::fs::read_to_string(&log).unwrap();
    let lines: Vec<Vec<&str>> = lines.lines().map(|line| line.split(' ').collect()).collect();
    let words: Vec<&str> = lines.iter().map(|line| line[0]).collect();
    assert_eq!((words, lines[1][1]), (vec!["quit", "start", "quit"], "7"));
    assert_eq!((lines[0][1], lines[1][2]), (left.join("pipe").to_str().unwrap(), lines[2][1]));
    assert!(!left.exists() && !Path::new(lines[1][2]).exists());

    // One run per GPU needs none.
    let alone = said(&["--jobs", "2", "--gpus", "0,1", "--retry"], &nothing);
    assert!(stderr(&alone).contains("failed: no GPU can be used"), "{}", stderr(&alone));
    let broken = fake(&scratch, "nvidia-cuda-mps-control", "echo no such GPU; exit 1");
    let refused = said(&["--jobs", "2", "--gpus", "0"], &broken);
    assert!(stderr(&refused).contains("failed for GPU 5: no such GPU"), "{}", stderr(&refused));
}

#[test]
fn a_slurm_script_has_the_runs_that_are_left() {
    let scratch = Scratch::new("sweep-slurm");
    let folder = scratch.0.join("sweep");
    new(&folder, "0..3");
    assert!(sweep(&["task"], &folder, &["1"]).output().unwrap().status.success());
    let slurm =
        |words: &[&str], path: &Path| sweep(&["slurm"], &folder, words).env("PATH", path).output().unwrap();
    let nothing = scratch.0.join("nothing");
    let missing = slurm(
        &["--submit", "--at-once", "2", "--", "--gres=gpu:1", "-p", "gpu", "--signal=USR1@60"],
        &nothing,
    );
    let text = stderr(&missing);
    assert!(missing.status.code() == Some(1) && text.contains("sbatch is not on the PATH"), "{text}");
    let script = std::fs::read_to_string(folder.join("sweep.sbatch")).unwrap();
    for line in
        ["--array=0,2-3%2", "--requeue", "--open-mode=append", "--gres=gpu:1", "-p gpu", "--signal=USR1@60"]
    {
        assert!(script.contains(&format!("\n#SBATCH {line}\n")), "{line} in {script}");
    }
    assert!(
        !script.contains("USR1@300") && script.contains(" \"$SLURM_ARRAY_TASK_ID\" --device \"$device\""),
        "{script}"
    );
    let syntax = Command::new("bash").arg("-n").arg(folder.join("sweep.sbatch")).output().unwrap();
    assert!(syntax.status.success(), "{}", stderr(&syntax));

    // A job with a GPU computes there, unless it was told not to.
    fake(&scratch, "srun", "echo \"$@\" $SRUN_CPUS_PER_TASK");
    let path = format!("{}:{}", scratch.0.join("bin").display(), std::env::var("PATH").unwrap());
    let says = |variable: &str, value: &str| {
        let mut job = Command::new("bash");
        job.arg(folder.join("sweep.sbatch")).env_clear().env("PATH", &path);
        let said = job.env("SLURM_ARRAY_TASK_ID", "2").env(variable, value).output().unwrap().stdout;
        String::from_utf8(said).unwrap()
    };
    for (variable, value, device) in [
        ("CUDA_VISIBLE_DEVICES", "", "auto"),
        ("CUDA_VISIBLE_DEVICES", "NoDevFiles", "auto"),
        ("CUDA_VISIBLE_DEVICES", "0", "cuda"),
        ("SLURM_JOB_GPUS", "3", "cuda"),
    ] {
        let said = says(variable, value);
        assert!(
            said.contains(&format!(" 2 --device {device} --precision bf16")),
            "{variable}={value}: {said}"
        );
    }
    assert!(says("SLURM_CPUS_PER_TASK", "6").ends_with(" 6\n"));
    slurm(&["--device", "cpu"], &nothing);
    assert!(says("SLURM_JOB_GPUS", "3").contains(" 2 --device cpu "));

    let path = fake(&scratch, "sbatch", "echo Submitted batch job 7");
    let submitted = slurm(&["--submit"], &path);
    assert!(String::from_utf8_lossy(&submitted.stdout).ends_with("Submitted batch job 7\n"));
    let refused = slurm(&["--submit"], &fake(&scratch, "sbatch", "echo invalid partition >&2; exit 1"));
    assert!(stderr(&refused).contains("sbatch refused") && stderr(&refused).contains("invalid partition"));
    let own = slurm(&["--", "--array=0-3"], &nothing);
    assert!(stderr(&own).contains("--array belongs to the sweep"), "{}", stderr(&own));
}
