//! `iris import` and `iris export`, as a user runs them, on a file that `torch.save` wrote (`checkpoints/make_checkpoints.py`).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "common/release.rs"]
mod release;

use std::io::{Cursor, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use agent::testing::Scratch;
use safetensors::SafeTensors;

fn iris(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_iris")).args(arguments).output().unwrap()
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The one line of a failed run.
fn stderr(output: &Output) -> String {
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

fn tiny() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints/tiny.pt")
}

/// A file in a folder of the test's own, as a word of a command line.
fn in_folder(scratch: &Scratch, name: &str) -> String {
    scratch.0.join(name).to_string_lossy().into_owned()
}

/// The entries of a zip.
fn unpack(path: &Path) -> Vec<(String, Vec<u8>)> {
    let mut zip = zip::ZipArchive::new(Cursor::new(std::fs::read(path).unwrap())).unwrap();
    let names: Vec<String> = zip.file_names().map(String::from).collect();
    names
        .into_iter()
        .map(|name| {
            let mut bytes = Vec::new();
            zip.by_name(&name).unwrap().read_to_end(&mut bytes).unwrap();
            (name, bytes)
        })
        .collect()
}

fn pack(path: &str, entries: &[(String, Vec<u8>)]) {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let stored = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for (name, bytes) in entries {
        zip.start_file(name.as_str(), stored).unwrap();
        zip.write_all(bytes).unwrap();
    }
    std::fs::write(path, zip.finish().unwrap().into_inner()).unwrap();
}

/// The tiny checkpoint with `from` replaced by `to` in its pickle.
fn edited(path: &str, from: &[u8], to: &[u8]) {
    let mut entries = unpack(&tiny());
    let pickle = &mut entries.iter_mut().find(|(name, _)| name.ends_with("data.pkl")).unwrap().1;
    let at = pickle.windows(from.len()).position(|w| w == from).unwrap();
    pickle.splice(at..at + from.len(), to.iter().copied());
    pack(path, &entries);
}

#[test]
fn a_checkpoint_comes_back_as_it_was() {
    let scratch = Scratch::new("roundtrip");
    let (agent, file) = (in_folder(&scratch, "agent"), in_folder(&scratch, "back.safetensors"));
    let said = stdout(&iris(&["import", tiny().to_str().unwrap(), "--out", &agent]));
    assert!(said.starts_with("imported an agent with 3 actions"), "{said}");
    assert!(said.contains("8 x 8 pixels to 16 of 5 tokens"), "{said}");
    assert!(said.contains("2 layers of width 8 over 3 steps"), "{said}");
    stdout(&iris(&["export", &agent, "--out", &file]));

    let bytes = std::fs::read(&file).unwrap();
    // What was exported can be imported, and is the same agent.
    let again = in_folder(&scratch, "again");
    stdout(&iris(&["import", &file, "--out", &again]));
    let weights = |folder: &str| std::fs::read(format!("{folder}/agent.safetensors")).unwrap();
    assert!(weights(&agent) == weights(&again));
    let back = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(back.len(), 217);
    // The values the script generates from names; one parameter of each layout.
    for (name, shape) in [
        ("tokenizer.encoder.conv_in.weight", vec![4, 3, 3, 3]),
        ("tokenizer.encoder.down.0.attn.0.q.weight", vec![4, 4, 1, 1]),
        ("world_model.transformer.blocks.1.mlp.0.weight", vec![32, 8]),
        ("actor_critic.lstm.weight_ih", vec![20, 24]),
    ] {
        let tensor = back.tensor(name).unwrap();
        assert_eq!(tensor.shape(), shape);
        let scale = (3.0 / shape[1..].iter().product::<usize>() as f32).sqrt();
        for (i, value) in tensor.data().as_chunks::<4>().0.iter().enumerate() {
            let (got, expected) = (f32::from_le_bytes(*value), release::unit(name, i as u64) * scale);
            assert!((got - expected).abs() <= 1e-6 * scale, "{name}[{i}]: {got} for {expected}");
        }
    }
    // Buffers that PyTorch's load_state_dict expects.
    let indices = back.tensor("world_model.head_ends.indices").unwrap();
    let indices: Vec<i64> =
        indices.data().as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b)).collect();
    assert_eq!(indices, [16, 33, 50]);
    let mask = back.tensor("world_model.transformer.blocks.0.attn.mask").unwrap();
    assert_eq!(mask.shape(), [51, 51]);
    let ones = mask.data().as_chunks::<4>().0.iter().filter(|b| f32::from_le_bytes(**b) == 1.0).count();
    assert_eq!(ones, 51 * 52 / 2);
}

