//! Run folders that are damaged, old or changed: what still works, and what is said.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use common::{Scratch, assert_same_results, iris, results, stderr, train};

#[test]
fn a_damaged_checkpoint_falls_back_to_the_one_before() {
    let scratch = Scratch::new("damaged");
    let (whole, damaged) = (scratch.0.join("whole"), scratch.0.join("damaged"));
    assert!(train(&whole, &[]).status.success());
    assert!(train(&damaged, &[]).status.success());
    let newest = damaged.join("checkpoints/000004/optimisers.safetensors");
    let bytes = std::fs::read(&newest).unwrap();
    std::fs::write(&newest, &bytes[..bytes.len() / 2]).unwrap();
    let resumed = iris().args(["train", "--resume"]).arg(&damaged).output().unwrap();
    assert!(resumed.status.success(), "{}", stderr(&resumed));
    assert!(stderr(&resumed).contains("trying the checkpoint before it"), "{}", stderr(&resumed));
    assert_same_results(&whole, &damaged, "");

    // Whoever plays or dreams falls back, too.
    let newest = damaged.join("checkpoints/000004/agent.safetensors");
    let bytes = std::fs::read(&newest).unwrap();
    std::fs::write(&newest, &bytes[..bytes.len() / 2]).unwrap();
    for arguments in [["eval", "--episodes", "1"], ["dream", "--futures", "1"]] {
        let output = iris().args(arguments).arg(&damaged).output().unwrap();
        let text = stderr(&output);
        assert!(output.status.success() && text.contains("trying the checkpoint before it"), "{text}");
    }
    // With none before it, none is promised.
    std::fs::remove_dir_all(damaged.join("checkpoints/000003")).unwrap();
    for arguments in [["eval", "--episodes", "1"], ["train", "--threads", "1"]] {
        let resume = if arguments[0] == "train" { &["--resume"][..] } else { &[] };
        let output = iris().args(arguments).args(resume).arg(&damaged).output().unwrap();
        let text = stderr(&output);
        assert!(!output.status.success() && text.contains("its checksum does not match"), "{text}");
        assert!(!text.contains("trying the checkpoint"), "{text}");
    }

    // Nothing left to continue from, and no place for another run.
    std::fs::remove_dir_all(damaged.join("checkpoints")).unwrap();
    let again = train(&damaged, &[]);
    assert!(!again.status.success() && stderr(&again).contains("whose checkpoints are gone"));
    let resumed = iris().args(["train", "--resume"]).arg(&damaged).output().unwrap();
    assert!(
        !resumed.status.success() && stderr(&resumed).contains("holds no checkpoint"),
        "{}",
        stderr(&resumed)
    );
}

/// Where the frame of a record is in its shard's data, and how many bytes it has.
fn place(run: &Path, record: usize) -> (usize, usize) {
    let index = std::fs::read(run.join("replay/000000.index")).unwrap();
    let entry = &index[record * 30..][..30];
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |n, byte| n << 8 | usize::from(*byte));
    (number(&entry[10..18]), number(&entry[18..22]))
}

