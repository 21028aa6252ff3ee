//! `state.json`. Whatever is accepted is written as something that is read as the same.
#![no_main]

const OLD: &[u8] = include_bytes!("../../crates/cli/tests/version1/checkpoints/000002/state.json");

fuzz::target! {
    seeds: {
        let text = String::from_utf8(OLD.to_vec()).unwrap().replacen("\"version\":1", "\"version\":2", 1);
        let end = ",\"checksums\":{\"agent\":1,\"optimisers\":2,\"metrics\":3}}";
        vec![OLD.to_vec(), format!("{}{end}", text.strip_suffix('}').unwrap()).into_bytes()]
    },
    factor: 64,
    constant: 1 << 16,
    |data: &[u8]| {
        let Some(written) = agent::fuzzing::state(data) else { return };
        assert_eq!(agent::fuzzing::state(&written), Some(written));
    },
}
