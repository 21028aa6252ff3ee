//! Options beside the paper's agent: all of them in one tiny run, which every command understands or refuses.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Output, Stdio};

use common::{SMALL, Scratch, assert_same_results, iris, stderr, train};

const OPTIONS: [&str; 8] = [
    "agent.actor_critic.sees=codes",
    "agent.actor_critic.previous_action=true",
    "agent.actor_critic.values=symlog-bins",
    "agent.actor_critic.channels=[8, 8]",
    "agent.actor_critic.skip=false",
    "actor_critic.returns.scale=percentiles",
    "replay.sampling=steps",
    "collection.envs=2",
];

fn on(run: &Path, command: &str, arguments: &[&str]) -> Output {
    iris().arg(command).arg(run).args(arguments).output().unwrap()
}

fn succeeded(output: Output) {
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn a_run_with_every_option_is_continued_to_the_same_bits_and_looked_at() {
    let scratch = Scratch::new("options");
    let (whole, killed) = (scratch.0.join("whole"), scratch.0.join("killed"));
    succeeded(train(&whole, &OPTIONS));
    for epochs_before in [1, 3] {
        let _ = std::fs::remove_dir_all(&killed);
        let mut command = iris();
        command.arg("train").args(SMALL).args(OPTIONS).arg("--out").arg(&killed).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let announced = format!("epoch {epochs_before}/4");
        let said = BufReader::new(child.stderr.take().unwrap()).lines();
        assert!(said.map_while(Result::ok).any(|line| line.starts_with(&announced)));
        child.kill().unwrap();
        child.wait().unwrap();
        succeeded(iris().args(["train", "--threads", "1", "--resume"]).arg(&killed).output().unwrap());
        assert_same_results(&whole, &killed, &format!("after being killed in epoch {}", epochs_before + 1));
    }
    // What returns are divided by is part of the checkpoint; a run without it has the files that it always had.
    let optimisers = std::fs::read(whole.join("checkpoints/000004/optimisers.safetensors")).unwrap();
    let header = String::from_utf8_lossy(&optimisers[8..2000]).into_owned();
    assert!(header.contains("actor_critic.return_range"), "{header}");

    let file = |name: &str| scratch.0.join(name).to_str().unwrap().to_string();
    succeeded(on(&whole, "eval", &["--episodes", "2"]));
    succeeded(on(&whole, "dream", &["--out", &file("dream")]));
    succeeded(on(&whole, "dream", &["--test", "--context", "2", "--out", &file("context")]));
    succeeded(on(&whole, "record", &["--steps", "5", "--header", "--out", &file("game.gif")]));
    let checkpoint = whole.join("checkpoints/000004");
    let refused = on(&checkpoint, "export", &["--out", &file("out.safetensors")]);
    assert!(!refused.status.success() && stderr(&refused).lines().count() == 1, "{}", stderr(&refused));
}

#[test]
fn values_that_no_run_can_have_are_refused() {
    let scratch = Scratch::new("no-options");
    for (setting, answer) in [
        ("agent.actor_critic.sees=pixels", "expected `frames` or `codes`"),
        ("agent.actor_critic.channels=[]", "but needs at least one"),
        ("replay.sampling=luck", "expected one of `episodes`, `steps`, `recent`"),
        ("agent.actor_critic.values=bins", "expected `mse` or `symlog-bins`"),
    ] {
        let refused = train(&scratch.0.join("run"), &[setting]);
        let said = stderr(&refused);
        assert!(!refused.status.success() && said.contains(answer), "{setting}: {said}");
    }
    let many = ["actor_critic.returns.scale=percentiles", "actor_critic.schedule.batch=1000"];
    let said = stderr(&train(&scratch.0.join("run"), &many));
    assert!(said.contains("percentiles of at most 4096 returns, but") && said.contains("is 7000"), "{said}");
}
