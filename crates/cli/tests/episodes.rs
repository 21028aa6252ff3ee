//! Recorded episodes, as others read them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::io::Read;
use std::path::Path;
use std::process::Command;

use common::{Scratch, iris, kept_files, stderr, train};

/// An array of an archive: its header's dictionary and its elements.
fn array(npz: &Path, name: &str) -> (String, Vec<u8>) {
    let mut zip = zip::ZipArchive::new(std::fs::File::open(npz).unwrap()).unwrap();
    let mut bytes = Vec::new();
    zip.by_name(&format!("{name}.npy")).unwrap().read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes[..8], *b"\x93NUMPY\x01\x00");
    let end = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    assert_eq!((end % 64, bytes[end - 1]), (0, b'\n'));
    (String::from_utf8(bytes[10..end].to_vec()).unwrap().trim_end().to_string(), bytes[end..].to_vec())
}

fn dictionary(dtype: &str, shape: &str) -> String {
    format!("{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({shape}), }}")
}

fn export(run: &Path, npz: &Path, extra: &[&str]) -> String {
    let output = iris().arg("export-episodes").arg(run).arg("--out").arg(npz).args(extra).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn exported_episodes_hold_what_was_played() {
    let scratch = Scratch::new("export-episodes");
    let (run, npz) = (scratch.0.join("run"), scratch.0.join("episodes.npz"));
    // 300 steps: frames are written in parts of 256.
    let output = train(&run, &["epochs=1", "collection.steps=300", "evaluation.final_episodes=1"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let said = export(&run, &npz, &[]);
    assert!(said.starts_with("exported ") && said.contains(" episodes with 300 steps to "), "{said}");

    let (header, frames) = array(&npz, "observations");
    assert_eq!(header, dictionary("|u1", "300,32,32,3,"));
    assert_eq!(frames.len(), 300 * 32 * 32 * 3);
    // Catch moves something in every step.
    let mut steps = frames.chunks_exact(32 * 32 * 3);
    let first = steps.next().unwrap();
    assert!(first.iter().any(|byte| *byte != 0) && steps.next().unwrap() != first);
    for (name, dtype) in
        [("actions", "<i4"), ("rewards", "<f4"), ("terminations", "|b1"), ("truncations", "|b1")]
    {
        assert_eq!(array(&npz, name).0, dictionary(dtype, "300,"), "{name}");
    }
    let starts: Vec<i64> =
        array(&npz, "episode_starts").1.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b)).collect();
    let [terminations, truncations] = ["terminations", "truncations"].map(|name| array(&npz, name).1);
    let ends = (0..300).filter(|step| terminations[*step] + truncations[*step] > 0);
    let expected: Vec<i64> = [0].into_iter().chain(ends.map(|step| step as i64 + 1)).collect();
    assert_eq!(starts, expected[..starts.len()]);
    assert!(starts.len() > 3 && expected.len() - starts.len() <= 1);
    // Random actions of three, and a reward of 1 or -1 where a ball comes down.
    let actions: Vec<i32> =
        array(&npz, "actions").1.as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b)).collect();
    assert!((0..3).all(|action| actions.contains(&action)) && actions.iter().all(|a| (0..3).contains(a)));
    let rewards: Vec<f32> =
        array(&npz, "rewards").1.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    assert!(rewards.contains(&-1.0) && rewards.iter().all(|reward| [-1.0, 0.0, 1.0].contains(reward)));

    // The newest episodes alone are the end of all of them.
    let newest = scratch.0.join("newest.npz");
    export(&run, &newest, &["--episodes", "2"]);
    let from = starts[starts.len() - 2] as usize;
    assert!(array(&newest, "observations").1 == frames[from * 32 * 32 * 3..]);
    let second = (starts[starts.len() - 1] as usize - from) as i64;
    assert_eq!(array(&newest, "episode_starts").1, [0i64.to_le_bytes(), second.to_le_bytes()].concat());

    read_with_numpy(&npz, starts.len(), rewards.iter().sum());
}

