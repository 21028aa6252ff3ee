//! Readers of files, from memory: what `fuzz/` calls. Nothing here is part of the interface.
//!
//! Checksums are corrected where there are any, so that a fuzzer gets behind them. What was read is returned as it would be written: reading that
//! must give the same.

use std::path::Path;

use engine::Device;

use crate::replay::{codec, packed};
use crate::train::state::State;
use crate::{Agent, AgentConfig, CheckpointError, Perceptual, train};

/// `state.json`, as it is and with its checksum corrected.
pub fn state(bytes: &[u8]) -> Option<Vec<u8>> {
    let [parsed, signed] = [State::parse(bytes), State::parse(&State::signed(bytes))];
    parsed.or(signed).ok()?.to_bytes().ok()
}

/// A packed frame: the first byte says how many times three bytes it has, the next whether it has a key.
pub fn frame(bytes: &[u8]) -> bool {
    let [size, key, packed @ ..] = bytes else { return false };
    let mut frame = vec![0; usize::from(*size) * 3 + 3];
    let key_frame: Vec<u8> = (0..frame.len()).map(|i| i as u8).collect();
    codec::unpack(packed, (*key & 1 == 1).then_some(key_frame.as_slice()), &mut frame).is_ok()
}

/// A shard of the replay with frames of 8x8 pixels: the first byte says how many records its index has, the rest are its two files.
pub fn shard(bytes: &[u8]) {
    let [records, rest @ ..] = bytes else { return };
    let (index, data) = rest.split_at(rest.len().min(usize::from(*records) * packed::ENTRY_BYTES));
    packed::fuzz(index, data, 192);
}

/// `agent.safetensors`. Its own checksum stays as it is; without the entry in the metadata there is none.
pub fn agent(device: &Device, bytes: &[u8]) -> Result<Vec<u8>, CheckpointError> {
    let path = Path::new("agent.safetensors");
    let (agent, perceptual) = Agent::from_bytes(device, path, bytes)?;
    agent.to_bytes(perceptual.as_ref(), path)
}

/// `perceptual.safetensors`, which is large: small files end before its parameters.
pub fn perceptual(device: &Device, bytes: &[u8]) -> Result<Vec<u8>, CheckpointError> {
    let path = Path::new("perceptual.safetensors");
    Perceptual::from_bytes(device, path, bytes)?.to_bytes(path)
}

/// `optimisers.safetensors` of an agent, which [`tiny_agent`] makes.
pub fn optimisers(agent: &Agent, bytes: &[u8]) -> Result<Vec<u8>, CheckpointError> {
    let path = Path::new("optimisers.safetensors");
    train::optimisers::from_bytes(agent, path, bytes)?;
    train::optimisers::to_bytes(agent, path)
}

/// An agent whose files are a few kilobytes.
pub fn tiny_agent(device: &Device) -> crate::Result<Agent> {
    let mut config = AgentConfig { actions: 2, ..AgentConfig::default() };
    let (t, w, p) = (&mut config.tokenizer, &mut config.world_model, &mut config.actor_critic);
    (t.frame_size, t.channels, t.groups, t.resolutions) = (8, 2, 1, 2);
    (t.residual_blocks, t.attention_sizes, t.vocabulary, t.embedding) = (0, vec![], 4, 2);
    (w.steps, w.layers, w.heads, w.width) = (2, 1, 1, 4);
    (p.channels, p.hidden, p.dense) = (vec![2, 2], 2, 0);
    Agent::new(device, &config, 0)
}

