//! `iris sweep` where others hand out the work: GPUs that are shared through MPS, and Slurm.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg(unix)]

mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use common::sweeps::{counts, fake, kill, new, run_folder, sweep};
use common::{Scratch, stderr};

/// A time limit shorter than an epoch: the run is not requeued forever.
#[test]
fn a_run_that_slurm_stops_again_and_again_fails() {
    let scratch = Scratch::new("sweep-stops");
    let folder = scratch.0.join("sweep");
    let arguments = ["--games", "catch", "--seeds", "0", "tokenizer.schedule.start_after=0"];
    let mut made = sweep(&["new"], &folder, &arguments);
    assert!(made.arg("tokenizer.schedule.first_updates=1000000").status().unwrap().success());
    let stopped = |restarts: Option<&str>| {
        let mut task = sweep(&["task"], &folder, &["0"]);
        restarts.into_iter().for_each(|count| _ = task.env("SLURM_RESTART_COUNT", count));
        let mut task = task.stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(task.stderr.take().unwrap()).lines().map_while(Result::ok);
        assert!(said.any(|line| line.starts_with("arcade/catch on ")));
        kill("-USR1", &task.id().to_string());
        let last = said.last().unwrap();
        (task.wait().unwrap().code(), last)
    };
    for restarts in [None, Some("1"), Some("2"), Some("3"), Some("4")] {
        assert_eq!(stopped(restarts).0, Some(75));
    }
    assert_eq!(counts(&folder), [0, 0, 1, 0]);
    let (code, last) = stopped(Some("5"));
    assert!(
        code == Some(1) && last.contains("Slurm stopped it 5 times before epoch 1 was finished"),
        "{last}"
    );
    assert_eq!(counts(&folder), [0, 0, 0, 1]);
    // Whoever starts it once more has given it more time.
    assert_eq!(stopped(Some("1")).0, Some(75));
    assert_eq!(counts(&folder), [0, 0, 1, 0]);
}

/// The daemon is a script, and behind it is no GPU.
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
        "if [ \"$1\" = -d ]; then echo \"start $CUDA_VISIBLE_DEVICES $CUDA_MPS_PIPE_DIRECTORY $(PATH=/usr/bin:/bin stat -c %a $CUDA_MPS_PIPE_DIRECTORY/..)\" >> {0}; else read word; echo \"$word $CUDA_MPS_PIPE_DIRECTORY\" >> {0}; fi",
        log.display()
    );
    let path = fake(&scratch, "nvidia-cuda-mps-control", &script);
    // Of a pool that was killed: no process has this number.
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let left = scratch.0.join(format!("iris-mps-{}-4999999-0", host.trim()));
    std::fs::create_dir(&left).unwrap();
    let output = said(&["--jobs", "2", "--gpus", "1"], &path);
    // No run falls back to the CPU.
    let expect_no_gpu = |output: &Output| {
        let text = stderr(output);
        // With support for GPUs there may be one.
        if cfg!(not(feature = "cuda")) {
            assert!(output.status.code() == Some(1) && text.contains("2 of 2 runs failed"), "{text}");
            assert_eq!(text.matches("failed: no GPU can be used").count(), 2, "{text}");
            assert!(!run_folder(&folder, 0).exists());
        }
    };
    expect_no_gpu(&output);
    let lines = std::fs::read_to_string(&log).unwrap();
    let lines: Vec<Vec<&str>> = lines.lines().map(|line| line.split(' ').collect()).collect();
    let words: Vec<&str> = lines.iter().map(|line| line[0]).collect();
    assert_eq!((words, lines[1][1]), (vec!["quit", "start", "quit"], "7"));
    assert_eq!(lines[1][3], "700");
    assert_eq!((lines[0][1], lines[1][2]), (left.join("pipe").to_str().unwrap(), lines[2][1]));
    assert!(!left.exists() && !Path::new(lines[1][2]).exists());

    // One run per GPU needs none.
    expect_no_gpu(&said(&["--jobs", "2", "--gpus", "0,1", "--retry"], &nothing));
    let broken = fake(&scratch, "nvidia-cuda-mps-control", "echo no such GPU; exit 1");
    let refused = said(&["--jobs", "2", "--gpus", "0"], &broken);
    assert!(stderr(&refused).contains("failed for GPU 5: no such GPU"), "{}", stderr(&refused));
}

#[test]
fn a_slurm_script_has_the_runs_that_are_left() {
    let scratch = Scratch::new("sweep-slurm");
    let folder = scratch.0.join("100%a sweep");
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
    // Slurm replaces what follows a percent sign.
    assert!(script.contains("/100%%a sweep/logs/slurm-%a.log\"\n"), "{script}");
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
    // Whether the first array is still there is squeue's to say.
    let again = slurm(&["--submit"], &path);
    assert!(
        stderr(&again).contains("warning: this sweep was submitted before, as job 7"),
        "{}",
        stderr(&again)
    );
    fake(&scratch, "squeue", "exit 1");
    let after = slurm(&["--submit"], &path);
    assert!(after.status.success() && !stderr(&after).contains("warning"), "{}", stderr(&after));
    let refused = slurm(&["--submit"], &fake(&scratch, "sbatch", "echo invalid partition >&2; exit 1"));
    assert!(stderr(&refused).contains("sbatch refused") && stderr(&refused).contains("invalid partition"));
    let own = slurm(&["--", "--array=0-3"], &nothing);
    assert!(stderr(&own).contains("--array belongs to the sweep"), "{}", stderr(&own));

    let large = scratch.0.join("large");
    let made = sweep(&["new"], &large, &["--games", "catch", "--seeds", "0..1001"]).output().unwrap();
    assert!(made.status.success(), "{}", stderr(&made));
    let beyond = sweep(&["slurm"], &large, &[]).output().unwrap();
    let text = stderr(&beyond);
    assert!(beyond.status.success() && text.contains("the array goes up to 1001"), "{text}");
}
