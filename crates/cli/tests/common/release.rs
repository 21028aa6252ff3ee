//! Files in the reference release's layout with known weights: what `torch.save` writes for a state dict of its agent.
// Each test file uses a part of this.
#![allow(dead_code)]

use std::io::Write;
use std::path::Path;

use safetensors::SafeTensors;

/// Name and shape of every entry of the release's checkpoints at paper size, perceptual network included, for this number of actions.
pub fn paper_layout(actions: usize) -> Vec<(String, Vec<usize>)> {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../agent/tests/golden/reference_checkpoint_layout.json");
    let layout: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    type Entry = (String, Vec<usize>, String, String);
    let entries: Vec<Entry> = serde_json::from_value(layout["entries"].clone()).unwrap();
    let by_action = ["embedding_tables.0.weight", "actor_linear.weight", "actor_linear.bias"];
    entries
        .into_iter()
        .map(|(name, mut shape, _, _)| {
            if by_action.iter().any(|end| name.ends_with(end)) {
                shape[0] = actions;
            }
            (name, shape)
        })
        .collect()
}

/// The same of an agent of other sizes.
pub fn layout_of(config: &agent::AgentConfig, folder: &Path) -> Vec<(String, Vec<usize>)> {
    let agent = agent::Agent::new(&engine::Device::cpu(Some(1)).unwrap(), config, 0).unwrap();
    let path = folder.join("layout.safetensors");
    agent::reference::export(&agent, None, &path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    file.iter().map(|(name, view)| (name.to_string(), view.shape().to_vec())).collect()
}

/// Writes a checkpoint with the weights of `agent/tests/golden/README.md`, as `torch.save` would.
pub fn write(path: &Path, layout: &[(String, Vec<usize>)]) {
    let stored = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    let mut zip = zip::ZipWriter::new(std::fs::File::create(path).unwrap());
    let mut add = |name: &str, bytes: &[u8]| {
        zip.start_file(format!("last/{name}"), stored).unwrap();
        zip.write_all(bytes).unwrap();
    };
    add("data.pkl", &pickle(layout));
    for (i, (name, shape)) in layout.iter().enumerate() {
        add(&format!("data/{i}"), &values(name, shape));
    }
    add("version", b"3\n");
    zip.finish().unwrap();
}

fn is_integer(name: &str) -> bool {
    name.ends_with(".indices")
}

/// A state dict as pickle protocol 2: an ordered dict of tensors, each a view of a storage of its own.
fn pickle(layout: &[(String, Vec<usize>)]) -> Vec<u8> {
    fn text(out: &mut Vec<u8>, text: &str) {
        out.push(b'X');
        out.extend((text.len() as u32).to_le_bytes());
        out.extend(text.as_bytes());
    }
    fn integer(out: &mut Vec<u8>, number: usize) {
        out.push(b'J');
        out.extend((number as u32).to_le_bytes());
    }
    fn tuple(out: &mut Vec<u8>, numbers: &[usize]) {
        out.push(b'(');
        numbers.iter().for_each(|number| integer(out, *number));
        out.push(b't');
    }
    const ORDERED_DICT: &[u8] = b"ccollections\nOrderedDict\n)R";
    let mut out = vec![0x80, 2];
    out.extend(ORDERED_DICT);
    out.push(b'(');
    for (i, (name, shape)) in layout.iter().enumerate() {
        text(&mut out, name);
        out.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
        text(&mut out, "storage");
        let storage = if is_integer(name) { "LongStorage" } else { "FloatStorage" };
        out.extend(format!("ctorch\n{storage}\n").as_bytes());
        text(&mut out, &i.to_string());
        text(&mut out, "cpu");
        integer(&mut out, shape.iter().product());
        // End of the storage's tuple, persistent id, offset, shape, strides, no gradient, no hooks.
        out.extend(b"tQ");
        integer(&mut out, 0);
        tuple(&mut out, shape);
        let strides: Vec<usize> = (0..shape.len()).map(|axis| shape[axis + 1..].iter().product()).collect();
        tuple(&mut out, &strides);
        out.push(0x89);
        out.extend(ORDERED_DICT);
        out.extend(b"tR");
    }
    out.extend(b"u.");
    out
}

/// An entry's bytes: masks and positions as in the release, everything else from its name.
fn values(name: &str, shape: &[usize]) -> Vec<u8> {
    let count: usize = shape.iter().product();
    if is_integer(name) {
        return (0..count as i64).flat_map(i64::to_le_bytes).collect();
    }
    let fan_in: usize = shape[1..].iter().product();
    let value = |i: usize| match shape {
        [_] if name.ends_with("weight") => 1.0 + 0.1 * unit(name, i as u64),
        [_] => 0.05 * unit(name, i as u64),
        [length, _] if name.ends_with("attn.mask") => f32::from(i % length <= i / length),
        _ if name.contains("embedding") || name.contains("pos_emb") => unit(name, i as u64),
        _ => unit(name, i as u64) * (3.0 / fan_in as f32).sqrt(),
    };
    (0..count).flat_map(|i| value(i).to_le_bytes()).collect()
}

/// Number `index` of the tensor `name`, in [-1, 1).
pub fn unit(name: &str, index: u64) -> f32 {
    let seed =
        name.bytes().fold(0xCBF2_9CE4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01B3));
    let z = seed.wrapping_add((index + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    2.0 * (((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 24) as f32) - 1.0
}
