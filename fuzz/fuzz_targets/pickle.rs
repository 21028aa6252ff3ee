//! The pickle inside a checkpoint of PyTorch. Whatever is accepted names every tensor once and stays inside its storages.
#![no_main]

use std::collections::HashSet;

fuzz::target! {
    seeds: {
        let whole = fuzz::checkpoint().into_iter().find(|(name, _)| name.ends_with("data.pkl")).unwrap().1;
        vec![fuzz::small_pickle(), whole]
    },
    factor: 64,
    constant: 1 << 16,
    |data: &[u8]| {
        let Ok(tensors) = agent::reference::fuzzing::pickle(data) else { return };
        let mut names = HashSet::new();
        for (name, storage, positions) in &tensors {
            assert!(names.insert(name));
            assert!(positions.len() <= *storage && positions.iter().all(|at| at < storage));
        }
    },
}
