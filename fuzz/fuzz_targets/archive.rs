//! A file of tensors in one of three formats: the zip of PyTorch, its format before 1.6, safetensors.
#![no_main]

fuzz::target! {
    seeds: {
        let entry = |name: &str, bytes: &[u8]| (format!("last/{name}"), bytes.to_vec());
        let floats: Vec<u8> = (0..6).flat_map(|i| (i as f32).to_le_bytes()).collect();
        let small = [entry("data.pkl", &fuzz::small_pickle()), entry("data/0", &floats)];
        let order = [small[0].clone(), entry("byteorder", b"little"), small[1].clone()];
        vec![fuzz::zip(&small), fuzz::zip(&order), fuzz::legacy(&floats), fuzz::safetensors(&floats)]
    },
    factor: 64,
    // The zip crate sets aside room for as many entries as the zip claims, at most 65,535.
    constant: 1 << 24,
    |data: &[u8]| {
        let Ok(tensors) = agent::reference::fuzzing::tensors(&fuzz::file(data)) else { return };
        for (shape, values) in tensors {
            let len: usize = shape.iter().product();
            // A file that is large enough for all storages is large enough for each tensor.
            assert!(values.len() == len && 4 * len <= data.len());
        }
    },
}
