//! `iris doctor`, `iris selftest` and `--device` where no GPU can be used.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Scratch, iris, stderr, train};

/// The one thing to do about it, in this build.
fn advice(text: &str) -> bool {
    match cfg!(feature = "cuda") {
        false => text.contains("this build has no GPU support. Build with --features cuda"),
        true => ["install", "nvidia-smi"].iter().any(|word| text.contains(word)),
    }
}

#[test]
fn the_doctor_finds_the_cpu_well_and_says_why_there_is_no_gpu() {
    let output = iris().arg("doctor").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    let about = |name: &str| {
        let line = text.lines().find(|line| line.split_whitespace().next() == Some(name));
        line.unwrap_or_else(|| panic!("no line about {name} in {text}"))
    };
    assert!(about("iris").contains(env!("CARGO_PKG_VERSION")), "{text}");
    let cores = std::thread::available_parallelism().unwrap();
    assert!(about("CPU").contains(&format!("{cores} core")), "{text}");
    assert!(about("GPU").contains("no GPU can be used: ") && advice(about("GPU")), "{text}");
    match cfg!(feature = "atari") {
        true => assert!(about("Atari").contains("26 of 26 games start"), "{text}"),
        false => assert!(about("Atari").contains("build with --features atari"), "{text}"),
    }
    assert!(text.contains("ok: the same to the bit as on one thread"), "{text}");
}

#[test]
fn the_cpu_passes_its_self_test() {
    let output = iris().args(["selftest", "--threads", "3"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("3 threads"), "{text}");
    assert!(text.contains("ok: the same to the bit as on one thread"), "{text}");
}

#[test]
fn a_gpu_that_is_not_there_is_refused_and_nothing_is_written() {
    let scratch = Scratch::new("no-gpu");
    let run = scratch.0.join("run");
    let refused = |output: std::process::Output| {
        let text = stderr(&output);
        assert!(!output.status.success() && text.lines().count() == 1, "{text}");
        assert!(text.starts_with("error: no GPU can be used: ") && advice(&text), "{text}");
        assert!(text.contains("; --device cpu needs no GPU"), "{text}");
    };
    refused(train(&run, &["--device", "cuda"]));
    assert!(!run.exists());
    refused(iris().args(["selftest", "--device", "cuda", "--precision", "f32"]).output().unwrap());

    let output = train(&run, &["--device", "tpu"]);
    let text = stderr(&output);
    assert!(!output.status.success() && !run.exists(), "{text}");
    assert!(text.contains("invalid value 'tpu' for '--device") && text.contains("auto, cuda, cpu"), "{text}");
}

#[test]
fn the_device_is_said_at_the_start_and_is_no_part_of_the_run() {
    let scratch = Scratch::new("device");
    let run = scratch.0.join("run");
    let output = train(&run, &["epochs=2", "--device", "cpu", "--threads", "2"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let first = format!("arcade/catch on the CPU (2 threads), in {}", run.display());
    assert_eq!(stderr(&output).lines().next(), Some(first.as_str()));
    let config = std::fs::read_to_string(run.join("config.toml")).unwrap();
    assert!(!config.contains("device") && !config.contains("precision"), "{config}");

    let resumed = iris()
        .args(["train", "--device", "auto", "--precision", "f32", "--resume"])
        .arg(&run)
        .output()
        .unwrap();
    assert!(resumed.status.success(), "{}", stderr(&resumed));
    let output = iris().arg("eval").arg(&run).args(["--episodes", "1", "--device", "cpu"]).output().unwrap();
    assert!(output.status.success() && stderr(&output).starts_with("arcade/catch on the CPU ("));
}
