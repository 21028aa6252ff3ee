//! Score files and outputs of `iris eval --json`. Whatever is accepted becomes a report.
#![no_main]

use report::{Rng, Settings};

fuzz::target! {
    seeds: vec![
        br#"{"Breakout": [1.5, 30, -2], "Pong": [20.0, 21.0, 3], "MsPacman": [400]}"#.to_vec(),
        br#"{"env": "arcade/catch", "mean": 0.5, "progress": 0.75, "run": "runs/catch"}
{"env": "atari/Breakout", "mean": 12.5}"#
            .to_vec(),
    ],
    factor: 256,
    constant: 1 << 20,
    |data: &[u8]| {
        let settings = Settings { replicates: 1, seed: 1, rng: Rng::Fast };
        let Ok(report) = report::fuzzing::scores(&fuzz::file(data), settings) else { return };
        for agent in &report.agents {
            assert!(agent.fewest_runs > 0);
            assert!(agent.games.values().all(|game| game.normalised.iter().all(|n| n.is_finite())));
        }
        report::terminal(&report, true);
    },
}
