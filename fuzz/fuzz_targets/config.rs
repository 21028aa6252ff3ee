//! A config file. Whatever is accepted is written as a file that gives the same config.
#![no_main]

fuzz::target! {
    seeds: {
        let whole = iris::fuzzing::config(None, &[]).unwrap();
        vec![whole.into_bytes(), b"epochs = 30\n[tokenizer.schedule]\nbatch = 8\nlearning_rate = 1e-3\n".to_vec()]
    },
    factor: 256,
    constant: 1 << 20,
    |data: &[u8]| {
        let Ok(text) = iris::fuzzing::config(Some(&fuzz::file(data)), &[]) else { return };
        assert_eq!(iris::fuzzing::config(Some(&fuzz::file(text.as_bytes())), &[]).ok(), Some(text));
    },
}
