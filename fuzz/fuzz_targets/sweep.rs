//! `sweep.toml`. Whatever is accepted has runs in folders of their own, inside of the sweep's, and is written as a file that gives the same runs.
#![no_main]

use std::collections::HashSet;

fuzz::target! {
    seeds: vec![
        b"version = 1\npreset = \"tiny\"\ngames = [\"arcade/catch\", \"arcade/pong\"]\nseeds = [0, 1]\noverrides = [\"epochs=4,8\"]\n".to_vec(),
        b"version = 1\npreset = \"tiny\"\ngames = [\"atari/Pong\"]\nseeds = [7]\noverrides = [\"a=[1, 2],[3]\", \"b='x,y'\"]\n".to_vec(),
    ],
    factor: 256,
    // The most runs that a sweep may have.
    constant: 1 << 24,
    |data: &[u8]| {
        let Ok(text) = std::str::from_utf8(data) else { return };
        let Ok((folders, text)) = iris::fuzzing::sweep(text) else { return };
        assert_eq!(folders.iter().collect::<HashSet<_>>().len(), folders.len());
        assert!(folders.iter().all(|folder| folder.starts_with("runs/") && folder.split('/').all(|part| part != "..")));
        assert_eq!(iris::fuzzing::sweep(&text).ok(), Some((folders, text)));
    },
}
