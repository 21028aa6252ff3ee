//! A checkpoint in the reference release's layout goes the whole way: import, eval, dream, reconstruct, record.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
#[path = "common/release.rs"]
mod release;

use std::path::Path;
use std::process::Command;

use common::{Scratch, iris, stderr};

fn stdout(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}\n{}", stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Lets an imported agent play, dream, be looked at and be recorded in a game.
fn walk(scratch: &Scratch, agent: &Path, game: &str) {
    let out = scratch.0.join(game.replace('/', "-"));
    let path = |name: &str| out.join(name);
    let run = |command: &str, arguments: &[&str]| {
        let mut iris = iris();
        iris.arg(command).arg(agent).args(["--env", game, "--device", "cpu"]).args(arguments);
        iris
    };

    let said = stdout(run("eval", &["--episodes", "1"]).arg("--json"));
    let result: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(result["env"], game, "{said}");
    let returns: Vec<f64> = serde_json::from_value(result["returns"].clone()).unwrap();
    assert!(returns.len() == 1 && result["mean"] == returns[0], "{said}");

    let arguments =
        ["--from", "1", "--context", "2", "--futures", "2", "--steps", "3", "--actions", "recorded"];
    let said = stdout(run("dream", &arguments).arg("--out").arg(path("dreams")));
    assert!(said.starts_with("what followed  ") && said.contains("future 2"), "{said}");
    for name in ["dreams/dream.png", "dreams/dream.gif"] {
        assert!(std::fs::metadata(path(name)).unwrap().len() > 100, "{name}");
    }

    let said = stdout(run("reconstruct", &["--frames", "2"]).arg("--out").arg(path("frames.png")));
    // Agent, L1, squared error, "9 of 512".
    let words: Vec<&str> = said.lines().nth(1).unwrap().split_whitespace().collect();
    let [absolute, squared, distinct] = [5, 4, 3].map(|i| words[words.len() - i].parse::<f64>().unwrap());
    assert!(
        (1.0..=32.0).contains(&distinct) && 0.0 < squared && squared < absolute && absolute < 1.0,
        "{said}"
    );
    assert!(std::fs::read(path("frames.png")).unwrap().starts_with(b"\x89PNG"));

    stdout(run("record", &["--steps", "4"]).arg("--out").arg(path("film.gif")));
    assert!(std::fs::read(path("film.gif")).unwrap().starts_with(b"GIF89a"));
}

/// The paper's networks with every entry of the release's files, perceptual network included.
#[test]
fn a_paper_size_checkpoint_is_used() {
    let scratch = Scratch::new("release");
    let (file, agent) = (scratch.0.join("last.pt"), scratch.0.join("agent"));
    release::write(&file, &release::paper_layout(3));
    let said = stdout(iris().arg("import").arg(&file).arg("--out").arg(&agent));
    assert!(said.starts_with("imported an agent with 3 actions"), "{said}");
    for line in [
        "4027523 parameters: 64 x 64 pixels to 16 of 512 tokens",
        "8447237 parameters: 10 layers of width 256 over 20 steps",
    ] {
        assert!(said.contains(line), "{said}");
    }
    assert!(said.contains("kept for the loss"), "{said}");
    for game in ["arcade/catch", "arcade/pong", "arcade/freeway"] {
        walk(&scratch, &agent, game);
    }
}

/// Smaller networks for games that are longer.
fn walk_small(game: &str, actions: usize) {
    let scratch = Scratch::new(&format!("release-{}", game.replace('/', "-")));
    let (file, agent) = (scratch.0.join("last.pt"), scratch.0.join("agent"));
    let mut config = agent::AgentConfig { actions, ..agent::AgentConfig::default() };
    let (tokenizer, world_model) = (&mut config.tokenizer, &mut config.world_model);
    (tokenizer.channels, tokenizer.groups, tokenizer.residual_blocks) = (4, 4, 1);
    (tokenizer.vocabulary, tokenizer.embedding) = (32, 8);
    (world_model.layers, world_model.width) = (1, 16);
    (config.actor_critic.channels, config.actor_critic.hidden) = (vec![4, 4, 4, 4], 8);
    release::write(&file, &release::layout_of(&config, &scratch.0));
    stdout(iris().arg("import").arg(&file).arg("--out").arg(&agent));
    walk(&scratch, &agent, game);
}

#[test]
fn a_small_checkpoint_is_used_in_one_more_game() {
    walk_small("arcade/breakout", 3);
}

#[cfg(feature = "atari")]
#[test]
fn checkpoints_are_used_in_three_atari_games() {
    for (game, actions) in [("atari/Breakout", 4), ("atari/Qbert", 6), ("atari/MsPacman", 9)] {
        walk_small(game, actions);
    }
}