/// Given actions are those of the file, and every dream ends with its last step.
#[test]
fn dreams_are_written_as_arrays() {
    let scratch = Scratch::new("export-dreams");
    let (run, npz) = (scratch.0.join("run"), scratch.0.join("new").join("dreams.npz"));
    assert!(train(&run, &["epochs=1", "evaluation.final_episodes=1"]).status.success());
    let mut command = iris();
    command.arg("dream").arg(&run).args([
        "--actions",
        "right,left",
        "--futures",
        "2",
        "--steps",
        "3",
        "--out",
    ]);
    let output = command.arg(&npz).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let (_, lengths) = summary(&npz);
    let (steps, ends) = (lengths.iter().sum::<usize>(), ["terminations", "truncations"]);
    assert!(lengths.len() == 2 && lengths.iter().all(|length| (1..=3).contains(length)), "{lengths:?}");
    assert_eq!(array(&npz, "observations").0, dictionary("|u1", &format!("{steps},32,32,3,")));
    let expected = lengths.iter().flat_map(|length| [2i32, 0, 0].into_iter().take(*length));
    assert_eq!(array(&npz, "actions").1, expected.flat_map(i32::to_le_bytes).collect::<Vec<u8>>());
    let [terminations, truncations] = ends.map(|name| array(&npz, name).1);
    let last = lengths.iter().flat_map(|length| (1..=*length).map(move |step| u8::from(step == *length)));
    assert!(last.eq(terminations.iter().zip(&truncations).map(|(a, b)| a + b)));
}

/// With NumPy alone, where there is one.
fn read_with_numpy(npz: &Path, episodes: usize, total: f32) {
    let python = |code: &str| Command::new("python3").arg("-c").arg(code).arg(npz).output();
    if !python("import numpy").is_ok_and(|output| output.status.success()) {
        println!("skipped: there is no python3 with numpy");
        return;
    }
    let code = "import sys, numpy as np\n\
        d = np.load(sys.argv[1])\n\
        print(sorted(d.files))\n\
        print(d['observations'].shape, d['observations'].dtype, d['terminations'].dtype, d['actions'].dtype)\n\
        print(len(d['episode_starts']), d['rewards'].sum())";
    let output = python(code).unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let expected = format!(
        "['actions', 'episode_starts', 'observations', 'rewards', 'terminations', 'truncations']\n\
         (300, 32, 32, 3) uint8 bool int32\n{episodes} {total:?}\n"
    );
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
}

#[test]
fn exports_that_cannot_be_are_refused() {
    let scratch = Scratch::new("export-refused");
    let run = scratch.0.join("run");
    assert!(train(&run, &["epochs=1", "evaluation.final_episodes=1"]).status.success());
    let refused = |out: &Path| {
        let output = iris().arg("export-episodes").arg(&run).arg("--out").arg(out).output().unwrap();
        assert!(!output.status.success());
        stderr(&output)
    };
    let metrics = run.join("metrics.jsonl");
    let before = std::fs::read(&metrics).unwrap();
    let said = refused(&metrics);
    assert!(said.contains("exists and is not an .npz file: choose another file"), "{said}");
    assert_eq!(std::fs::read(&metrics).unwrap(), before);
    let said = refused(&scratch.0.join("missing").join("a.npz"));
    assert!(said.contains("cannot write ") && said.contains("a.npz"), "{said}");
}

fn floats(npz: &Path, name: &str) -> Vec<f32> {
    array(npz, name).1.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// Returns and lengths of an archive's episodes.
fn summary(npz: &Path) -> (Vec<f32>, Vec<usize>) {
    let rewards = floats(npz, "rewards");
    let starts = array(npz, "episode_starts").1;
    let starts: Vec<usize> =
        starts.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes) as usize).collect();
    let ends: Vec<usize> = starts.iter().skip(1).copied().chain([rewards.len()]).collect();
    let returns = starts.iter().zip(&ends).map(|(start, end)| rewards[*start..*end].iter().sum());
    (returns.collect(), starts.iter().zip(&ends).map(|(start, end)| end - start).collect())
}

