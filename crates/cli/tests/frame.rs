//! The family of world models that predict whole frames, through the real binary.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Output, Stdio};

use common::{SMALL, Scratch, assert_same_results, iris, stderr, train};

/// What makes the default agent one of this family.
const FRAME: [&str; 14] = [
    "agent.tokenizer.kind=fsq",
    "agent.tokenizer.channels=8",
    "agent.tokenizer.vocabulary=512",
    "agent.tokenizer.embedding=3",
    "agent.world_model.kind=frame",
    "agent.world_model.patch=2",
    "agent.world_model.context=1",
    "agent.world_model.width=32",
    "agent.actor_critic.sees=codes",
    "agent.actor_critic.channels=[8, 8]",
    "agent.actor_critic.previous_action=true",
    "agent.actor_critic.dense=16",
    "actor_critic.horizon=7",
    "evaluation.losses=true",
];

#[test]
fn a_killed_run_continues_to_the_same_bits() {
    let scratch = Scratch::new("frame-kill");
    let (whole, killed) = (scratch.0.join("whole"), scratch.0.join("killed"));
    let output = train(&whole, &FRAME);
    assert!(output.status.success(), "{}", stderr(&output));
    let mut command = iris();
    command.arg("train").args(SMALL).args(FRAME).arg("--out").arg(&killed).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.starts_with("epoch 2/4")));
    child.kill().unwrap();
    child.wait().unwrap();
    let resumed = iris().args(["train", "--threads", "1", "--resume"]).arg(&killed).output().unwrap();
    assert!(resumed.status.success(), "{}", stderr(&resumed));
    assert_same_results(&whole, &killed, "");
}

#[test]
fn every_command_takes_the_agent_or_says_why_not() {
    let scratch = Scratch::new("frame-commands");
    let run = scratch.0.join("run");
    assert!(train(&run, &FRAME).status.success());
    let to = |name: &str| scratch.0.join(name);
    let done = |arguments: &[&str], agent: &Path, out: Option<&str>| -> Output {
        let mut command = iris();
        command.args(&arguments[..1]).arg(agent).args(&arguments[1..]);
        out.into_iter().for_each(|name| _ = command.arg("--out").arg(to(name)));
        command.output().unwrap()
    };
    for (arguments, out) in [
        (&["eval", "--episodes", "2"][..], None),
        (&["dream"], Some("dream")),
        (&["dream", "--test", "--context", "2", "--actions", "recorded"], Some("again")),
        (&["dream", "--steps", "20"], Some("long")),
        (&["record"], Some("game.gif")),
        (&["reconstruct"], Some("kept.png")),
        (&["export-episodes"], Some("episodes.npz")),
    ] {
        let output = done(arguments, &run, out);
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    }
    let hub = to("hub");
    let output = iris().arg("export").arg(&run).arg("--hub").arg(&hub).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let output = done(&["eval", "--episodes", "2", "--env", "arcade/catch"], &hub, None);
    assert!(output.status.success(), "{}", stderr(&output));
    let refused = done(&["export"], &run, Some("last.safetensors"));
    let said = stderr(&refused);
    assert!(!refused.status.success() && said.lines().count() == 1, "{said}");
    assert!(said.contains("tokenizer.kind other than \"vq\""), "{said}");
}

#[test]
fn sizes_that_do_not_fit_are_named() {
    let scratch = Scratch::new("frame-sizes");
    for (setting, found) in [
        ("agent.tokenizer.vocabulary=500", "agent.tokenizer.vocabulary is 500, which is no power"),
        (
            "agent.tokenizer.attention_sizes=[4]",
            "agent.tokenizer.attention_sizes is set, which the plain networks",
        ),
        ("agent.world_model.patch=3", "agent.world_model.patch is 3, which does not divide"),
        ("agent.world_model.kind=token", "agent.world_model.patch is 2, but must be 1"),
        (
            "agent.world_model.context=3",
            "agent.world_model.context is 3, but must be at most actor_critic.burn_in",
        ),
        (
            "actor_critic.horizon=8",
            "from 2 to agent.world_model.steps less agent.world_model.context, which is 7",
        ),
    ] {
        let output = train(&scratch.0.join("run"), &[&FRAME[..], &[setting]].concat());
        let said = stderr(&output);
        assert!(!output.status.success() && said.contains(found), "{setting}: {said}");
    }
}
