//! A compressed shard of the replay, with the checksums of its index corrected.
#![no_main]

fuzz::target! {
    seeds: {
        let entry = |base: u8, offset: u64, len: u32| {
            [&[1, 0, 0, 0, 0, 0, 0, 63, 0, base][..], &offset.to_le_bytes(), &len.to_le_bytes(), &[0; 8]].concat()
        };
        vec![[&[2][..], &entry(0, 0, 192), &entry(1, 192, 9), &[7; 192], &[0x1f, 5, 1, 0, 167, 0x50, 5, 5, 5, 5, 5]].concat()]
    },
    factor: 8,
    constant: 1 << 12,
    |data: &[u8]| agent::fuzzing::shard(data),
}
