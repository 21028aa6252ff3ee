//! `iris import`, from the pickle on: names and shapes become a config, networks and parameters. The storages are those of a real checkpoint.
#![no_main]

use std::sync::LazyLock;

static PARTS: LazyLock<Vec<(String, Vec<u8>)>> = LazyLock::new(fuzz::checkpoint);
static DEVICE: LazyLock<engine::Device> = LazyLock::new(|| engine::Device::cpu(Some(1)).unwrap());

fn pickle(parts: &mut [(String, Vec<u8>)]) -> &mut Vec<u8> {
    &mut parts.iter_mut().find(|(name, _)| name.ends_with("data.pkl")).unwrap().1
}

fuzz::target! {
    seeds: vec![pickle(&mut PARTS.clone()).clone()],
    factor: 64,
    // The storages, and networks that are as large as they are.
    constant: 1 << 23,
    |data: &[u8]| {
        let mut parts = PARTS.clone();
        *pickle(&mut parts) = data.to_vec();
        let Ok((agent, _)) = agent::reference::import(&DEVICE, &fuzz::file(&fuzz::zip(&parts))) else { return };
        assert!(agent.config.validate().is_ok());
    },
}
