//! What a run leaves behind: pictures, metrics, dreams; and what happens when it is damaged or cannot be written.

mod common;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use common::{Scratch, iris, results, stderr, train};

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
    assert!(results(&whole) == results(&damaged));

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
        assert!(!output.status.success() && text.contains("it may be cut off or damaged"), "{text}");
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

#[test]
fn a_damaged_replay_is_named_and_can_be_left_out() {
    let scratch = Scratch::new("replay");
    let run = scratch.0.join("run");
    assert!(train(&run, &["epochs=2"]).status.success());
    let frames = run.join("replay/000000.frames");
    let mut bytes = std::fs::read(&frames).unwrap();
    bytes[40 * 3072 + 5] ^= 1;
    std::fs::write(&frames, bytes).unwrap();
    let refused = iris().args(["train", "--resume"]).arg(&run).output().unwrap();
    let text = stderr(&refused);
    assert!(!refused.status.success() && text.lines().count() == 1, "{text}");
    assert!(
        text.contains("000000.frames is damaged: record 40") && text.contains("--forget-damaged"),
        "{text}"
    );
    let dream = iris().args(["dream", "--from", "40"]).arg(&run).output().unwrap();
    let text = stderr(&dream);
    assert!(!dream.status.success() && text.contains("is damaged: record 40"), "{text}");
    assert!(text.contains("--forget-damaged --resume"), "{text}");
    let resumed = iris().args(["train", "--forget-damaged", "--resume"]).arg(&run).output().unwrap();
    assert!(
        resumed.status.success() && stderr(&resumed).contains("its episode is forgotten"),
        "{}",
        stderr(&resumed)
    );
    // Every step is damaged: there is nothing to go on with.
    let whole = std::fs::read(&frames).unwrap();
    std::fs::write(&frames, vec![9; whole.len()]).unwrap();
    let refused = iris().args(["train", "--forget-damaged", "--resume"]).arg(&run).output().unwrap();
    assert!(
        !refused.status.success() && stderr(&refused).contains("nothing can be learnt"),
        "{}",
        stderr(&refused)
    );
    std::fs::write(&frames, whole).unwrap();
    // A segment that lost its end: two checkpoints count on it.
    let bytes = std::fs::read(&frames).unwrap();
    std::fs::write(&frames, &bytes[..3072]).unwrap();
    let before = contents(&run);
    let refused = iris().args(["train", "--resume"]).arg(&run).output().unwrap();
    let text = stderr(&refused);
    assert!(
        !refused.status.success() && text.contains("holds 1 records") && text.contains("--forget-damaged"),
        "{text}"
    );
    assert!(contents(&run) == before, "a refused run was changed");
    let dream = iris().args(["dream", "--from", "50"]).arg(&run).output().unwrap();
    let text = stderr(&dream);
    assert!(
        !dream.status.success() && text.contains("holds 1 records, but the checkpoint counts on"),
        "{text}"
    );
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
        std::fs::write(path, text.replace("arcade/catch", "arcade/throw")).unwrap();
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
    for (kept, lines) in [(0, 0), (20, 0), (text.len() - 1, 2)] {
        std::fs::write(&metrics, &text[..kept]).unwrap();
        std::fs::remove_file(run.join("config.toml")).unwrap();
        let output = resume();
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(stderr(&output).contains("has lost metrics"), "{}", stderr(&output));
        let left = std::fs::read(&metrics).unwrap();
        assert_eq!(left.iter().filter(|byte| **byte == b'\n').count(), lines);
        assert!(run.join("config.toml").exists());
    }

    // Of a segment without its records the file that is gone is named.
    std::fs::remove_file(run.join("replay/000000.steps")).unwrap();
    let output = resume();
    let text = stderr(&output);
    assert!(!output.status.success() && text.contains("000000.steps holds 0 records"), "{text}");
    assert!(text.contains("--forget-damaged"), "{text}");

    // A folder that is no run gets no lock.
    let output = iris().args(["train", "--resume"]).arg(&scratch.0).output().unwrap();
    assert!(!output.status.success() && !scratch.0.join("lock").exists(), "{}", stderr(&output));

    // A run that cannot begin leaves nothing behind.
    let nothing = scratch.0.join("nothing");
    let output = train(&nothing, &["tokenizer.perceptual=no/such/agent"]);
    assert!(!output.status.success() && !nothing.exists(), "{}", stderr(&output));
}

