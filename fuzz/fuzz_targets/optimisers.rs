//! `optimisers.safetensors` of a given agent. Whatever is accepted is written as something that is read as the same.
#![no_main]

use std::sync::LazyLock;

static AGENT: LazyLock<agent::Agent> = LazyLock::new(|| {
    let device = engine::Device::cpu(Some(1)).unwrap();
    agent::fuzzing::tiny_agent(&device).unwrap()
});

fuzz::target! {
    seeds: vec![agent::fuzzing::seeds(&AGENT).unwrap()[1].clone()],
    factor: 64,
    constant: 1 << 16,
    |data: &[u8]| {
        let Ok(written) = agent::fuzzing::optimisers(&AGENT, data) else { return };
        assert!(agent::fuzzing::optimisers(&AGENT, &written).is_ok_and(|again| again == written));
    },
}
