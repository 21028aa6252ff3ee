//! `agent.safetensors` and `perceptual.safetensors`: header, config, tensors. Whatever is accepted is written as something that is read as the same.
#![no_main]

use std::sync::LazyLock;

static DEVICE: LazyLock<engine::Device> = LazyLock::new(|| engine::Device::cpu(Some(1)).unwrap());

fuzz::target! {
    seeds: {
        let [whole, _] = agent::fuzzing::seeds(&agent::fuzzing::tiny_agent(&DEVICE).unwrap()).unwrap();
        // The same without a checksum, as older programs wrote it: its tensors can be changed.
        let size = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
        let header = std::str::from_utf8(&whole[8..8 + size]).unwrap();
        let checksum = &header[header.find(",\\\"crc32\\\":").unwrap()..header.find("}\"}").unwrap()];
        let header = header.replacen(checksum, "", 1);
        let old = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &whole[8 + size..]].concat();
        assert!(agent::fuzzing::agent(&DEVICE, &old).is_ok());
        vec![whole, old]
    },
    // An agent, its optimiser's state and its bytes.
    factor: 64,
    constant: 1 << 18,
    |data: &[u8]| {
        // No input is large enough for this network: whatever comes before its parameters is reached.
        assert!(agent::fuzzing::perceptual(&DEVICE, data).is_err());
        let Ok(written) = agent::fuzzing::agent(&DEVICE, data) else { return };
        assert!(agent::fuzzing::agent(&DEVICE, &written).is_ok_and(|again| again == written));
    },
}