/// Tags and values of an event file, with every checksum compared.
fn read_events(path: &Path) -> Vec<(u64, String, f32)> {
    let bytes = std::fs::read(path).unwrap();
    let mut rest = bytes.as_slice();
    let mut scalars = Vec::new();
    while !rest.is_empty() {
        let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
        let crc = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().unwrap());
        assert_eq!(crc(8), masked_crc32c(&rest[..8]));
        assert_eq!(crc(12 + length), masked_crc32c(&rest[12..12 + length]));
        let event = fields(&rest[12..12 + length]);
        let step = event.iter().find(|f| f.0 == 2).map_or(0, |f| f.1);
        for (_, _, summary) in event.iter().filter(|f| f.0 == 5) {
            for (_, _, value) in fields(summary) {
                let value = fields(value);
                let tag = String::from_utf8(value[0].2.to_vec()).unwrap();
                scalars.push((step, tag, f32::from_bits(value[1].1 as u32)));
            }
        }
        rest = &rest[16 + length..];
    }
    scalars
}

/// Fields of a protobuf message: number, number value, bytes.
fn fields(mut message: &[u8]) -> Vec<(u64, u64, &[u8])> {
    let mut fields = Vec::new();
    while !message.is_empty() {
        let mut varint = || {
            let end = message.iter().position(|b| b & 0x80 == 0).unwrap();
            let value = message[..=end].iter().rev().fold(0u64, |v, b| v << 7 | u64::from(b & 0x7F));
            message = &message[end + 1..];
            value
        };
        let key = varint();
        let (number, bytes) = match key & 7 {
            0 => (varint(), 0),
            2 => (0, varint() as usize),
            1 => (0, 8),
            _ => (0, 4),
        };
        let (data, rest) = message.split_at(bytes);
        let number =
            if key & 7 == 5 { u64::from(u32::from_le_bytes(data.try_into().unwrap())) } else { number };
        fields.push((key >> 3, number, data));
        message = rest;
    }
    fields
}

/// By the definition, bit by bit.
fn masked_crc32c(bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82F6_3B78 } else { crc >> 1 };
        }
    }
    (!crc).rotate_right(15).wrapping_add(0xA282_EAD8)
}

#[test]
fn metrics_come_back_from_the_event_file() {
    let scratch = Scratch::new("events");
    let run = scratch.0.join("run");
    assert!(train(&run, &["epochs=2"]).status.success());
    let events = read_events(&run.join("tensorboard/events.out.tfevents.0.iris"));
    let text = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let mut expected = Vec::new();
    for line in text.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        for (name, value) in line.as_object().unwrap().iter().filter(|(name, _)| *name != "epoch") {
            expected.push((line["epoch"].as_u64().unwrap(), name.clone(), value.as_f64().unwrap() as f32));
        }
    }
    assert!(expected.len() > 10);
    assert_eq!(events, expected);
}

/// Width and height from a PNG's header.
fn png_size(path: &Path) -> (u32, u32) {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    (number(16), number(20))
}

