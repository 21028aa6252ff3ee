//! Runs whose world model learns rewards in other ways than by their signs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Scratch, assert_same_results, iris, stderr, train};

/// Training, continuing and dreaming work with each; only signs can be exported.
#[test]
fn rewards_are_learnt_in_three_ways() {
    let scratch = Scratch::new("rewards");
    let key = "agent.world_model.reward";
    for kind in ["sign", "mse", "symlog-bins"] {
        let (whole, run) = (scratch.0.join(format!("{kind}-whole")), scratch.0.join(kind));
        let settings = [format!("{key}={kind}"), "evaluation.final_episodes=2".into()];
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        let output = train(&whole, &settings);
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(train(&run, &[&settings[..], &["epochs=2"]].concat()).status.success());
        let resumed = iris().args(["train", "--resume"]).arg(&run).arg("epochs=4").output().unwrap();
        assert!(resumed.status.success(), "{}", stderr(&resumed));
        assert_same_results(&whole, &run, kind);
        let out = scratch.0.join("dream");
        let dreamt = iris().arg("dream").arg(&run).arg("--out").arg(&out).output().unwrap();
        assert!(dreamt.status.success(), "{}", stderr(&dreamt));
        let exported =
            iris().arg("export").arg(&run).arg("--out").arg(scratch.0.join("file")).output().unwrap();
        let said = stderr(&exported);
        match kind {
            // The default policy has layers of its own.
            "sign" => assert!(said.contains("has no actor_critic."), "{said}"),
            _ => assert!(said.contains("has no world_model.reward other than"), "{said}"),
        }
    }
    let output = train(&scratch.0.join("wrong"), &[&format!("{key}=huber")]);
    assert!(stderr(&output).contains("expected one of `sign`, `mse`, `symlog-bins`"), "{}", stderr(&output));
}
