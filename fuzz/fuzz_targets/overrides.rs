//! Overrides on the command line, one per line of the input. Whatever is accepted is written as a file that gives the same config.
#![no_main]

fuzz::target! {
    seeds: vec![
        b"env=arcade/pong\nepochs=30\nactor_critic.schedule.learning_rate=5e-4".to_vec(),
        b"agent.tokenizer.attention_sizes=[8, 16]\ntokenizer.perceptual=\"none\"\nseed=3".to_vec(),
    ],
    factor: 256,
    constant: 1 << 20,
    |data: &[u8]| {
        let Ok(text) = std::str::from_utf8(data) else { return };
        let overrides: Vec<String> = text.lines().map(String::from).collect();
        let Ok(text) = iris::fuzzing::config(None, &overrides) else { return };
        assert_eq!(iris::fuzzing::config(Some(&fuzz::file(text.as_bytes())), &[]).ok(), Some(text));
    },
}
