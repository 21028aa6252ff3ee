//! ROM files. Only the ROM that ALE knows is accepted.
#![no_main]

use std::sync::LazyLock;

static PONG: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let folder = std::env::var("IRIS_FUZZ_ROMS").expect("IRIS_FUZZ_ROMS names the folder of pong.bin");
    std::fs::read(std::path::Path::new(&folder).join("pong.bin")).unwrap()
});

fuzz::target! {
    seeds: vec![PONG.clone(), PONG[..100].to_vec()],
    factor: 4,
    constant: 1 << 16,
    |data: &[u8]| {
        // The emulator itself is not what is tested.
        if data != PONG.as_slice() {
            assert!(envs::atari::start_rom("Pong", data).is_err());
        }
    },
}
