//! What a run leaves behind: metrics, pictures, dreams; and what happens when it cannot be written.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::path::Path;

use common::{Scratch, assert_same_results, iris, stderr, train};

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

/// Of a strip: a caption, a frame in its border and a bar for each row, and a line that says what the colours mean.
fn height(rows: u32) -> u32 {
    rows * (11 + 102 + 5) + 11
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
    assert_eq!(png_size(&media.join("reconstructions.png")), (10 * 102, height(2)));
    assert_eq!(png_size(&media.join("dream.png")).1, height(4));
    assert_eq!(png_size(&media.join("foresight.png")).1, height(2));
    assert!(media.join("episode.gif").exists() && media.join("dream.gif").exists());

    let dream = |arguments: &[&str]| iris().arg("dream").arg(&run).args(arguments).output().unwrap();
    let draw = |name: &str| {
        let out = scratch.0.join(name);
        let arguments = ["--futures", "3", "--steps", "12", "--from", "5", "--seed", "4", "--out"];
        let output = iris().arg("dream").arg(&run).args(arguments).arg(&out).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.starts_with("what followed") && said.contains("future 3"), "{said}");
        assert_eq!(png_size(&out.join("dream.png")).1, height(4));
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
    let picture = scratch.0.join("game.avi");
    let refused = record(&picture);
    assert!(!refused.status.success() && !picture.exists());
    assert!(
        stderr(&refused).contains("animations are GIF, APNG or MP4: name a file that ends in .gif, .png or")
    );
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
    assert_same_results(&whole, &run, "");
}

/// A report goes by what the run wrote: changed metrics are named and left out, a changed config changes nothing.
#[test]
fn a_report_notices_changed_metrics() {
    let scratch = Scratch::new("report-metrics");
    let run = scratch.0.join("run");
    assert!(train(&run, &[]).status.success());
    let report = || {
        let mut command = iris();
        command.current_dir(&scratch.0).args(["report", "run", "--reps", "50", "--out", "report"]);
        command.output().unwrap()
    };
    let good = report();
    assert!(good.status.success(), "{}", stderr(&good));
    let config = std::fs::read_to_string(run.join("config.toml")).unwrap();
    std::fs::write(run.join("config.toml"), config.replace("seed = 0", "seed = 5")).unwrap();
    assert_eq!(report().stdout, good.stdout);
    let path = run.join("metrics.jsonl");
    let whole = std::fs::read(&path).unwrap();
    let mut flipped = whole.clone();
    *flipped.iter_mut().rfind(|byte| **byte == b'1').unwrap() = b'0';
    let lines = whole.split_inclusive(|byte| *byte == b'\n').collect::<Vec<_>>();
    let shorter = lines[..lines.len() - 1].concat();
    for changed in [flipped, shorter] {
        std::fs::write(&path, changed).unwrap();
        let refused = report();
        assert_eq!(refused.status.code(), Some(1));
        assert!(stderr(&refused).contains("metrics.jsonl is not what the run wrote"), "{}", stderr(&refused));
    }
    // A line of an epoch that is not finished is no damage.
    std::fs::write(&path, [&whole[..], b"{\"epoch\":9"].concat()).unwrap();
    assert_eq!(report().stdout, good.stdout);
}
