//! Games that a program brings along: this file is such a program, and the test that starts it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::path::Path;
use std::process::{Command, ExitCode, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{SMALL, Scratch, on_the_cpu, stderr};
use envs::arcade::Catch;
use envs::{Env, EnvError, Game, Step};

/// Set where this program is to be `iris`: what fails and when, such as `step 120`, or nothing.
const FAILURE: &str = "IRIS_TEST_FAILURE";

fn main() -> ExitCode {
    if let Ok(failure) = std::env::var(FAILURE) {
        return iris_with_a_game(&failure);
    }
    // Without the harness a filter is ours to respect.
    let filter = std::env::args().nth(1).filter(|word| !word.starts_with('-')).unwrap_or_default();
    let tests: [(&str, fn()); 3] = [
        ("a_game_that_fails_says_so_and_loses_nothing", a_game_that_fails_says_so_and_loses_nothing),
        ("a_game_that_fails_in_an_evaluation_says_so", a_game_that_fails_in_an_evaluation_says_so),
        ("names_made_at_run_time_are_as_good_as_any", names_made_at_run_time_are_as_good_as_any),
    ];
    for (name, test) in tests.iter().filter(|(name, _)| name.contains(&filter)) {
        test();
        println!("test {name} ... ok");
    }
    ExitCode::SUCCESS
}

#[derive(Debug, thiserror::Error)]
#[error("the cable is loose in {0} number {1}")]
struct Loose(&'static str, usize);

/// Catch on a cable: fails when a count of resets or steps in this process is reached.
struct Cable {
    game: Catch,
    fails: Option<(String, usize)>,
}

static RESETS: AtomicUsize = AtomicUsize::new(0);
static STEPS: AtomicUsize = AtomicUsize::new(0);

impl Cable {
    fn check(&self, what: &'static str, counter: &AtomicUsize) -> Result<(), EnvError> {
        let number = 1 + counter.fetch_add(1, Ordering::Relaxed);
        match &self.fails {
            Some((fails, at)) if fails == what && number >= *at => Err(EnvError::other(Loose(what, number))),
            _ => Ok(()),
        }
    }
}

impl Env for Cable {
    fn action_names(&self) -> Vec<String> {
        (1..=3).map(|wire| format!("wire {wire}")).collect()
    }

    fn frame_size(&self) -> (usize, usize) {
        self.game.frame_size()
    }

    fn reset(&mut self, seed: u64) -> Result<(), EnvError> {
        self.check("reset", &RESETS)?;
        self.game.reset(seed)
    }

    fn step(&mut self, action: usize) -> Result<Step, EnvError> {
        self.check("step", &STEPS)?;
        self.game.step(action)
    }

    fn render(&self, frame: &mut [u8]) {
        self.game.render(frame);
    }
}

fn iris_with_a_game(failure: &str) -> ExitCode {
    let fails = failure.split_once(' ').map(|(what, at)| (what.to_string(), at.parse().unwrap()));
    let host = format!("host-{}", 7);
    envs::register(Game {
        name: format!("cable/{host}"),
        rules: format!("Catch on {host}."),
        random: -2.55,
        skilled: 5.0,
        yardstick: "perfect".into(),
        make: Arc::new(move |_| Ok(Box::new(Cable { game: Catch::new(), fails: fails.clone() }))),
    });
    iris::main()
}

fn program(failure: &str) -> Command {
    let mut command = on_the_cpu(Command::new(std::env::current_exe().unwrap()));
    command.env(FAILURE, failure);
    command
}

fn train(failure: &str, run: &Path, extra: &[&str]) -> Output {
    let mut command = program(failure);
    command.args(["train", "--env", "cable/host-7"]).args(SMALL).args(extra).arg("--out").arg(run);
    command.output().unwrap()
}

/// Steps are counted over the run: 50 in each of four epochs, and evaluations only at the end.
fn a_game_that_fails_says_so_and_loses_nothing() {
    let scratch = Scratch::new("failing");
    let whole = scratch.0.join("whole");
    let output = train("", &whole, &["evaluation.every=0"]);
    assert!(output.status.success(), "{}", stderr(&output));
    for (failure, error) in [
        ("step 120", "error: the cable is loose in step number 120\n"),
        ("reset 4", "error: the cable is loose in reset number 4\n"),
        ("reset 1", "error: the cable is loose in reset number 1\n"),
    ] {
        let run = scratch.0.join(failure);
        let output = train(failure, &run, &["evaluation.every=0"]);
        assert_eq!(output.status.code(), Some(1), "{failure}");
        assert!(stderr(&output).ends_with(error), "{}", stderr(&output));
        let resumed = program("").args(["train", "--resume"]).arg(&run).output().unwrap();
        assert!(resumed.status.success(), "{}", stderr(&resumed));
        for ((name, expected), (_, got)) in common::results(&whole).into_iter().zip(common::results(&run)) {
            assert!(expected == got, "{failure}: {name} differs");
        }
    }
}

fn a_game_that_fails_in_an_evaluation_says_so() {
    let scratch = Scratch::new("failing-eval");
    let run = scratch.0.join("run");
    assert!(train("", &run, &["epochs=1"]).status.success());
    for failure in ["reset 2", "step 2"] {
        let output = program(failure).arg("eval").arg(&run).output().unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
        assert!(stderr(&output).contains("error: the cable is loose in "), "{}", stderr(&output));
    }
}

fn names_made_at_run_time_are_as_good_as_any() {
    let scratch = Scratch::new("run-time-names");
    let run = scratch.0.join("run");
    let trained = train("", &run, &["epochs=1"]);
    assert!(trained.status.success(), "{}", stderr(&trained));
    // What to do next is said with this program's name, not with that of one that does not know the game.
    let hint = format!("next: {} dream {}", std::env::current_exe().unwrap().display(), run.display());
    let said = String::from_utf8_lossy(&trained.stdout).into_owned();
    assert!(said.contains(&hint), "{said}");
    let dream = |actions: &str| {
        let mut command = program("");
        command.arg("dream").arg(&run).args(["--actions", actions, "--steps", "3"]).output().unwrap()
    };
    let output = dream("wire 1,wire 3");
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stderr(&dream("wire 9"));
    assert!(text.contains("this game has wire 1, wire 2, wire 3"), "{text}");
    let listed = program("").arg("envs").output().unwrap();
    assert!(String::from_utf8_lossy(&listed.stdout).contains("cable/host-7 "));
    // By its short name, which is not the name of its folder.
    let config = program("").args(["config", "--env", "host-7"]).output().unwrap();
    assert!(String::from_utf8_lossy(&config.stdout).contains("env = \"cable/host-7\"\n"));
}
