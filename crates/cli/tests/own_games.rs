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
    let tests: [(&str, fn()); 4] = [
        ("a_game_that_fails_says_so_and_loses_nothing", a_game_that_fails_says_so_and_loses_nothing),
        ("a_game_that_fails_in_an_evaluation_says_so", a_game_that_fails_in_an_evaluation_says_so),
        ("names_made_at_run_time_are_as_good_as_any", names_made_at_run_time_are_as_good_as_any),
        ("amounts_count_where_the_world_model_learns_them", amounts_count_where_the_world_model_learns_them),
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

/// A choice between two ways of three steps: 1 on each of them, or 10 on the last. The frame shows the way and the step.
#[derive(Default)]
struct Purse {
    way: usize,
    steps: usize,
}

impl Env for Purse {
    fn action_names(&self) -> Vec<String> {
        ["often", "much"].map(String::from).to_vec()
    }

    fn frame_size(&self) -> (usize, usize) {
        (8, 8)
    }

    fn reset(&mut self, _: u64) -> Result<(), EnvError> {
        *self = Purse::default();
        Ok(())
    }

    fn step(&mut self, action: usize) -> Result<Step, EnvError> {
        if self.steps == 0 {
            self.way = action;
        }
        self.steps += 1;
        let over = self.steps == 3;
        let reward = [1.0, if over { 10.0 } else { 0.0 }][self.way];
        Ok(Step { reward, terminated: over, truncated: false })
    }

    fn render(&self, frame: &mut [u8]) {
        frame.fill(40);
        let lit = 4 * self.way + self.steps;
        frame.chunks_exact_mut(3 * 8).for_each(|line| line[3 * lit..3 * (lit + 1)].fill(255));
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
    envs::register(Game {
        name: "test/purse".into(),
        rules: "Once 10, or three times 1.".into(),
        random: 6.5,
        skilled: 10.0,
        yardstick: "perfect".into(),
        make: Arc::new(|_| Ok(Box::new(Purse::default()))),
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
        common::assert_same_results(&whole, &run, failure);
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

/// Three rewards of 1 beat one of 10 where only their signs are learnt.
fn amounts_count_where_the_world_model_learns_them() {
    let scratch = Scratch::new("amounts");
    for (kind, expected) in [("sign", 3.0), ("mse", 10.0), ("symlog-bins", 10.0)] {
        let run = scratch.0.join(kind);
        let output = program("")
            .args([
                "train",
                "--preset=tiny",
                "--env",
                "test/purse",
                "epochs=4",
                "collection.steps=90",
                "collection.random_epochs=2",
            ])
            .args([
                "tokenizer.schedule.start_after=0",
                "tokenizer.schedule.first_updates=60",
                "tokenizer.schedule.batch=16",
            ])
            .args(["world_model.schedule.start_after=1", "world_model.schedule.first_updates=150"])
            .args([
                "world_model.schedule.updates=50",
                "agent.world_model.steps=4",
                "agent.tokenizer.frame_size=16",
            ])
            .args([
                "actor_critic.schedule.start_after=1",
                "actor_critic.schedule.updates=40",
                "actor_critic.horizon=4",
            ])
            .args(["evaluation.every=0", "evaluation.final_episodes=32"])
            .arg(format!("agent.world_model.reward={kind}"))
            .arg("--out")
            .arg(&run)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let metrics = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
        let last: serde_json::Value = serde_json::from_str(metrics.lines().last().unwrap()).unwrap();
        let mean = last["evaluation/return"].as_f64().unwrap();
        assert!((mean - expected).abs() < 1.0, "{kind}: a return of {mean} instead of about {expected}");
    }
}
