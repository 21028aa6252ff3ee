//! `iris train` on tiny budgets, as a user runs it: a whole run, and one given nonsense.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::io::BufRead;
use std::process::Stdio;

use common::{SMALL, Scratch, iris, stderr, train};

#[test]
fn a_run_goes_through_every_phase_and_can_be_evaluated() {
    let scratch = Scratch::new("whole");
    let run = scratch.0.join("run");
    let output = train(&run, &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("200 steps of arcade/catch") && said.contains("of the way"), "{said}");

    let metrics = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let last: serde_json::Value = serde_json::from_str(metrics.lines().last().unwrap()).unwrap();
    assert_eq!(metrics.lines().count(), 4);
    for name in [
        "tokenizer/train/commitment_loss",
        "world_model/train/loss_obs",
        "actor_critic/train/loss_values",
        "collection/steps",
        "evaluation/return",
    ] {
        assert!(last[name].as_f64().is_some_and(f64::is_finite), "{name} in {last}");
    }
    // Two checkpoints are kept, and the resolved config.
    assert_eq!(std::fs::read_dir(run.join("checkpoints")).unwrap().count(), 2);
    let config = std::fs::read_to_string(run.join("config.toml")).unwrap();
    assert!(config.contains("actions = 3") && config.contains("steps = 50"), "{config}");

    // TensorBoard shows when an epoch was over, also after the run was resumed.
    let events = || std::fs::read(run.join(common::EVENTS)).unwrap();
    let (written, times) = (events(), common::wall_times(&events()));
    assert!(times.len() == 5 && times.is_sorted() && times[0] > 1.6e9, "{times:?}");
    assert!(iris().args(["train", "--resume"]).arg(&run).output().unwrap().status.success());
    assert!(common::wall_times(&events())[1..] == times[1..] && events().len() == written.len());

    // The tiny preset's policy has parts that the reference release does not know.
    let file = scratch.0.join("out.safetensors");
    let export =
        iris().arg("export").arg(run.join("checkpoints/000004")).arg("--out").arg(&file).output().unwrap();
    assert!(!export.status.success() && !file.exists());
    assert!(stderr(&export).contains("has no actor_critic.skip"), "{}", stderr(&export));

    let evaluate = |episodes: &str| {
        let arguments = ["--json", "--episodes", episodes, "--seed", "1"];
        let output = iris().arg("eval").arg(&run).args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let result = evaluate("5");
    assert_eq!(result["returns"].as_array().unwrap().len(), 5);
    assert!(result["standard_error"].is_number());
    assert_eq!(result, evaluate("5"));
    // One game has no spread.
    assert!(evaluate("1")["standard_error"].is_null());
    // For people, in words.
    let output = iris().arg("eval").arg(&run).args(["--episodes", "5", "--seed", "1"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mean = format!("mean return    {:10.2}  +- ", result["mean"].as_f64().unwrap());
    assert!(text.starts_with("arcade/catch, 5 games at temperature 0.5, seed 1\n"), "{text}");
    assert!(text.contains(&mean) && text.ends_with("% of the way from random to perfect play\n"), "{text}");
}

#[test]
fn nonsense_is_answered_with_one_line_that_helps() {
    let scratch = Scratch::new("nonsense");
    let run = scratch.0.join("run");
    let refused = |arguments: &[&str]| {
        let output = train(&run, arguments);
        assert!(!output.status.success() && !run.exists(), "{arguments:?}");
        let text = stderr(&output);
        assert_eq!(text.lines().count(), 1, "{text}");
        text
    };
    assert_eq!(
        refused(&["collection.stepz=5"]),
        "error: no key is called `collection.stepz`. Did you mean `steps`?\n"
    );
    assert!(
        refused(&["collection.steps=many"]).contains("`collection.steps` must be an integer, not a string")
    );
    assert!(refused(&["collection.steps=0"]).contains("collection.steps is 0, but must be at least 1"));
    assert!(refused(&["collection=5"]).contains("`collection` is a table; set one of its keys"));
    assert!(
        refused(&["collection.epsilon=1.5"]).contains("collection.epsilon is 1.5, but must be from 0 to 1")
    );
    for (nonsense, answer) in [
        ("collection.envs=0", "collection.envs is 0, but must be at least 1"),
        ("collection.envs=7", "collection.envs is 7, which does not divide collection.steps, which is 50"),
        ("tokenizer.schedule.learning_rate=nan", "tokenizer.schedule.learning_rate is NaN"),
        (
            "world_model.schedule.learning_rate=-1",
            "world_model.schedule.learning_rate is -1, but must be above 0",
        ),
        ("actor_critic.schedule.max_grad_norm=0", "actor_critic.schedule.max_grad_norm is 0"),
        ("tokenizer.schedule.batch=1000000000", "must be from 1 to 65536"),
        ("actor_critic.burn_in=1000000000", "actor_critic.burn_in is 1000000000, but must be from 0 to"),
        ("evaluation.episodes=1000000000000", "must be from 1 to 1000000"),
        ("agent.world_model.steps=1000000", "agent.world_model.steps is 1000000, but must be from 1 to"),
        ("evaluation.temperature=-0.5", "evaluation.temperature is -0.5, but must be at least 0"),
        ("tokenizer.perceptual_dropout=1", "must be from 0 to below 1"),
        ("epochs=-1", "`epochs` is -1, but must be at least 0"),
        ("epochs=99999999999999999999", "`epochs` is 99999999999999999999, which is more than"),
        ("agent.actor_critic.channels=[16,-2]", "`agent.actor_critic.channels` holds -2, but takes whole"),
        ("agent.tokenizer.frame_size=8192", "1048576 tokens of a frame, which are too many"),
        ("world_model.weight_decay=-1", "world_model.weight_decay is -1, but must be at least 0"),
        ("tokenizer.schedule.after=0", "`tokenizer.schedule.after`. Did you mean `start_after`?"),
        ("a=3", "no key is called `a`\n"),
        ("epochs=", "`epochs` has no value, but must be an integer"),
        ("epochs=\"3\"", "`epochs` is \"3\", which is text: a number has no quotes"),
        ("actor_critic.returns.gamma=", "`actor_critic.returns.gamma` has no value, but must be a float"),
        (
            "actor_critic.returns.gamma=18446744073709551615",
            "`actor_critic.returns.gamma` is 18446744073709551615, which is more than",
        ),
        ("agent.actions=7", "agent.actions is 7, but arcade/catch has 3: leave it out"),
        (
            "agent.tokenizer.attention_sizes=[0]",
            "agent.tokenizer.attention_sizes is [0], but no image has size 0",
        ),
        (
            "tokenizer.schedule.final_learning_rate=1e30",
            "tokenizer.schedule.final_learning_rate is 1000000000000000000000000000000, but must be from 0 to",
        ),
        ("actor_critic.schedule.updates=4294967296", "must be from 0 to 10000000"),
        (
            "world_model.schedule.first_updates=9223372036854775807",
            "world_model.schedule.first_updates is 9223372036854775807, but must be from 0 to 10000000",
        ),
        ("epochs=1000000000000", "epochs is 1000000000000, but must be from 1 to 4294967295"),
    ] {
        let text = refused(&[nonsense]);
        assert!(text.contains(answer), "{text}");
    }
    assert!(
        refused(&["agent.tokenizer.frame_size=24", "tokenizer.perceptual=random"])
            .contains("needs an agent.tokenizer.frame_size that 16 divides, not 24")
    );
    // More than an address can name.
    let huge = refused(&["agent.world_model.width=1048576", "agent.world_model.layers=256"]);
    assert!(
        huge.contains("the machine has no memory for world_model parameters: ")
            && huge.contains("smaller networks"),
        "{huge}"
    );
    assert!(refused(&["epochs"]).contains("`epochs` is not an override: write key.sub=value"));
    let deep = format!("{}=1", ["a"; 60_000].join("."));
    assert!(refused(&[&deep]).contains("an override has a key of 60000 parts; no key has more than 16"));
    assert!(
        refused(&["agent.world_model.heads=3"])
            .contains("agent.world_model.heads is 3, which does not divide")
    );
    assert!(refused(&["actor_critic.horizon=9"]).contains("actor_critic.horizon is 9, but must be from 2"));
    assert!(refused(&["agent.tokenizer.frame_size=36"]).contains("which cannot be halved 3 times"));
    assert!(refused(&["--env", "arcade/cacth"]).contains("Did you mean `arcade/catch`?"));
    let unknown = refused(&["--env", "nope"]);
    assert!(
        unknown.starts_with("error: no game is called `nope`. `") && !unknown.contains("Did you"),
        "{unknown}"
    );
    assert!(refused(&["--env", "BREAKOUT"]).contains("may be `arcade/breakout` or `atari/Breakout`: give"));
    let preset = iris().args(["train", "--preset", "tinny", "--out"]).arg(&run).output().unwrap();
    assert!(
        !preset.status.success() && stderr(&preset).contains("Did you mean `tiny`?"),
        "{}",
        stderr(&preset)
    );
    assert!(refused(&["--config", "no/such/file.toml"]).contains("cannot read no/such/file.toml"));
    let file = scratch.0.join("quoted.toml");
    std::fs::write(&file, "epochs = \"3\"\n").unwrap();
    let text = refused(&["--config", file.to_str().unwrap()]);
    assert!(text.contains("quoted.toml: `epochs` is \"3\", which is text"), "{text}");

    assert!(train(&run, &[]).status.success());
    let again = train(&run, &[]);
    assert!(!again.status.success() && stderr(&again).contains("already holds a run"), "{}", stderr(&again));
}

/// Settings are no options, and whoever tries is told how to write them.
#[test]
fn a_setting_written_as_an_option_is_shown_as_one() {
    let refused = |arguments: &[&str]| {
        let output = iris().args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        stderr(&output)
    };
    let line = |setting: &str| {
        format!("error: there is no option {setting}; settings are given as key=value, without dashes: ")
    };
    assert!(refused(&["train", "--epochs", "3"]).starts_with(&(line("--epochs") + "epochs=3\n")));
    assert!(refused(&["config", "--epochs=3"]).starts_with(&(line("--epochs") + "epochs=3\n")));
    let text = refused(&["train", "--collection.steps", "7"]);
    assert!(text.starts_with(&(line("--collection.steps") + "collection.steps=7\n")), "{text}");
    let text = refused(&["train", "--learning-rate", "1e-3", "--env", "arcade/pong"]);
    let keys =
        ["actor_critic", "tokenizer", "world_model"].map(|n| format!("{n}.schedule.learning_rate=1e-3"));
    let keys = format!("{}, {} or {}\n", keys[0], keys[1], keys[2]);
    assert!(text.starts_with(&(line("--learning-rate") + &keys)), "{text}");
    // Without a value, and where nothing of the kind exists.
    assert!(refused(&["train", "--epochs"]).starts_with(&(line("--epochs") + "epochs=...\n")));
    assert!(refused(&["train", "--nothing"]).starts_with("error: unexpected argument '--nothing' found"));
    assert!(refused(&["eval", "--epochs", "3"]).starts_with("error: unexpected argument '--epochs' found"));
}

/// A time limit is an end to learn, as in the paper, unless the config says otherwise. Freeway has nothing but a time limit, catch none.
#[test]
fn time_limits_are_learnt_as_ends_or_not() {
    let scratch = Scratch::new("truncated");
    let metrics = |game: &str, ends: &str| {
        let run = scratch.0.join(format!("{}-{ends}", game.replace('/', "-")));
        let key = format!("world_model.truncation_ends_episode={ends}");
        let output = train(&run, &["--env", game, &key, "world_model.schedule.batch=16"]);
        assert!(output.status.success(), "{}", stderr(&output));
        std::fs::read_to_string(run.join("metrics.jsonl")).unwrap()
    };
    let loss_of_ends = |metrics: &str| {
        let last: serde_json::Value = serde_json::from_str(metrics.lines().last().unwrap()).unwrap();
        last["world_model/train/loss_ends"].as_f64().unwrap()
    };
    let [learnt, ignored] = ["true", "false"].map(|ends| metrics("arcade/freeway", ends));
    assert_ne!(loss_of_ends(&learnt), loss_of_ends(&ignored));
    assert_eq!(metrics("arcade/catch", "true"), metrics("arcade/catch", "false"));
}

/// Before anything else happens.
#[test]
fn a_run_that_takes_days_is_announced_before_it_begins() {
    let scratch = Scratch::new("forecast");
    let start = |epochs: &str| {
        let mut command = iris();
        command.arg("train").args(SMALL).args([epochs, "evaluation.every=0"]).arg("--out");
        let mut child = command.arg(scratch.0.join(epochs)).stderr(Stdio::piped()).spawn().unwrap();
        let lines = std::io::BufReader::new(child.stderr.take().unwrap()).lines();
        let lines: Vec<String> =
            lines.map_while(Result::ok).filter(|line| !line.starts_with("note")).take(2).collect();
        child.kill().unwrap();
        child.wait().unwrap();
        lines[1].clone()
    };
    let long = start("epochs=4000000000");
    assert!(long.starts_with("warning: this run takes about "), "{long}");
    assert!(long.contains(" on this device: ") && long.contains("Quicker: a GPU"), "{long}");
    let short = start("epochs=60");
    assert!(short.starts_with("60 epochs take about ") && short.ends_with(" on this device"), "{short}");
}

/// Which of the networks, and when.
#[test]
fn a_network_that_diverges_is_named() {
    let scratch = Scratch::new("diverged");
    for (network, epoch) in [("tokenizer", 1), ("world_model", 2), ("actor_critic", 2)] {
        let output =
            train(&scratch.0.join(network), &[&format!("{network}.schedule.learning_rate=1e30"), "epochs=2"]);
        let text = stderr(&output);
        let expected = format!("error: {network}, epoch {epoch}: the loss is NaN");
        assert!(!output.status.success() && text.contains(&expected), "{text}");
    }
}

#[test]
fn what_a_config_leaves_out_is_said() {
    let scratch = Scratch::new("remarks");
    let run = scratch.0.join("run");
    let attention = "agent.tokenizer.attention_sizes=[16,7]";
    let text = stderr(&train(&run, &["epochs=1", "evaluation.final_episodes=1", attention]));
    let expected = "note: agent.tokenizer.attention_sizes holds 7, which changes nothing: the tokenizer's images have sides [32, 16, 8";
    assert!(text.contains(expected) && !text.contains("holds 16"), "{text}");
    for network in ["world_model", "actor_critic"] {
        let expected =
            format!("note: the {network} does not learn in 1 epochs: {network}.schedule.start_after is 1\n");
        assert!(text.contains(&expected), "{text}");
    }
    assert!(!text.contains("nothing is played"), "{text}");
    let resumed = iris().args(["train", "--resume"]).arg(&run).output().unwrap();
    let said = String::from_utf8_lossy(&resumed.stdout);
    assert!(resumed.status.success() && said.starts_with("all 1 epochs of this run are over"), "{said}");
    // A config that was edited afterwards counts for nothing, and that is said.
    let config = run.join("config.toml");
    let edited = std::fs::read_to_string(&config).unwrap().replace("epochs = 1\n", "epochs = 2\n");
    std::fs::write(&config, edited).unwrap();
    let resumed = iris().args(["train", "--resume"]).arg(&run).output().unwrap();
    assert!(
        stderr(&resumed).contains("config.toml differs from the config this run was started with"),
        "{}",
        stderr(&resumed)
    );
}

/// Without `--out`, in the same second, with the same seed.
#[test]
fn every_run_has_a_folder_of_its_own() {
    let scratch = Scratch::new("folders");
    let children: Vec<_> = (0..3)
        .map(|_| {
            let mut command = iris();
            command.current_dir(&scratch.0).arg("train").args(SMALL).arg("epochs=1");
            command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
        })
        .collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
    }
    // One that never begins leaves none.
    let mut huge = iris();
    huge.current_dir(&scratch.0).args(["train", "agent.world_model.width=1048576"]);
    assert!(!huge.arg("agent.world_model.layers=256").output().unwrap().status.success());
    assert_eq!(std::fs::read_dir(scratch.0.join("runs/arcade/catch")).unwrap().count(), 3);
}

#[test]
fn the_printed_config_is_one_that_train_takes() {
    let scratch = Scratch::new("config");
    let print = |arguments: &[&str]| {
        let output = iris().arg("config").args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let changed = print(&["collection.steps=7", "--env", "arcade/pong", "--seed", "5"]);
    let file = scratch.0.join("changed.toml");
    std::fs::write(&file, &changed).unwrap();
    assert_eq!(print(&["--config", file.to_str().unwrap()]), changed);
    // It holds the number of actions of its own game, not of every other.
    assert!(print(&["--config", file.to_str().unwrap(), "--env", "arcade/freeway"]).contains("steps = 7"));
    assert!(
        changed.contains("steps = 7")
            && changed.contains("env = \"arcade/pong\"")
            && changed.contains("seed = 5")
    );
    // Every line that sets something is preceded by what it means.
    let lines: Vec<&str> = changed.lines().collect();
    let undocumented = lines.windows(2).find(|l| l[1].contains(" = ") && !l[0].starts_with("# "));
    assert_eq!(undocumented, None);
    // What a preset says about a game comes before what the user says.
    assert!(print(&["--env", "arcade/pong"]).contains("first_updates = 2500"));
    let changed = print(&["--env", "arcade/pong", "world_model.schedule.first_updates=7"]);
    assert!(changed.contains("first_updates = 7\n"));
    // A short name is as good as the whole one, and goes to the same folder.
    assert!(print(&["--env", "breakout"]).contains("env = \"arcade/breakout\"\n"));
    let games = String::from_utf8(iris().arg("envs").output().unwrap().stdout).unwrap();
    let missing = games.lines().filter(|line| line.contains("(not in this build)")).count();
    assert_eq!(missing, if cfg!(feature = "atari") { 0 } else { 26 }, "{games}");
    assert!(["catch", "pong", "breakout", "freeway"].iter().all(|name| games.contains(name)), "{games}");
}

/// Results do not depend on how much of the replay is kept on the device.
#[test]
fn a_small_replay_cache_changes_no_bit() {
    let scratch = Scratch::new("cache");
    let (whole, small) = (scratch.0.join("whole"), scratch.0.join("small"));
    assert!(train(&whole, &[]).status.success());
    let mut command = iris();
    command.env("IRIS_REPLAY_CACHE_MIB", "0").arg("train").args(SMALL).arg("--out").arg(&small);
    assert!(command.output().unwrap().status.success());
    common::assert_same_results(&whole, &small, "");
}

/// The README's example of a game of one's own, built beside the tests.
#[test]
fn a_game_of_ones_own_is_trained_like_the_others() {
    let example =
        std::path::Path::new(env!("CARGO_BIN_EXE_iris")).with_file_name("examples").join("own_game");
    if !example.exists() {
        // Only this file's tests were asked for.
        let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
        let build = ["build", "--example", "own_game", "--profile", profile];
        assert!(std::process::Command::new(env!("CARGO")).args(build).status().unwrap().success());
    }
    let scratch = Scratch::new("own");
    let run = scratch.0.join("run");
    let output = common::on_the_cpu(std::process::Command::new(example))
        .args(["train", "--env", "my/lamp"])
        .args(common::SMALL)
        .arg("--out")
        .arg(&run)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("steps of my/lamp"));
}

#[cfg(target_os = "linux")]
#[test]
fn output_that_nobody_takes_is_no_panic() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = iris().arg("envs").stdout(writer).output().unwrap();
    assert!(output.status.success() && stderr(&output).is_empty(), "{}", stderr(&output));
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = iris().arg("config").stdout(full).output().unwrap();
    assert!(!output.status.success(), "a full disk went unnoticed");
    assert!(
        stderr(&output).starts_with("error: cannot write to standard output: No space left"),
        "{}",
        stderr(&output)
    );
}

/// `iris train 2>&1 | head`, or a log on a full disk.
#[cfg(target_os = "linux")]
#[test]
fn a_log_that_cannot_be_written_stops_nothing() {
    let scratch = Scratch::new("log");
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let run = scratch.0.join("run");
    let trained = iris().arg("train").args(SMALL).arg("--out").arg(&run).stderr(full()).output().unwrap();
    assert!(trained.status.success(), "{:?}", trained.status);
    assert!(String::from_utf8_lossy(&trained.stdout).contains("4 epochs in"));
    assert!(run.join("checkpoints/000004/state.json").exists());

    let closed = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        writer
    };
    let other = scratch.0.join("other");
    let trained = iris().arg("train").args(SMALL).arg("--out").arg(&other).stderr(closed()).output().unwrap();
    assert!(trained.status.success(), "{:?}", trained.status);
    for command in ["eval", "dream"] {
        let output = iris().arg(command).arg(&run).stderr(closed()).output().unwrap();
        assert!(output.status.success() && !output.stdout.is_empty(), "{command}: {:?}", output.status);
    }
    // An error that nobody reads is an error all the same.
    assert_eq!(iris().args(["eval", "no/such/run"]).stderr(full()).output().unwrap().status.code(), Some(1));
}
