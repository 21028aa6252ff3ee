//! The reference release's outputs, and the generator of the weights and inputs they were computed from (`golden/README.md`).
// Each test file uses a part of this.
#![allow(dead_code)]

use std::path::PathBuf;

use agent::Network;
use safetensors::SafeTensors;

pub struct Golden {
    pub json: serde_json::Value,
    tensors: Vec<u8>,
    salt: u64,
}

impl Golden {
    /// From the committed folder, or the one that `IRIS_GOLDEN_DIR` names.
    pub fn load() -> Golden {
        let committed = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
        let folder = std::env::var_os("IRIS_GOLDEN_DIR").map_or(committed, PathBuf::from);
        let json: serde_json::Value =
            serde_json::from_slice(&std::fs::read(folder.join("golden.json")).unwrap()).unwrap();
        let salt = json["salt"].as_u64().unwrap();
        Golden { json, tensors: std::fs::read(folder.join("golden.safetensors")).unwrap(), salt }
    }

    fn bytes(&self, name: &str) -> Vec<[u8; 4]> {
        let file = SafeTensors::deserialize(&self.tensors).unwrap();
        let data = file.tensor(name).unwrap().data().to_vec();
        data.chunks_exact(4).map(|c| c.try_into().unwrap()).collect()
    }

    pub fn f32(&self, name: &str) -> Vec<f32> {
        self.bytes(name).into_iter().map(f32::from_le_bytes).collect()
    }

    pub fn i32(&self, name: &str) -> Vec<i32> {
        self.bytes(name).into_iter().map(i32::from_le_bytes).collect()
    }

    pub fn number(&self, name: &str, key: &str) -> f64 {
        self.json[name][key].as_f64().unwrap_or_else(|| panic!("{name}.{key}"))
    }

    /// Uniform numbers in [0, 1) for a tensor of this name.
    pub fn uniform(&self, name: &str, len: usize) -> Vec<f32> {
        let mut seed = 0xCBF2_9CE4_8422_2325u64;
        for byte in name.bytes() {
            seed = (seed ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3);
        }
        let seed = seed.wrapping_add(self.salt);
        (1..=len as u64)
            .map(|i| {
                let z = seed.wrapping_add(i.wrapping_mul(0x9E37_79B9_7F4A_7C15));
                let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
                let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
                ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 24) as f32
            })
            .collect()
    }

    /// Integers in `0..below`.
    pub fn integers(&self, name: &str, len: usize, below: u32) -> Vec<i32> {
        self.uniform(name, len).iter().map(|u| (u * below as f32).floor() as i32).collect()
    }

    /// The value of a parameter with the release's name and shape.
    pub fn parameter(&self, name: &str, shape: &[usize]) -> Vec<f32> {
        let unit = self.uniform(name, shape.iter().product());
        let fan_in: usize = shape[1..].iter().product();
        unit.iter()
            .map(|u| {
                let v = 2.0 * u - 1.0;
                match shape.len() {
                    1 if name.ends_with("weight") => 1.0 + 0.1 * v,
                    1 => 0.05 * v,
                    _ if name.contains("embedding") || name.contains("pos_emb") => v,
                    _ => v * (3.0 / fan_in as f32).sqrt(),
                }
            })
            .collect()
    }

    /// Gives a network the golden weights; `prefix` is its name in the release.
    pub fn fill(&self, network: &Network, prefix: &str) {
        for (spec, layout) in network.params.specs().iter().zip(network.layouts()) {
            if spec.name.starts_with("scaling.") {
                continue;
            }
            let shape = layout.reference_shape(spec.shape.dims());
            let theirs = self.parameter(&format!("{prefix}.{}", spec.name), &shape);
            network.params.set(&spec.name, &layout.from_reference(spec.shape.dims(), &theirs)).unwrap();
        }
    }

    /// Checks the norm of every parameter's gradient, to 1e-3.
    pub fn check_gradient_norms(&self, network: &Network, key: &str) {
        let expected = self.json[key].as_object().unwrap();
        assert_eq!(expected.len(), network.params.specs().len());
        for spec in network.params.specs() {
            let gradient = network.params.gradient(&spec.name).unwrap();
            let norm = gradient.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
            let want = expected[&spec.name].as_f64().unwrap();
            assert!((norm - want).abs() <= 1e-3 * want + 1e-6, "{}: {norm} for {want}", spec.name);
        }
    }
}

/// Largest difference, relative to the largest expected value.
pub fn assert_close(what: &str, got: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let scale = expected.iter().fold(0f32, |a, b| a.max(b.abs()));
    let worst = got.iter().zip(expected).map(|(g, e)| (g - e).abs()).fold(0f32, f32::max);
    assert!(worst <= tolerance * scale + 1e-6, "{what}: off by {worst}, values up to {scale}");
    assert!(got.iter().all(|x| x.is_finite()), "{what}");
}

/// [B, C, H, W] -> [B, H, W, C]
pub fn nhwc(x: &[f32], channels: usize, pixels: usize) -> Vec<f32> {
    x.chunks_exact(channels * pixels)
        .flat_map(|image| (0..pixels * channels).map(move |i| image[i % channels * pixels + i / channels]))
        .collect()
}
