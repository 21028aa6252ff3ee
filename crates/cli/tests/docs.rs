//! The Markdown files keep their form and say what is true: one sentence per line, links that lead somewhere, commands and options that
//! exist, every metric of a run explained, and every source file says what it is.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use common::{Scratch, iris, stderr, train};

/// Characters in a line that is neither code nor part of a table.
const LONGEST_LINE: usize = 240;

/// Lines of a source file without a reason in CONTRIBUTING.md.
const LONGEST_FILE: usize = 500;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The files of the project whose names end in one of these, as paths from its root, with their texts.
fn files(endings: &[&str]) -> Vec<(String, String)> {
    let mut folders =
        ["docs", "crates", "fuzz/fuzz_targets", "fuzz/src"].map(|name| root().join(name)).to_vec();
    let here = std::fs::read_dir(root()).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = here.filter(|path| path.is_file()).collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { &mut folders } else { &mut files }.push(path);
        }
    }
    files.retain(|path| path.extension().is_some_and(|end| endings.iter().any(|wanted| end == *wanted)));
    files.sort();
    let named = |path: &PathBuf| path.strip_prefix(root()).unwrap().to_str().unwrap().to_string();
    files.iter().map(|path| (named(path), std::fs::read_to_string(path).unwrap())).collect()
}

fn documents() -> Vec<(String, String)> {
    let found = files(&["md"]);
    assert!(found.len() > 10, "only {} Markdown files were found", found.len());
    found
}

/// The lines of a document with their numbers, and whether they stand in a code block.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str, bool)> {
    let mut code = false;
    text.lines().zip(1..).map(move |(line, number)| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        (number, line, code || fence)
    })
}

/// Whether a line holds the end of one sentence and the beginning of another.
fn has_two_sentences(line: &str) -> bool {
    // What stands in backticks is no prose; neither do abbreviations end a sentence.
    let prose: String =
        line.split('`').enumerate().map(|(i, part)| if i % 2 == 0 { part } else { "X" }).collect();
    let prose = prose.replace("et al.", "et al");
    let prose = prose.trim_start_matches(|c: char| c.is_ascii_digit() || " .-*".contains(c));
    ['.', '!', '?'].iter().any(|end| {
        prose.split(*end).skip(1).any(|rest| {
            let rest = rest.trim_start_matches([')', '"', '*', '_']);
            rest.starts_with(' ') && rest.trim_start().starts_with(|c: char| !c.is_lowercase())
        })
    })
}

