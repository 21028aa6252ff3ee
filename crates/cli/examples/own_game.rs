//! A game of one's own with the whole of iris around it: `cargo run --release --example own_game -- train --env my/lamp`.

use std::sync::Arc;

use envs::{Env, EnvError, Game, Random, Step};

/// A lamp lights one of four corners; name the corner before the eight steps are over.
#[derive(Default)]
struct Lamp {
    corner: usize,
    steps: usize,
}

impl Env for Lamp {
    fn action_names(&self) -> Vec<String> {
        ["top left", "top right", "bottom left", "bottom right"].map(String::from).to_vec()
    }

    fn frame_size(&self) -> (usize, usize) {
        (16, 16) // any size: frames are resized to what the networks see
    }

    fn reset(&mut self, seed: u64) -> Result<(), EnvError> {
        *self = Lamp { corner: Random::new(seed).below(4), steps: 0 };
        Ok(())
    }

    fn step(&mut self, action: usize) -> Result<Step, EnvError> {
        let reward = if action == self.corner { 1.0 } else { -1.0 };
        self.corner = (self.corner + 1) % 4;
        self.steps += 1;
        Ok(Step { reward, terminated: false, truncated: self.steps == 8 })
    }

    fn render(&self, frame: &mut [u8]) {
        for (i, pixel) in frame.as_chunks_mut::<3>().0.iter_mut().enumerate() {
            let lit = (i / 16 / 8 * 2 + i % 16 / 8) == self.corner;
            *pixel = if lit { [250, 220, 90] } else { [30, 30, 60] };
        }
    }
}

fn main() -> std::process::ExitCode {
    envs::register(Game {
        name: "my/lamp".into(),
        rules: "Name the corner that is lit. +1 or -1 per step; eight steps.".into(),
        random: -4.0,
        skilled: 8.0,
        yardstick: "perfect".into(),
        make: Arc::new(|_| Ok(Box::new(Lamp::default()))),
    });
    iris::main()
}
