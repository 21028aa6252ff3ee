//! What a report reads of a run folder: `config.toml`, and `metrics.jsonl` after the first zero byte.
#![no_main]

use report::{Rng, Settings};

fuzz::target! {
    seeds: vec![
        b"env = \"arcade/catch\"\nseed = 3\nepochs = 2\n\0{\"epoch\":1,\"collection/steps\":200,\"evaluation/return\":0.25,\
          \"evaluation/progress\":0.5}\n{\"epoch\":2,\"losses/x\":1}\n"
            .to_vec(),
        b"env = \"atari/Breakout\"\nseed = 1\n\0{\"epoch\":1,\"collection/steps\":200,\"evaluation/return\":2.5}\n\
          {\"epoch\":2,\"collection/steps\":400,\"evaluation/return\":3.5}\n"
            .to_vec(),
    ],
    factor: 256,
    constant: 1 << 20,
    |data: &[u8]| {
        let zero = data.iter().position(|&byte| byte == 0).unwrap_or(data.len());
        let folder = fuzz::folder();
        std::fs::write(folder.join("config.toml"), &data[..zero]).unwrap();
        std::fs::write(folder.join("metrics.jsonl"), data.get(zero + 1..).unwrap_or_default()).unwrap();
        let settings = Settings { replicates: 1, seed: 1, rng: Rng::Fast };
        let Ok(report) = report::fuzzing::scores(folder, settings) else { return };
        assert!(report.agents.iter().all(|agent| agent.fewest_runs > 0));
        report::terminal(&report, true);
    },
}
