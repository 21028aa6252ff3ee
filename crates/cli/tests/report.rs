//! `iris report`, as a user runs it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::process::{Command, Output};

use agent::testing::Scratch;

/// The folder that a report is made in.
struct Folder(Scratch);

impl Folder {
    fn new(name: &str) -> Folder {
        Folder(Scratch::new(&format!("report-{name}")))
    }

    fn path(&self) -> &Path {
        &self.0.0
    }

    fn iris(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_iris"))
            .current_dir(self.path())
            .arg("report")
            .args(arguments)
            .output()
            .unwrap()
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path().join(name)).unwrap()
    }

    fn text(&self, name: &str) -> String {
        String::from_utf8(self.read(name)).unwrap()
    }
}

#[test]
fn the_paper_without_arguments() {
    let scratch = Folder::new("paper");
    let output = scratch.iris(&["--reps", "50"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.starts_with("Game "));
    assert!(printed.lines().any(|line| line.starts_with("IRIS ") && line.contains("1.046 [")), "{printed}");
    assert!(!printed.contains('\x1b'), "no colours into a pipe");
    for name in ["aggregates", "optimality_gap", "profiles", "improvement"] {
        assert!(scratch.text(&format!("report/{name}.svg")).starts_with("<svg"), "{name}");
        assert!(scratch.read(&format!("report/{name}.png")).starts_with(b"\x89PNG"), "{name}");
    }
    assert!(scratch.text("report/table.md").contains("| Game | Random | Human |"));
    // Two tables more on the screen, and a sentence about the scores that are not here.
    let output = scratch.iris(&["--reps", "20", "--tables"]);
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.contains("Table 7") && printed.contains("+432%"), "{printed}");
    let (_, table) = printed.split_once("Table 8").unwrap();
    let row = |label: &str| -> Vec<&str> {
        table.lines().find(|line| line.starts_with(label)).unwrap().split_whitespace().collect()
    };
    assert_eq!(row("#Superhuman"), ["#Superhuman", "10", "15", "+50%"]);
    assert_eq!(row("Mean"), ["Mean", "1.046", "7.488", "+616%"]);
    let notes = String::from_utf8(output.stderr).unwrap();
    assert!(
        notes.contains("note: Table 8: IRIS after 100k and after 10M steps: only the aggregates"),
        "{notes}"
    );
    assert!(notes.contains("give them as a score file IRIS-10M.json"), "{notes}");
    assert!(scratch.text("report/table.tex").contains("\\begin{tabular}{lrrrrrrrrr}"));
    // The files have them, too.
    for (file, row) in [
        ("table.md", "| Mean | 1.046 | 7.488 | +616% |"),
        ("table.tex", "Mean & 1.046 & 7.488 & +616\\% \\\\"),
        ("report.html", "<td>Mean</td><td>1.046</td><td>7.488</td><td>+616%</td>"),
    ] {
        let text = scratch.text(&format!("report/{file}"));
        assert!(
            text.contains(row) && text.contains("Table 8: IRIS after 100k and after 10M steps"),
            "{file}"
        );
    }
    let json: serde_json::Value = serde_json::from_slice(&scratch.read("report/report.json")).unwrap();
    assert_eq!(json["agents"].as_array().unwrap().len(), 7);
    assert_eq!(json["variants"][1]["rows"][2], serde_json::json!(["Mean", "1.046", "7.488", "+616%"]));
}

#[test]
fn the_page_holds_everything_and_asks_for_nothing() {
    let scratch = Folder::new("page");
    assert!(scratch.iris(&["--reps", "20", "--out", "there"]).status.success());
    let page = scratch.text("there/report.html");
    assert_eq!(page.matches("<svg").count(), 4);
    assert!(page.contains("<td>Breakout</td>") && page.contains("prefers-color-scheme:dark"));
    for reference in ["http://", "https://", "src=", "href=", "url(", "@import", "<script", "<link"] {
        assert!(!page.contains(reference), "{reference}");
    }
}

#[test]
fn the_same_seed_gives_the_same_report() {
    let scratch = Folder::new("seed");
    let json = |seed: &str, out: &str| {
        let arguments = ["--agents", "IRIS,TWM", "--reps", "200", "--seed", seed, "--out", out];
        assert!(scratch.iris(&arguments).status.success());
        let json: serde_json::Value =
            serde_json::from_slice(&scratch.read(&format!("{out}/report.json"))).unwrap();
        json["agents"].clone()
    };
    assert_eq!(json("1", "a"), json("1", "b"));
    assert_ne!(json("1", "c"), json("2", "d"));
}