#[test]
fn the_newest_and_the_best_episodes_are_kept() {
    let scratch = Scratch::new("kept-episodes");
    let (run, npz) = (scratch.0.join("run"), scratch.0.join("out.npz"));
    let output = train(&run, &["collection.steps=150", "evaluation.every=1", "evaluation.final_episodes=12"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = std::fs::read_to_string(run.join("episodes.jsonl")).unwrap();
    let numbers = |phase: &str, name: &str| -> Vec<f32> {
        let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let values = lines.filter_map(|line| Some(line.get(phase)?[name].as_array().unwrap().clone()));
        values.flatten().map(|value| value.as_f64().unwrap() as f32).collect()
    };
    for (kind, phase) in [("train", "collection"), ("evaluation", "evaluation")] {
        let (all, lengths) = (numbers(phase, "returns"), numbers(phase, "lengths"));
        assert!(all.len() > 12);
        let best = (0..all.len()).fold(0, |best, next| if all[next] > all[best] { next } else { best });
        let mut expected: Vec<usize> = (all.len() - 10..all.len()).collect();
        if !expected.contains(&best) {
            expected.insert(0, best);
        }
        export(&run, &npz, &["--kind", kind]);
        let (returns, steps) = summary(&npz);
        assert_eq!(returns, expected.iter().map(|i| all[*i]).collect::<Vec<_>>(), "{kind}");
        assert_eq!(steps, expected.iter().map(|i| lengths[*i] as usize).collect::<Vec<_>>(), "{kind}");
        let said = export(&run, &npz, &["--kind", kind, "--best"]);
        assert!(said.starts_with("exported 1 episode with "), "{said}");
        assert_eq!(summary(&npz).0, [all[best]]);
    }
    // The newest of training are those of the replay, which has the unfinished one besides.
    let (newest, replay) = (scratch.0.join("newest.npz"), scratch.0.join("replay.npz"));
    export(&run, &newest, &["--kind", "train", "--episodes", "10"]);
    export(&run, &replay, &[]);
    let ends = array(&replay, "terminations").1;
    let over = ends.iter().rposition(|end| *end == 1).unwrap() + 1;
    let steps = summary(&newest).1.iter().sum::<usize>();
    for (name, bytes) in [("observations", 32 * 32 * 3), ("actions", 4), ("rewards", 4), ("terminations", 1)]
    {
        let all = array(&replay, name).1;
        assert!(array(&newest, name).1 == all[(over - steps) * bytes..over * bytes], "{name}");
    }

    // Four dreams for each of three evaluations since the world model has learnt: the best may be one of the others.
    let kept = kept_files(&run);
    let dreams: Vec<&String> = kept.iter().filter(|name| name.starts_with("episodes/imagination")).collect();
    assert!(dreams.len() == 10 || dreams.len() == 11, "{dreams:?}");
    assert!(dreams[dreams.len() - 1].starts_with("episodes/imagination/000004-003-return="), "{dreams:?}");
    export(&run, &npz, &["--kind", "imagination", "--episodes", "4"]);
    let (terminations, truncations) = (array(&npz, "terminations").1, array(&npz, "truncations").1);
    let mut end = 0;
    for length in summary(&npz).1 {
        end += length;
        assert_eq!(terminations[end - 1] + truncations[end - 1], 1);
        assert!((end - length..end - 1).all(|step| terminations[step] + truncations[step] == 0));
    }

    // A damaged one is named; so is what there is none of.
    std::fs::write(run.join(dreams[0]), "no archive").unwrap();
    let refused = |run: &Path, arguments: &[&str]| {
        let mut command = iris();
        let output = command.arg("export-episodes").arg(run).args(arguments).arg("--out").arg(&npz).output();
        assert!(!output.as_ref().unwrap().status.success());
        stderr(&output.unwrap())
    };
    let said = refused(&run, &["--kind", "imagination"]);
    assert!(said.contains("cannot read ") && said.contains(dreams[0].as_str()), "{said}");
    assert!(refused(&run, &["--best"]).contains("--best needs --kind"));
    let other = scratch.0.join("other");
    assert!(train(&other, &["epochs=1", "evaluation.final_episodes=0"]).status.success());
    let said = refused(&other, &["--kind", "evaluation"]);
    assert!(said.contains("has kept no episode of evaluation yet: wait for the next evaluation"), "{said}");
}
