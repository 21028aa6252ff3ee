//! `state.json`. Whatever is accepted is written as something that is read as the same.
#![no_main]

const OLD: &[u8] = include_bytes!("../../crates/cli/tests/version1/checkpoints/000002/state.json");

/// An input that begins with `#` gets the checksum that it should have.
fn with_checksum(data: &[u8]) -> Vec<u8> {
    let Some(text) = data.strip_prefix(b"#") else { return data.to_vec() };
    let checksum = format!("{{\"crc32\":\"{:08x}\",", crc32fast::hash(text));
    [checksum.as_bytes(), text].concat()
}

fuzz::target! {
    seeds: {
        let new = String::from_utf8(agent::fuzzing::state(OLD).unwrap()).unwrap();
        let text = new.split_once(',').unwrap().1;
        let text = text.replacen("\"version\":1", "\"version\":2", 1);
        let end = ",\"checksums\":{\"agent\":1,\"optimisers\":2,\"metrics\":3}}";
        vec![OLD.to_vec(), format!("#{}{end}", text.strip_suffix('}').unwrap()).into_bytes()]
    },
    factor: 64,
    constant: 1 << 16,
    |data: &[u8]| {
        let Ok(written) = agent::fuzzing::state(&with_checksum(data)) else { return };
        // What is written has a checksum, which version 1 must not have.
        match agent::fuzzing::state(&written) {
            Ok(again) => assert!(again == written),
            Err(error) => panic!("{error}"),
        }
    },
}
