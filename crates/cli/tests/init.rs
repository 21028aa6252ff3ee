//! Runs that start from the networks of others.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::path::Path;

use common::{Scratch, iris, stderr, train};
use safetensors::SafeTensors;

/// The bytes of one parameter in a checkpoint.
fn parameter(run: &Path, epoch: usize, name: &str) -> Vec<u8> {
    let bytes = std::fs::read(run.join(format!("checkpoints/{epoch:06}/agent.safetensors"))).unwrap();
    SafeTensors::deserialize(&bytes).unwrap().tensor(name).unwrap().data().to_vec()
}

/// The tokenizer goes to another game and a smaller world model; the source is gone when the run is continued.
#[test]
fn a_tokenizer_moves_to_another_game() {
    let scratch = Scratch::new("init");
    let (source, run) = (scratch.0.join("source"), scratch.0.join("run"));
    // Without an evaluation there is none among the metrics.
    let short = ["epochs=1", "evaluation.final_episodes=0"];
    let first = train(&source, &short);
    assert!(first.status.success(), "{}", stderr(&first));
    assert!(!std::fs::read_to_string(source.join("metrics.jsonl")).unwrap().contains("evaluation"));

    let from = source.to_str().unwrap();
    let game = [
        "--env",
        "arcade/breakout",
        "--seed",
        "5",
        "--init",
        from,
        "tokenizer.schedule.start_after=9",
        "agent.world_model.width=32",
    ];
    let refused = train(&run, &[&short[..], &game].concat());
    let said = stderr(&refused);
    assert!(
        !refused.status.success() && said.contains("`transformer.blocks.0.ln1.weight` has shape [64] in "),
        "{said}"
    );
    assert!(said.contains("leave the world_model out of init.parts"), "{said}");

    let accumulate = ["world_model.schedule.accumulate=2", "actor_critic.schedule.accumulate=2"];
    let parts = ["--init-parts", "tokenizer", "epochs=2", "evaluation.final_episodes=0"];
    let begun = train(&run, &[&game[..], &parts, &accumulate].concat());
    let said = stderr(&begun);
    assert!(
        begun.status.success() && said.contains(&format!("starts from {from} (tokenizer; CRC-32 ")),
        "{said}"
    );
    let codebook = "tokenizer.embedding.weight";
    assert!(parameter(&run, 2, codebook) == parameter(&source, 1, codebook));
    let policy = "actor_critic.conv1.weight";
    assert!(parameter(&run, 1, policy) != parameter(&source, 1, policy));
    let config = std::fs::read_to_string(run.join("config.toml")).unwrap();
    assert!(config.contains("parts = \"tokenizer\"\n") && !config.contains("crc32 = \"\""), "{config}");

    // Its config starts the same run again, as long as the source is the same.
    let again = scratch.0.join("again");
    let repeat = || {
        let mut command = iris();
        command.args(["train", "--config"]).arg(run.join("config.toml")).arg("--out").arg(&again);
        command.output().unwrap()
    };
    assert!(
        iris().args(["train", "--resume"]).arg(&source).arg("epochs=2").output().unwrap().status.success()
    );
    let said = stderr(&repeat());
    assert!(said.contains("they have changed since"), "{said}");
    std::fs::remove_dir_all(&source).unwrap();
    let said = stderr(&repeat());
    assert!(said.contains("init.from: there is no folder"), "{said}");
    let resumed = iris().args(["train", "--resume"]).arg(&run).arg("epochs=3").output().unwrap();
    assert!(resumed.status.success() && !stderr(&resumed).contains("warning"), "{}", stderr(&resumed));
    assert!(parameter(&run, 3, codebook) == parameter(&run, 2, codebook));
}
