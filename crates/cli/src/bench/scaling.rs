//! `iris bench --scaling`: what a step costs if one thing about it changes.

use agent::{AgentConfig, Sees};
use anyhow::Result;
use engine::Device;

use super::{Bench, Load};
use crate::output::say;

/// What differs from the paper's agent.
struct Change {
    name: &'static str,
    make: fn(&mut AgentConfig, &mut Load),
    /// Which steps it touches: tokenizer, world model, behaviour.
    touches: [bool; 3],
}

const ALL: [bool; 3] = [true; 3];
const TOKENIZER: [bool; 3] = [true, false, true];
const WORLD_MODEL: [bool; 3] = [false, true, true];
const BEHAVIOUR: [bool; 3] = [false, false, true];

const CHANGES: [Change; 14] = [
    Change { name: "half the batch", make: |_, load| batch(load, 1, 2), touches: ALL },
    Change { name: "2 x the batch", make: |_, load| batch(load, 2, 1), touches: ALL },
    Change { name: "4 x the batch", make: |_, load| batch(load, 4, 1), touches: ALL },
    Change { name: "horizon 10", make: |_, load| load.horizon = 10, touches: BEHAVIOUR },
    Change { name: "horizon 40", make: |_, load| load.horizon = 40, touches: BEHAVIOUR },
    Change { name: "64 tokens per frame", make: |config, _| config.tokenizer.resolutions = 4, touches: ALL },
    Change { name: "32 channels", make: |config, _| config.tokenizer.channels = 32, touches: TOKENIZER },
    Change { name: "128 channels", make: |config, _| config.tokenizer.channels = 128, touches: TOKENIZER },
    Change { name: "width 128", make: |config, _| width(config, 128), touches: WORLD_MODEL },
    Change { name: "width 512", make: |config, _| width(config, 512), touches: WORLD_MODEL },
    Change { name: "5 layers", make: |config, _| config.world_model.layers = 5, touches: WORLD_MODEL },
    Change { name: "20 layers", make: |config, _| config.world_model.layers = 20, touches: WORLD_MODEL },
    Change {
        name: "10 steps of context",
        make: |config, _| config.world_model.steps = 10,
        touches: WORLD_MODEL,
    },
    Change {
        name: "a policy that sees codes",
        make: |config, _| config.actor_critic.sees = Sees::Codes,
        touches: BEHAVIOUR,
    },
];

fn batch(load: &mut Load, times: usize, by: usize) {
    for size in [&mut load.frames, &mut load.sequences, &mut load.dreams] {
        *size = *size * times / by;
    }
}

/// Heads keep their size.
fn width(config: &mut AgentConfig, width: usize) {
    let per_head = config.world_model.width / config.world_model.heads;
    config.world_model.width = width;
    config.world_model.heads = width / per_head;
}

/// Prints a Markdown table: milliseconds, and how many times the paper's.
pub fn run(device: &Device, repeats: usize) -> Result<()> {
    let Load { frames, sequences, dreams, horizon, .. } = Load::of(device);
    say!(
        "the paper's networks; {frames} frames, {sequences} sequences, {dreams} dreams of {horizon} steps\n"
    );
    say!("| | tokenizer | world model | behaviour |\n| --- | --- | --- | --- |");
    let paper = times(device, repeats, |_, _| (), ALL)?;
    say!("| as above | {} |", paper.map(|ms| format!("{ms:.1} ms")).join(" | "));
    for change in CHANGES {
        let times = times(device, repeats, change.make, change.touches)?;
        let cells: Vec<String> = times
            .iter()
            .zip(&paper)
            .map(
                |(ms, paper)| {
                    if ms.is_nan() { "=".into() } else { format!("{ms:.1} ms, {:.2} x", ms / paper) }
                },
            )
            .collect();
        say!("| {} | {} |", change.name, cells.join(" | "));
    }
    Ok(())
}

/// Milliseconds of the three steps, NaN for those that are not touched.
fn times(
    device: &Device,
    repeats: usize,
    change: fn(&mut AgentConfig, &mut Load),
    touches: [bool; 3],
) -> Result<[f64; 3]> {
    let mut times = [f64::NAN; 3];
    for (i, _) in touches.iter().enumerate().filter(|(_, touched)| **touched) {
        device.free_step_memory();
        let mut bench = Bench::new(device, repeats, false);
        change(&mut bench.config, &mut bench.load);
        times[i] = 1e3
            * match i {
                0 => bench.tokenizer(None)?,
                1 => bench.world_model()?,
                _ => bench.behaviour()?,
            };
    }
    Ok(times)
}