#[test]
fn a_line_of_markdown_is_one_sentence() {
    let mut wrong = Vec::new();
    for (path, text) in documents() {
        for (number, line, code) in lines(&text) {
            if code || line.trim_start().starts_with('|') {
                continue;
            }
            let place = format!("{path}:{number}");
            if has_two_sentences(line) {
                wrong.push(format!("{place}: two sentences"));
            }
            if line.chars().count() > LONGEST_LINE {
                wrong.push(format!("{place}: more than {LONGEST_LINE} characters"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_counts_as_two_sentences() {
    for one in [
        "A sentence.",
        "1. An item of a list",
        "Version 0.12.1 of `a. B`, by A. et al. Done",
        "- *Why.*",
        "so (like this.)",
    ] {
        assert!(!has_two_sentences(one.trim_end_matches(" Done")), "{one}");
    }
    for two in [
        "One. Two.",
        "- *Why.* Because.",
        "Really? `iris` knows.",
        "In all (or none.) Two.",
        "It is 3. 4 is more.",
    ] {
        assert!(has_two_sentences(two), "{two}");
    }
}

/// The name that GitHub gives to a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim_start_matches('#').trim().to_lowercase();
    kept.chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

#[test]
fn links_lead_somewhere() {
    let mut wrong = Vec::new();
    for (path, text) in documents() {
        for (number, line, code) in lines(&text) {
            for rest in line.split("](").skip(1).filter(|_| !code) {
                let link = rest.split(')').next().unwrap_or_default();
                if link.contains("://") {
                    continue;
                }
                let (file, part) = link.split_once('#').unwrap_or((link, ""));
                let here = root().join(&path);
                let target = if file.is_empty() { here } else { here.parent().unwrap().join(file) };
                let found = if part.is_empty() {
                    target.exists()
                } else {
                    let text = std::fs::read_to_string(&target).unwrap_or_default();
                    lines(&text).any(|(_, line, code)| !code && line.starts_with('#') && anchor(line) == part)
                };
                if !found {
                    wrong.push(format!("{path}:{number}: {link}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The words after the program's name in a line of a code block, if it runs `iris`.
fn arguments(line: &str) -> Option<Vec<&str>> {
    let line = line.split(" #").next()?;
    let words = match line.split_once("cargo run ") {
        Some((_, rest)) if !rest.contains("--example") => rest.split_once(" -- ")?.1,
        Some(_) => return None,
        None => line.strip_prefix("iris ").or_else(|| line.strip_prefix("target/release/iris "))?,
    };
    Some(words.split_whitespace().collect())
}

#[test]
fn commands_and_options_exist() {
    let (mut seen, mut wrong) = (0, Vec::new());
    for (path, text) in documents() {
        for (number, line, code) in lines(&text) {
            let Some(words) = arguments(line).filter(|_| code) else { continue };
            // A command may have commands of its own.
            let parts = if words[0] == "sweep" { 2 } else { 1 };
            let help = iris().args(&words[..parts]).arg("--help").output().unwrap();
            let text = String::from_utf8_lossy(&help.stdout).into_owned();
            // What follows `--` is for another program.
            let options = words[parts..].iter().take_while(|word| **word != "--");
            let unknown = options.filter(|word| word.starts_with("--") && !text.contains(**word));
            let place = format!("{path}:{number}");
            if !help.status.success() {
                wrong.push(format!("{place}: there is no command {}", words[0]));
            }
            wrong.extend(unknown.map(|word| format!("{place}: {} has no option {word}", words[0])));
            seen += 1;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 15, "only {seen} commands were found");
}

#[test]
fn long_files_have_a_reason() {
    let reasons = std::fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    for (path, text) in files(&["rs", "cu", "cpp", "inc", "h"]) {
        let (lines, listed) = (text.lines().count(), reasons.contains(&format!("\n| `{path}` |")));
        assert!(lines <= LONGEST_FILE || listed, "{path} has {lines} lines; CONTRIBUTING.md gives no reason");
    }
}

#[test]
fn source_files_say_what_they_are() {
    let mute = files(&["rs"]).into_iter().filter(|(_, text)| !text.starts_with("//! "));
    assert_eq!(mute.map(|(path, _)| path).collect::<Vec<_>>(), Vec::<String>::new());
}

#[test]
fn every_metric_of_a_run_is_explained() {
    let scratch = Scratch::new("metrics-explained");
    let run = scratch.0.join("run");
    let output =
        train(&run, &["tokenizer.perceptual=random", "tokenizer.moving_weight=1", "evaluation.losses=true"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = std::fs::read_to_string(root().join("docs/metrics.md")).unwrap();
    // Each file has its part, with a table.
    let (first, others) = text.split_once("\n## ").unwrap();
    let part =
        |heading: &str| others.split("## ").find(|part| part.starts_with(heading)).unwrap().to_string();
    for (file, part) in [
        ("metrics.jsonl", first.to_string()),
        ("episodes.jsonl", part("Episodes")),
        ("timing.jsonl", part("Times")),
    ] {
        let mut logged = BTreeSet::new();
        for line in std::fs::read_to_string(run.join(file)).unwrap().lines() {
            let metrics: serde_json::Map<String, serde_json::Value> = serde_json::from_str(line).unwrap();
            for (name, value) in metrics {
                match value.as_object() {
                    Some(parts) => logged.extend(parts.keys().map(|part| format!("{name}.{part}"))),
                    None => _ = logged.insert(name),
                }
            }
        }
        let explained: BTreeSet<String> = part
            .lines()
            .filter_map(|line| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_string()))
            .collect();
        assert_eq!(logged, explained, "{file}");
    }
}