#[test]
fn our_runs_and_their_curve() {
    let scratch = Folder::new("runs");
    for seed in 0..2 {
        let run = scratch.path().join(format!("runs/catch-{seed}"));
        std::fs::create_dir_all(&run).unwrap();
        std::fs::write(
            run.join("config.toml"),
            format!("env = \"arcade/catch\"\nseed = {seed}\nepochs = 2\n"),
        )
        .unwrap();
        let line = |epoch: u32| {
            format!(
                "{{\"epoch\":{epoch},\"collection/steps\":{epoch}00.0,\"evaluation/return\":{epoch}.0,\
                 \"evaluation/progress\":0.{epoch}}}\n"
            )
        };
        std::fs::write(run.join("metrics.jsonl"), line(1) + &line(2)).unwrap();
    }
    let output = scratch.iris(&["runs", "--name", "mine", "--reps", "20"]);
    let notes = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{notes}");
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.lines().any(|line| line.starts_with("mine ") && line.contains("0.200 [")), "{printed}");
    let row = ["arcade/catch", "-2.55", "5.00", "2.00"];
    assert!(printed.lines().any(|line| line.split_whitespace().eq(row)), "{printed}");
    assert!(printed.starts_with("Game") && printed.lines().next().unwrap().contains("Perfect"), "{printed}");
    // Nobody is superhuman in a game that no human was measured in, and no axis is longer than the scores.
    let page = scratch.text("report/report.html");
    assert!(!printed.contains("Superhuman") && !page.contains("Superhuman"), "{printed}");
    assert!(page.contains("<p>1 agent, 1 game. ") && page.contains("Bands are 95%"));
    assert!(!scratch.text("report/profiles.svg").contains(">8</text>"));
    assert!(notes.contains("note: the published agents are left out: they played none of these games"));
    assert!(notes.contains("note: mine: only two runs of some game"));
    assert!(scratch.text("report/curves.svg").contains("Sample efficiency"));

    let output = scratch.iris(&["runs/catch-0", "--reps", "20"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("note: ours: too few runs for an interval"));
    // Without intervals there are no bands to explain.
    assert!(!scratch.text("report/report.html").contains("Bands are"));

    // A run and its evaluation are one run; nobody but the user can tell.
    let evaluation =
        r#"{"env":"arcade/catch","run":"runs/catch-0","mean":2.0,"progress":0.2,"returns":[2.0]}"#;
    std::fs::write(scratch.path().join("evaluation.json"), evaluation).unwrap();
    let output = scratch.iris(&["runs/catch-0", "evaluation.json", "--reps", "20"]);
    let notes = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(notes.contains("in runs/catch-0, of which there is a score already"), "{notes}");

    // No figure stays of a report that was here before.
    assert!(scratch.iris(&["--agents", "IRIS", "--reps", "20"]).status.success());
    assert!(
        !scratch.path().join("report/curves.svg").exists()
            && !scratch.path().join("report/curves.png").exists()
    );
}

#[test]
fn mistakes_are_one_line() {
    let scratch = Folder::new("mistakes");
    std::fs::write(scratch.path().join("mine.json"), r#"{"Zaxxon": [1.0]}"#).unwrap();
    let cases: [(&[&str], &str); 5] = [
        (&["mine.json"], "no random and human score for Zaxxon. Give them with --references FILE"),
        (&["--agents", "Dreamer"], "no published agent is called Dreamer"),
        (&["--rng", "numpy", "--seed", "4294967296"], "numpy's seeds end at 4294967295"),
        (&["--reps", "0"], "at least one replicate is needed"),
        (&["--reps", "100000000000"], "--reps must be at most 10000000"),
    ];
    for (arguments, expected) in cases {
        let output = scratch.iris(arguments);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success());
        assert!(
            text.starts_with("error: ") && text.contains(expected) && text.lines().count() == 1,
            "{text}"
        );
    }
}

#[test]
fn scores_of_built_in_games_need_no_references() {
    let scratch = Folder::new("arcade");
    std::fs::write(scratch.path().join("mine.json"), r#"{"arcade/catch": [5.0, 1.225]}"#).unwrap();
    let output = scratch.iris(&["mine.json", "--reps", "20"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let json: serde_json::Value = serde_json::from_slice(&scratch.read("report/report.json")).unwrap();
    let normalised = json["agents"][0]["games"]["arcade/catch"]["normalised"].as_array().unwrap();
    // Random play scores -2.55, perfect play 5.
    assert!(normalised[0] == 1.0 && (normalised[1].as_f64().unwrap() - 0.5).abs() < 1e-6, "{normalised:?}");
}

/// The user's agent stands out among the published ones, and 4.99 is not 5.
#[test]
fn own_agents_are_set_apart() {
    let scratch = Folder::new("apart");
    let scores = r#"{"Pong": [1.0, 2.0], "arcade/catch": [4.99, 4.99]}"#;
    std::fs::write(scratch.path().join("mine.json"), scores).unwrap();
    let output = scratch.iris(&["mine.json", "--agents", "all", "--reps", "20"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(scratch.text("report/table.md").contains("| arcade/catch | -2.55 | 5.00 | "));
    assert!(scratch.text("report/table.md").contains("4.99"));
    let figure = scratch.text("report/aggregates.svg");
    let label = figure.lines().find(|line| line.contains(">mine</text>")).unwrap();
    assert!(label.contains("font-weight=\"bold\""), "{label}");
    assert!(figure.lines().any(|line| line.contains(">SimPLe</text>") && !line.contains("bold")));
}

/// Threads that the system does not allow are done without.
#[cfg(target_os = "linux")]
#[test]
fn a_report_needs_no_threads() {
    let scratch = Folder::new("threads");
    let output = Command::new("sh")
        .current_dir(scratch.path())
        // A stack of a gigabyte does not fit into half of one, and a thread that does not start takes nothing from the rest.
        .args([
            "-c",
            "ulimit -v 500000; exec \"$@\"",
            "sh",
            env!("CARGO_BIN_EXE_iris"),
            "report",
            "--reps",
            "20",
        ])
        .env("RUST_MIN_STACK", (1 << 30).to_string())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