/// Good files to start from: an agent's and its optimisers'.
pub fn seeds(agent: &Agent) -> Result<[Vec<u8>; 2], CheckpointError> {
    let path = Path::new("seed");
    Ok([agent.to_bytes(None, path)?, train::optimisers::to_bytes(agent, path)?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::{Key, Rng};
    use safetensors::SafeTensors;
    use safetensors::tensor::{Dtype, TensorView};

    /// A file with one entry changed; the rest of it stays.
    fn edited(bytes: &[u8], name: &str, change: impl Fn(&mut [u8])) -> Vec<u8> {
        let mut changed = bytes.to_vec();
        let at = SafeTensors::deserialize(bytes).unwrap().tensor(name).unwrap().data().as_ptr() as usize
            - bytes.as_ptr() as usize;
        change(&mut changed[at..at + 4]);
        changed
    }

    #[test]
    fn optimisers_are_read_with_their_types_lengths_and_signs() {
        let device = Device::cpu(Some(1)).unwrap();
        let agent = tiny_agent(&device).unwrap();
        let [_, good] = seeds(&agent).unwrap();
        assert!(good.len() < 100_000, "{}", good.len());
        let refused = |bytes: &[u8]| {
            train::optimisers::from_bytes(&agent, Path::new("o"), bytes).unwrap_err().to_string()
        };
        assert_eq!(optimisers(&agent, &good).unwrap(), good);
        let write = |value: [u8; 4]| move |bytes: &mut [u8]| bytes.copy_from_slice(&value);
        let (first, second) = ("tokenizer.first_moments", "tokenizer.second_moments");
        assert!(optimisers(&agent, &edited(&good, first, write((-1f32).to_le_bytes()))).is_ok());
        for (name, value, answer) in [
            (first, f32::NAN.to_le_bytes(), "entry `tokenizer.first_moments` holds NaN"),
            (second, f32::INFINITY.to_le_bytes(), "entry `tokenizer.second_moments` holds inf"),
            (second, (-1f32).to_le_bytes(), "entry `tokenizer.second_moments` holds -1"),
            ("world_model.updates", (-3i32).to_le_bytes(), "entry `world_model.updates` holds -3 updates"),
        ] {
            let text = refused(&edited(&good, name, write(value)));
            assert!(text.contains(answer), "{text}");
        }
        let swapped = |from: &str, to: &str| {
            let at = good.windows(from.len()).position(|w| w == from.as_bytes()).expect(from);
            [&good[..at], to.as_bytes(), &good[at + to.len()..]].concat()
        };
        let text = refused(&swapped(r#""I32""#, r#""F32""#));
        assert!(text.contains("holds F32 instead of int32"), "{text}");
        let text = refused(&swapped(r#""F32""#, r#""I32""#));
        assert!(text.contains("holds I32, expected float32"), "{text}");
        let text = refused(&swapped("tokenizer.updates", "tokenizer.updatez"));
        assert!(text.contains("`tokenizer.updates` is missing"), "{text}");
    }

    /// A short walk; a fuzzer walks further.
    #[test]
    fn readers_do_not_panic() {
        let device = Device::cpu(Some(1)).unwrap();
        let tiny = tiny_agent(&device).unwrap();
        let [weights, moments] = seeds(&tiny).unwrap();
        let mut rng = Rng::new(Key::new(0, 0));
        let mut change = |bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            for _ in 0..rng.below(4) {
                let at = rng.below(bytes.len().min(3000) as u32) as usize;
                bytes[at] = rng.below(256) as u8;
            }
            bytes.truncate(bytes.len() - (rng.below(2) * rng.below(100)) as usize);
            bytes
        };
        for _ in 0..200 {
            let _ = agent(&device, &change(&weights));
            let _ = optimisers(&tiny, &change(&moments));
        }
        let noise: Vec<u8> = (0..2000).map(|i| (i * 37 % 256) as u8).collect();
        for _ in 0..2000 {
            shard(&change(&noise));
            frame(&change(&noise));
        }
        assert_eq!(state(b"{}"), None);
    }

    #[test]
    fn seeds_are_good() -> Result<(), CheckpointError> {
        let device = Device::cpu(Some(1))?;
        let tiny = tiny_agent(&device)?;
        let [weights, moments] = seeds(&tiny)?;
        assert_eq!(agent(&device, &weights)?, weights);
        assert_eq!(optimisers(&tiny, &moments)?, moments);
        Ok(())
    }

    /// One entry of the perceptual network's 15 million parameters made a file of any size ask for 59 MB.
    #[test]
    fn a_small_file_gets_no_large_network() {
        let device = Device::cpu(Some(1)).unwrap();
        let [whole, _] = seeds(&tiny_agent(&device).unwrap()).unwrap();
        let (_, header) = SafeTensors::read_metadata(&whole).unwrap();
        let file = SafeTensors::deserialize(&whole).unwrap();
        let extra = TensorView::new(Dtype::F32, vec![1], &[0; 4]).unwrap();
        let tensors = file.tensors().into_iter().chain([("tokenizer.lpips.x".to_string(), extra)]);
        let bytes = safetensors::serialize(tensors, header.metadata().clone()).unwrap();
        let error = agent(&device, &bytes).unwrap_err();
        assert!(matches!(error, CheckpointError::Engine(engine::Error::TooManyParameters { .. })), "{error}");
    }
}
