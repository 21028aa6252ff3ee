//! Presets as a user meets them: printed by every build, and refused where something is missing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Scratch, iris, stderr, train};

const PRESETS: [&str; 9] = [
    "tiny-fast",
    "tiny",
    "atari-small",
    "atari-sprint",
    "atari-fast",
    "atari-100k",
    "atari-100k-release",
    "atari-100k-64tokens",
    "atari-10m",
];

#[test]
fn every_build_prints_every_config() {
    let scratch = Scratch::new("presets");
    let file = scratch.0.join("config.toml");
    let config = |arguments: &[&str]| {
        let output = iris().arg("config").args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        let printed = String::from_utf8(output.stdout.clone()).unwrap();
        (printed, stderr(&output))
    };
    for preset in PRESETS {
        for extra in [&[][..], &["--env", "Freeway", "--seed", "7"], &["--env", "arcade/pong"]] {
            let (printed, said) = config(&[&["--preset", preset], extra].concat());
            // Only the emulator knows the number of actions.
            let unknown = said.contains("note: agent.actions is left out, as only the game knows it: ");
            let atari = printed.contains("env = \"atari/");
            assert_eq!(unknown, atari && cfg!(not(feature = "atari")), "{preset}: {said}");
            assert_eq!(printed.lines().any(|line| line.starts_with("actions = ")), !unknown, "{printed}");
            assert_eq!(said.contains("build with --features atari"), unknown, "{said}");
            // It is a file that says the same.
            std::fs::write(&file, &printed).unwrap();
            assert_eq!(config(&["--config", file.to_str().unwrap()]).0, printed);
        }
    }
}

/// Their steps can be timed, also without the emulator.
#[test]
fn steps_of_presets_are_timed() {
    let bench = |preset: &str| iris().args(["bench", "--repeats", "1", "--preset", preset]).output().unwrap();
    for preset in ["tiny-fast", "atari-small"] {
        let output = bench(preset);
        assert!(output.status.success(), "{preset}: {}", stderr(&output));
        let printed = String::from_utf8(output.stdout).unwrap();
        let cases: Vec<&str> =
            printed.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(cases, ["tokenizer", "world-model", "behaviour"], "{preset}: {printed}");
    }
    let refused = bench("tiny-slow");
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("no preset is called `tiny-slow`"), "{}", stderr(&refused));
}

#[test]
fn the_releases_settings_need_pretrained_weights() {
    let scratch = Scratch::new("release-preset");
    let refused = |extra: &[&str]| {
        let mut command = iris();
        command.args(["train", "--preset", "atari-100k-release", "--env", "arcade/catch"]).args(extra);
        let output = command.current_dir(&scratch.0).output().unwrap();
        assert_eq!(
            (output.status.code(), stderr(&output).lines().count()),
            (Some(1), 1),
            "{}",
            stderr(&output)
        );
        stderr(&output)
    };
    for (extra, found) in [
        (&[][..], "tokenizer.perceptual=vgg16-lpips is not a folder that exists"),
        (&["tokenizer.perceptual=random"], "tokenizer.perceptual=random is not a folder."),
        (&["tokenizer.perceptual=none"], "tokenizer.perceptual=none is not a folder."),
        (&["tokenizer.perceptual=elsewhere"], "tokenizer.perceptual=elsewhere is not a folder that exists"),
    ] {
        let said = refused(extra);
        assert!(said.contains(found), "{said}");
        assert!(said.contains(" import-perceptual vgg16-397923af.pth vgg.pth --out vgg16-lpips` "), "{said}");
    }
    // Written to a file and read from there, the settings need the weights as well.
    let printed = iris().args(["config", "--preset", "atari-100k-release", "--env", "arcade/catch"]).output();
    let file = scratch.0.join("config.toml");
    std::fs::write(&file, printed.unwrap().stdout).unwrap();
    let output = iris().arg("train").arg("--config").arg(&file).current_dir(&scratch.0).output().unwrap();
    let said = stderr(&output);
    assert!(
        !output.status.success() && said.contains("tokenizer.perceptual=vgg16-lpips is not a folder that")
    );
    assert!(said.contains(" import-perceptual vgg16-397923af.pth "), "{said}");
    // A folder without the weights is another mistake.
    std::fs::create_dir(scratch.0.join("vgg16-lpips")).unwrap();
    assert!(refused(&[]).contains("tokenizer.perceptual: "));
    assert!(!scratch.0.join("runs/arcade/catch").read_dir().is_ok_and(|mut runs| runs.next().is_some()));
}

#[test]
fn a_run_says_that_its_perceptual_network_is_random() {
    let scratch = Scratch::new("random-perceptual");
    let said = |setting: &str| {
        let settings =
            ["epochs=1", "evaluation.final_episodes=0", "tokenizer.schedule.start_after=9", setting];
        let output = train(&scratch.0.join(setting), &settings);
        assert!(output.status.success(), "{}", stderr(&output));
        stderr(&output)
    };
    let note = "note: the perceptual network is random, that of the paper was trained on photographs: ";
    assert!(said("tokenizer.perceptual=random").contains(note));
    assert!(!said("tokenizer.perceptual=none").contains(note));
}