fn flip(path: &Path, byte: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[byte] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_damaged_replay_is_named_and_can_be_left_out() {
    let scratch = Scratch::new("replay");
    let run = scratch.0.join("run");
    assert!(train(&run, &["epochs=2"]).status.success());
    let (data, index) = (run.join("replay/000000.data"), run.join("replay/000000.index"));
    let run_iris = |arguments: &[&str]| iris().args(arguments).arg(&run).output().unwrap();
    let (start, len) = place(&run, 41);
    flip(&data, start + len - 1);
    let refused = run_iris(&["train", "--resume"]);
    let text = stderr(&refused);
    assert!(!refused.status.success() && text.lines().count() == 1, "{text}");
    assert!(
        text.contains("000000.data is damaged: record 41") && text.contains("--forget-damaged"),
        "{text}"
    );
    let dream = run_iris(&["dream", "--from", "41"]);
    let text = stderr(&dream);
    assert!(!dream.status.success() && text.contains("is damaged: record 41"), "{text}");
    assert!(text.contains("--forget-damaged --resume"), "{text}");
    flip(&data, start + len - 1);

    // In the other file: a dream does without the episode, one line says so.
    flip(&index, 41 * 30);
    let refused = run_iris(&["train", "--resume"]);
    let text = stderr(&refused);
    assert!(!refused.status.success() && text.contains("000000.index is damaged: record 41"), "{text}");
    let dream = run_iris(&["dream", "--futures", "1"]);
    let text = stderr(&dream);
    assert!(dream.status.success() && text.matches("are damaged and forgotten").count() == 1, "{text}");
    let resumed = run_iris(&["train", "--forget-damaged", "--resume"]);
    let text = stderr(&resumed);
    assert!(resumed.status.success() && text.matches("are damaged and forgotten").count() == 1, "{text}");
    flip(&index, 41 * 30);

    // Every step is damaged: there is nothing to go on with.
    let whole = std::fs::read(&data).unwrap();
    std::fs::write(&data, vec![9; whole.len()]).unwrap();
    let refused = run_iris(&["train", "--forget-damaged", "--resume"]);
    let text = stderr(&refused);
    assert!(!refused.status.success() && text.contains("nothing can be learnt"), "{text}");
    assert!(!text.contains("forgotten"), "{text}");

    // A shard that lost its end: two checkpoints count on it.
    std::fs::write(&data, &whole[..place(&run, 1).0]).unwrap();
    let before = contents(&run);
    let refused = run_iris(&["train", "--resume"]);
    let text = stderr(&refused);
    assert!(
        !refused.status.success()
            && text.contains("000000.data lacks record 1,")
            && text.contains("--forget-damaged"),
        "{text}"
    );
    assert!(contents(&run) == before, "a refused run was changed");
    let dream = run_iris(&["dream", "--from", "50"]);
    let text = stderr(&dream);
    assert!(!dream.status.success() && text.contains("000000.data lacks record"), "{text}");

    // Another run's replay.
    let other = scratch.0.join("other");
    assert!(train(&other, &["epochs=2", "seed=1"]).status.success());
    for file in ["replay/000000.data", "replay/000000.index"] {
        std::fs::copy(other.join(file), run.join(file)).unwrap();
    }
    for arguments in [&["train", "--resume"][..], &["dream"]] {
        let output = run_iris(arguments);
        let text = stderr(&output);
        assert!(!output.status.success(), "{text}");
        assert!(text.contains("are not the ones that the checkpoint was saved with"), "{text}");
    }
}

/// Copies a folder.
fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    for (path, bytes) in contents(from) {
        let path = to.join(path.strip_prefix(from).unwrap());
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
}

/// What `state.json` says with its checksum corrected, by the definition of CRC-32.
fn signed(text: &str) -> String {
    let text = &text[r#"{"crc32":"00000000","#.len()..];
    let mut crc = !0u32;
    for byte in text.bytes() {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 };
        }
    }
    format!(r#"{{"crc32":"{:08x}",{text}"#, !crc)
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_changed_bit_in_a_checkpoint_is_noticed() {
    let scratch = Scratch::new("bits");
    let (whole, run) = (scratch.0.join("whole"), scratch.0.join("run"));
    assert!(train(&whole, &[]).status.success());
    for file in ["agent.safetensors", "optimisers.safetensors", "state.json"] {
        for part in [0, 40, 97] {
            copy(&whole, &run);
            let path = run.join("checkpoints/000004").join(file);
            let mut bytes = std::fs::read(&path).unwrap();
            let at = bytes.len() * part / 100;
            bytes[at] ^= 1 << (part % 8);
            std::fs::write(&path, bytes).unwrap();
            if file != "optimisers.safetensors" {
                let output = iris().args(["eval", "--episodes", "1"]).arg(&run).output().unwrap();
                let text = stderr(&output);
                assert!(
                    output.status.success() && text.contains("trying the checkpoint before it"),
                    "{text}"
                );
            }
            let output = iris().args(["train", "--resume"]).arg(&run).output().unwrap();
            let text = stderr(&output);
            assert!(output.status.success() && text.contains("000004.damaged"), "{file}, byte {at}: {text}");
            assert_same_results(&whole, &run, &format!("with {file} damaged at byte {at}"));
            assert_eq!(names(&run.join("checkpoints")), ["000003", "000004", "000004.damaged"]);
        }
    }
    // Files of another epoch, a checkpoint under another's name.
    copy(&whole, &run);
    let [old, new] = ["000003", "000004"].map(|epoch| run.join("checkpoints").join(epoch));
    std::fs::copy(old.join("agent.safetensors"), new.join("agent.safetensors")).unwrap();
    copy(&old, &run.join("checkpoints/000007"));
    let output = iris().args(["train", "--resume"]).arg(&run).output().unwrap();
    let text = stderr(&output);
    assert!(text.contains("it is of epoch 3, but lies in the folder of epoch 7"), "{text}");
    assert!(text.contains("000004/agent.safetensors is damaged"), "{text}");
    assert!(output.status.success() && results(&whole) == results(&run), "{text}");
}

/// Whatever lies among the checkpoints, two that can be read remain.
#[test]
fn good_checkpoints_are_not_deleted_for_bad_ones() {
    let scratch = Scratch::new("prune");
    let (whole, run) = (scratch.0.join("whole"), scratch.0.join("run"));
    assert!(train(&whole, &[]).status.success());

    // The newest are damaged, an older one was put back from a copy: the run goes on from there.
    copy(&whole, &run);
    let checkpoints = run.join("checkpoints");
    copy(&checkpoints.join("000003"), &checkpoints.join("000002"));
    for epoch in ["000003", "000004"] {
        std::fs::write(checkpoints.join(epoch).join("agent.safetensors"), [0; 1000]).unwrap();
    }
    std::fs::create_dir(checkpoints.join("000098")).unwrap();
    std::fs::create_dir(checkpoints.join("000099")).unwrap();
    let output = iris().args(["train", "--resume"]).arg(&run).output().unwrap();
    // The copy says that it is another's: nothing can be continued, and nothing is changed.
    assert!(!output.status.success(), "{}", stderr(&output));
    assert_eq!(names(&checkpoints), ["000002", "000003", "000004", "000098", "000099"]);
    let restored = std::fs::read(whole.join("checkpoints/000003/agent.safetensors")).unwrap();
    std::fs::write(checkpoints.join("000003/agent.safetensors"), restored).unwrap();
    let output = iris().args(["train", "--resume"]).arg(&run).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_same_results(&whole, &run, "");
    let left = ["000002.damaged", "000003", "000004", "000004.damaged", "000098.damaged", "000099.damaged"];
    assert_eq!(names(&checkpoints), left, "{}", stderr(&output));

    // What an interrupted removal or attempt left goes, also of a run that is over.
    copy(&whole, &run);
    for leftover in ["000002.removed", "partial", "000001"] {
        std::fs::create_dir(checkpoints.join(leftover)).unwrap();
        std::fs::write(checkpoints.join(leftover).join("agent.safetensors"), "").unwrap();
    }
    let output = iris().args(["train", "--resume"]).arg(&run).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(names(&checkpoints), ["000003", "000004"]);
}

/// `version1` was written by the program before checkpoints had checksums, and stopped after two of three epochs. Its third epoch is of a later version,
/// since which attention without dropout is no draw: later draws are other numbers than they were.
#[test]
fn runs_of_version_1_go_on() {
    let scratch = Scratch::new("version1");
    let (old, run) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/version1"), scratch.0.join("run"));
    copy(&old, &run);
    for arguments in [["eval", "--episodes", "1"], ["dream", "--futures", "1"]] {
        let output = iris().args(arguments).arg(&run).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(!stderr(&output).contains("warning"), "{}", stderr(&output));
    }
    let output = iris().args(["train", "--resume"]).arg(&run).output().unwrap();
    assert!(output.status.success() && !stderr(&output).contains("warning"), "{}", stderr(&output));
    // The losses of the third epoch, to the bit.
    let metrics = |run: &Path| std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    assert_eq!(metrics(&run), metrics(&old));
    assert_eq!(names(&run.join("checkpoints")), ["000002", "000003"]);
    let again = iris().args(["train", "--resume"]).arg(&run).output().unwrap();
    assert!(again.status.success() && !stderr(&again).contains("warning"), "{}", stderr(&again));

    // A wrong number hangs nothing and makes no files.
    for (from, to, answer) in [
        (r#""records":40"#, r#""records":1099511627776"#, "counts 1099511627776 recorded steps, but 40"),
        (r#""len":5"#, r#""len":4"#, "ends at step 39, but 40 were recorded"),
        (r#""len":35"#, r#""len":25"#, "are not the ones that the checkpoint was saved with"),
    ] {
        copy(&old, &run);
        let path = run.join("checkpoints/000002/state.json");
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{text}");
        std::fs::write(&path, text.replacen(from, to, 1)).unwrap();
        let output = iris().args(["train", "--resume"]).arg(&run).output().unwrap();
        assert!(!output.status.success() && stderr(&output).contains(answer), "{}", stderr(&output));
        assert_eq!(names(&run.join("replay")).len(), 2);
    }
}

/// Every file under a folder with its bytes.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(contents(&path)),
            false => drop(found.insert(path.clone(), std::fs::read(path).unwrap())),
        }
    }
    found
}

#[test]
fn a_run_that_cannot_go_on_is_left_as_it_is() {
    let scratch = Scratch::new("refused");
    let run = scratch.0.join("run");
    assert!(train(&run, &["epochs=2"]).status.success());
    let resume = || iris().args(["train", "--resume"]).arg(&run).output().unwrap();

    // While another process has it.
    let lock = File::open(run.join("lock")).unwrap();
    lock.lock().unwrap();
    let output = resume();
    assert!(!output.status.success() && stderr(&output).contains("is going on"), "{}", stderr(&output));
    drop(lock);

    // Its game is not in this program: no checkpoint can help.
    let states = ["000001", "000002"].map(|epoch| run.join("checkpoints").join(epoch).join("state.json"));
    let texts = states.each_ref().map(|path| std::fs::read_to_string(path).unwrap());
    for (path, text) in states.iter().zip(&texts) {
        std::fs::write(path, signed(&text.replace("arcade/catch", "arcade/throw"))).unwrap();
    }
    let before = contents(&run);
    let output = resume();
    assert!(!output.status.success() && stderr(&output).contains("arcade/throw"), "{}", stderr(&output));
    assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
    assert!(contents(&run) == before, "a refused run was changed");
    states.iter().zip(&texts).for_each(|(path, text)| std::fs::write(path, text).unwrap());

    // Without its metrics, and with some of them, it goes on; a config that is gone is written again.
    let metrics = run.join("metrics.jsonl");
    let text = std::fs::read(&metrics).unwrap();
    for (kept, lines, lost) in [(0, 0, true), (20, 0, true), (text.len() - 1, 2, false)] {
        std::fs::write(&metrics, &text[..kept]).unwrap();
        std::fs::remove_file(run.join("config.toml")).unwrap();
        let output = resume();
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(stderr(&output).contains("has lost metrics"), lost, "{}", stderr(&output));
        let left = std::fs::read(&metrics).unwrap();
        assert_eq!(left.iter().filter(|byte| **byte == b'\n').count(), lines);
        assert!(run.join("config.toml").exists());
    }

    // A digit that changed is told from one that is lost.
    let position = text.iter().rposition(u8::is_ascii_digit).unwrap();
    let changed = [&text[..position], &[text[position] ^ 1], &text[position + 1..]].concat();
    std::fs::write(&metrics, changed).unwrap();
    let output = resume();
    assert!(output.status.success() && stderr(&output).contains("metrics.jsonl does not have its checksum"));
    std::fs::write(&metrics, text).unwrap();

    // Of a shard without its records the file that is gone is named, whoever reads it.
    std::fs::remove_file(run.join("replay/000000.index")).unwrap();
    let output = resume();
    let text = stderr(&output);
    assert!(!output.status.success() && text.contains("000000.index lacks record 0"), "{text}");
    assert!(text.contains("--forget-damaged"), "{text}");
    let output = iris().args(["dream", "--from", "5"]).arg(&run).output().unwrap();
    assert!(
        !output.status.success() && stderr(&output).contains("000000.index lacks record"),
        "{}",
        stderr(&output)
    );

    // A folder that is no run gets no lock.
    let output = iris().args(["train", "--resume"]).arg(&scratch.0).output().unwrap();
    assert!(!output.status.success() && !scratch.0.join("lock").exists(), "{}", stderr(&output));

    // A run that cannot begin leaves nothing behind.
    let nothing = scratch.0.join("nothing");
    let output = train(&nothing, &["tokenizer.perceptual=no/such/agent"]);
    assert!(!output.status.success() && !nothing.exists(), "{}", stderr(&output));
}