#[test]
fn dreams_and_pictures_are_drawn() {
    let scratch = Scratch::new("dream");
    let run = scratch.0.join("run");
    assert!(train(&run, &["epochs=2"]).status.success());
    let media = run.join("media/000002");
    // Frames of 32 pixels are drawn three times as large, with three pixels around.
    assert_eq!(png_size(&media.join("reconstructions.png")), (10 * 102, 2 * 102));
    assert_eq!(png_size(&media.join("dream.png")).1, 4 * 102);
    assert_eq!(png_size(&media.join("foresight.png")).1, 2 * 102);
    assert!(media.join("episode.gif").exists() && media.join("dream.gif").exists());

    let dream = |arguments: &[&str]| iris().arg("dream").arg(&run).args(arguments).output().unwrap();
    let draw = |name: &str| {
        let out = scratch.0.join(name);
        let arguments = ["--futures", "3", "--steps", "12", "--from", "5", "--seed", "4", "--out"];
        let output = iris().arg("dream").arg(&run).args(arguments).arg(&out).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.starts_with("what followed") && said.contains("future 3"), "{said}");
        assert_eq!(png_size(&out.join("dream.png")).1, 4 * 102);
        std::fs::read(out.join("dream.png")).unwrap()
    };
    assert!(draw("first") == draw("again"));
    // Each that differs has a place of its own.
    let long = ["left"; 20].join(",");
    for (arguments, name) in [
        (["--futures", "4"], "from5-seed0"),
        (["--futures", "2"], "from5-seed0-futures2"),
        (["--steps", "3"], "from5-seed0-steps3"),
        (["--temperature", "0.5"], "from5-seed0-temperature0.5"),
        (["--actions", "recorded"], "from5-seed0-recorded"),
        (["--actions", "left,stay,RIGHT"], "from5-seed0-left-stay-right"),
        (["--actions", &long], "from5-seed0-actions3e92d52499cee9e2"),
    ] {
        let output = dream(&[&["--from", "5"], &arguments[..]].concat());
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(run.join("dreams").join(name).join("dream.gif").exists(), "{said}");
    }
    // A recording makes its folder, and finds out before the game that it cannot be written.
    let record = |out: &Path| iris().arg("record").arg(&run).arg("--out").arg(out).output().unwrap();
    assert!(record(&scratch.0.join("new/folder/game.gif")).status.success());
    assert!(scratch.0.join("new/folder/game.gif").exists());
    assert!(stderr(&record(&scratch.0)).contains("is a folder: name a file in it"));
    let picture = scratch.0.join("game.png");
    let refused = record(&picture);
    assert!(!refused.status.success() && !picture.exists());
    assert!(stderr(&refused).contains("recordings are GIFs: name a file that ends in .gif, not"));
    for (arguments, answer) in [
        (
            ["--actions", "lefft"],
            "no action is called `lefft`; this game has left, stay, right. Did you mean `left`?",
        ),
        (["--actions", "up"], "no action is called `up`; this game has left, stay, right\n"),
        (["--from", "9999"], "--from 9999 is not in the replay; it holds steps 0 to 99"),
        (["--futures", "0"], "0 is not in 1..=100"),
        (["--futures", "700"], "700 is not in 1..=100"),
    ] {
        let output = dream(&arguments);
        assert!(!output.status.success() && stderr(&output).contains(answer), "{}", stderr(&output));
    }
}

#[cfg(unix)]
#[test]
fn an_unwritable_folder_is_named() {
    let scratch = Scratch::new("unwritable");
    // A file where a folder should be: not even root can write there.
    let file = scratch.0.join("file");
    std::fs::write(&file, "").unwrap();
    let output = train(&file.join("run"), &[]);
    let text = stderr(&output);
    assert!(
        !output.status.success() && text.contains("cannot create") && text.contains("file/run"),
        "{text}"
    );
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_stops_the_run_with_a_clear_line_and_loses_nothing() {
    let scratch = Scratch::new("full");
    let (whole, run) = (scratch.0.join("whole"), scratch.0.join("run"));
    assert!(train(&whole, &[]).status.success());
    // /dev/full accepts nothing; the metrics are made to go there.
    std::fs::create_dir_all(&run).unwrap();
    std::os::unix::fs::symlink("/dev/full", run.join("metrics.jsonl")).unwrap();
    let output = train(&run, &[]);
    assert!(!output.status.success());
    let text = stderr(&output);
    assert!(text.contains("metrics.jsonl") && text.contains("No space left"), "{text}");
    // There is room again.
    std::fs::remove_file(run.join("metrics.jsonl")).unwrap();
    let resumed = iris().args(["train", "--resume"]).arg(&run).output().unwrap();
    assert!(resumed.status.success(), "{}", stderr(&resumed));
    assert!(results(&whole) == results(&run));
}
