//! A compressed frame of the replay.
#![no_main]

fuzz::target! {
    // What differs from another frame as it is, and one byte 48 times as LZ4.
    seeds: vec![[&[15, 0][..], &[7; 48]].concat(), vec![15, 1, 0x1f, 5, 1, 0, 22, 0x50, 5, 5, 5, 5, 5]],
    factor: 8,
    constant: 1 << 12,
    |data: &[u8]| _ = agent::fuzzing::frame(data),
}