#[test]
fn bad_checkpoints_get_one_clear_line_and_leave_nothing() {
    let scratch = Scratch::new("bad");
    let (bad, out) = (in_folder(&scratch, "bad.pt"), in_folder(&scratch, "agent"));
    let import = || stderr(&iris(&["import", &bad, "--out", &out]));

    assert!(import().contains("cannot read"), "missing file");
    std::fs::write(&bad, b"").unwrap();
    assert!(import().contains("is not a PyTorch checkpoint"));
    std::fs::write(&bad, b"PK\x03\x04 but no zip").unwrap();
    assert!(import().contains("is not a PyTorch checkpoint"));
    let whole = std::fs::read(tiny()).unwrap();
    for len in [10, whole.len() / 2, whole.len() - 30] {
        std::fs::write(&bad, &whole[..len]).unwrap();
        assert!(import().contains("is not a PyTorch checkpoint"), "cut at {len}");
    }
    pack(&bad, &[("readme.txt".into(), b"hello".to_vec())]);
    assert!(import().contains("the zip has no data.pkl"));
    pack(&bad, &[("x/data.pkl".into(), b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.".to_vec())]);
    assert!(import().contains("refused to read its pickle: it asks for `os.system`; only tensors are read"));

    edited(&bad, b"tokenizer.embedding.weight", b"tokenizer.embedding.wright");
    assert!(import().contains("entry `tokenizer.embedding.weight` is missing"));
    edited(&bad, b"actor_critic.actor_linear.bias", b"actor_critic.actor_linear.beta");
    assert!(import().contains("entry `actor_critic.actor_linear.bias` is missing"));
    // One more entry than expected: the first mask under another name.
    edited(&bad, b"blocks.0.attn.mask", b"blocks.0.attn.musk");
    assert!(
        import().contains("entry `world_model.transformer.blocks.0.attn.musk` is not part of this agent")
    );
    // The codebook's shape (5, 6) as (6, 5), with strides to match: nothing else fits it.
    edited(&bad, b"K\x05K\x06\x86", b"K\x06K\x05\x86");
    assert!(import().contains("reaches outside its storage"));
    // The actor's weight (3, 5) seen as (1, 5): three actions elsewhere, one here.
    edited(&bad, b"K\x03K\x05\x86", b"K\x01K\x05\x86");
    let error = import();
    assert!(error.contains("has shape") && error.contains("expected"), "{error}");
    // A storage that claims more than its file holds: the codebook's 30 numbers as 255.
    edited(&bad, b"K\x1et", b"K\xfft");
    assert!(import().contains("is cut off"));
    // One bit of a storage that is not what it was: the last of the codebook's first number.
    let mut damaged = whole.clone();
    let codebook = &unpack(&tiny()).into_iter().find(|(name, _)| name.ends_with("data/0")).unwrap().1;
    let at = damaged.windows(codebook.len()).position(|bytes| bytes == codebook).unwrap();
    damaged[at] ^= 1;
    std::fs::write(&bad, &damaged).unwrap();
    assert!(import().contains("data/0 is damaged, its checksum differs"));
    // A sound file with numbers that are none.
    for (number, word) in [(f32::NAN, "NaN"), (f32::NEG_INFINITY, "-inf")] {
        let mut entries = unpack(&tiny());
        let storage = &mut entries.iter_mut().find(|(name, _)| name.ends_with("data/0")).unwrap().1;
        storage[8..12].copy_from_slice(&number.to_le_bytes());
        pack(&bad, &entries);
        let error = import();
        assert!(error.contains(&format!("holds {word}: the file is damaged")), "{error}");
    }
    // A pickle larger than any agent's is not even read.
    let mut entries = unpack(&tiny());
    entries.iter_mut().find(|(name, _)| name.ends_with("data.pkl")).unwrap().1 = vec![b'N'; (4 << 20) + 1];
    pack(&bad, &entries);
    assert!(import().contains("it has 4194305 bytes, more than the 4194304 of any agent"));
    // Safetensors that no agent was exported to.
    std::fs::write(&bad, b"\x02\0\0\0\0\0\0\0{}").unwrap();
    assert!(import().contains("entry `tokenizer.encoder.conv_in.weight` is missing"));
    std::fs::write(&bad, b"\xff\0\0\0\0\0\0\0{}").unwrap();
    assert!(import().contains("is not a readable safetensors file"));
    // A storage that is not there.
    let entries: Vec<_> = unpack(&tiny()).into_iter().filter(|(name, _)| !name.ends_with("data/0")).collect();
    pack(&bad, &entries);
    assert!(import().contains("data/0"));

    assert!(!Path::new(&out).exists(), "a failed import wrote something");
}

/// Block-causal attention leaves its trace in the masks alone: read as causal, the agent would imagine something else without a word.
#[test]
fn other_attention_than_causal_is_refused() {
    let scratch = Scratch::new("mask");
    let (agent, file) = (in_folder(&scratch, "agent"), in_folder(&scratch, "file.safetensors"));
    stdout(&iris(&["import", tiny().to_str().unwrap(), "--out", &agent]));
    stdout(&iris(&["export", &agent, "--out", &file]));
    let causal = std::fs::read(&file).unwrap();
    let mask = "world_model.transformer.blocks.1.attn.mask";
    let (header, metadata) = SafeTensors::read_metadata(&causal).unwrap();
    let at = 8 + header + metadata.info(mask).unwrap().data_offsets.0;
    let out = in_folder(&scratch, "refused");
    // The first frame token sees the second; the last position does not see the first.
    for (element, value) in [(1, 1.0f32), (50 * 51, 0.0)] {
        let mut bytes = causal.clone();
        bytes[at + 4 * element..][..4].copy_from_slice(&value.to_le_bytes());
        std::fs::write(&file, &bytes).unwrap();
        let error = stderr(&iris(&["import", &file, "--out", &out]));
        assert!(error.contains(&format!("`{mask}` is not a causal mask")), "{error}");
        assert!(!Path::new(&out).exists());
    }
}

#[test]
fn bad_agents_are_not_exported() {
    let scratch = Scratch::new("bad-agent");
    let (agent, file) = (in_folder(&scratch, "agent"), in_folder(&scratch, "out.safetensors"));
    let export = || stderr(&iris(&["export", &agent, "--out", &file]));
    assert!(export().contains("there is no folder"));
    std::fs::create_dir_all(&agent).unwrap();
    std::fs::write(format!("{agent}/agent.safetensors"), b"nonsense").unwrap();
    assert!(export().contains("is not a readable safetensors file"));
    assert!(!Path::new(&file).exists());
    // A target that cannot be written.
    stdout(&iris(&["import", tiny().to_str().unwrap(), "--out", &agent]));
    let error = stderr(&iris(&["export", &agent, "--out", &in_folder(&scratch, "no/such/folder/file")]));
    assert!(error.contains("cannot write"), "{error}");
    // The agent itself is no place for what is made from it.
    let own = format!("{agent}/agent.safetensors");
    let before = std::fs::read(&own).unwrap();
    let error = stderr(&iris(&["export", &agent, "--out", &own]));
    assert!(error.contains("belongs to the agent being exported"), "{error}");
    assert!(std::fs::read(&own).unwrap() == before);
    // An agent and a run do not share a folder.
    let error = stderr(&iris(&["train", "epochs=1", "--out", &agent]));
    assert!(error.contains("holds an imported agent"), "{error}");
    let run = in_folder(&scratch, "run");
    std::fs::create_dir_all(format!("{run}/checkpoints/000001")).unwrap();
    let error = stderr(&iris(&["import", tiny().to_str().unwrap(), "--out", &run]));
    assert!(error.contains("holds a run"), "{error}");
}

/// Random damage to the whole file never crashes the program's reader. `IRIS_FUZZ_ROUNDS` asks for more of it.
#[test]
fn fuzzed_checkpoints_never_panic() {
    let rounds = std::env::var("IRIS_FUZZ_ROUNDS").ok().and_then(|r| r.parse().ok()).unwrap_or(300u64);
    let scratch = Scratch::new("fuzz");
    let device = engine::Device::cpu(Some(1)).unwrap();
    let (whole, entries) = (std::fs::read(tiny()).unwrap(), unpack(&tiny()));
    let path = in_folder(&scratch, "fuzzed.pt");
    for round in 0..rounds {
        let mut rng = engine::Rng::new(engine::Key { seed: 2, stream: 0, step: round });
        let mut damage = |bytes: &mut Vec<u8>| {
            for _ in 0..1 + rng.below(4) {
                let at = rng.below(bytes.len().max(1) as u32) as usize;
                match rng.below(4) {
                    0 => bytes.truncate(at),
                    1 => bytes[at..].reverse(),
                    _ if at < bytes.len() => bytes[at] = rng.next_u32() as u8,
                    _ => {}
                }
            }
        };
        if round % 2 == 0 {
            // The zip itself.
            let mut bytes = whole.clone();
            damage(&mut bytes);
            std::fs::write(&path, bytes).unwrap();
        } else {
            // A sound zip around a damaged pickle.
            let mut entries = entries.clone();
            damage(&mut entries.iter_mut().find(|(name, _)| name.ends_with("data.pkl")).unwrap().1);
            pack(&path, &entries);
        }
        // An error or an agent, both are fine.
        let _ = agent::reference::import(&device, Path::new(&path));
    }
}
