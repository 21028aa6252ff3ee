//! Files of references. Whatever is accepted normalises scores to numbers.
#![no_main]

fuzz::target! {
    seeds: vec![br#"{"Breakout": [1.7, 30.5], "Zaxxon": [32.5, 9173.3]}"#.to_vec()],
    factor: 256,
    constant: 1 << 16,
    |data: &[u8]| {
        if let Ok(Some(normalised)) = report::fuzzing::references(&fuzz::file(data), "Breakout", 12.0) {
            assert!(normalised.is_finite());
        }
    },
}
