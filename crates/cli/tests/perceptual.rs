//! `iris import-perceptual` as a user runs it, and a run that trains with what it wrote.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Scratch, iris, stderr, train};
use safetensors::tensor::{Dtype, TensorView};

/// VGG16's state dict as safetensors, with small weights.
fn vgg() -> Vec<u8> {
    let layers: [(usize, usize); 13] = [
        (0, 64),
        (2, 64),
        (5, 128),
        (7, 128),
        (10, 256),
        (12, 256),
        (14, 256),
        (17, 512),
        (19, 512),
        (21, 512),
        (24, 512),
        (26, 512),
        (28, 512),
    ];
    let mut inputs = 3;
    let mut tensors = Vec::new();
    for (layer, channels) in layers {
        let scale = (6.0 / (9 * inputs) as f32).sqrt();
        let weight = |i: usize| scale * ((i * 7919 % 1009) as f32 / 504.5 - 1.0);
        let bytes = (0..channels * inputs * 9).flat_map(|i| weight(i).to_le_bytes()).collect::<Vec<u8>>();
        tensors.push((format!("features.{layer}.weight"), vec![channels, inputs, 3, 3], bytes));
        tensors.push((format!("features.{layer}.bias"), vec![channels], vec![0; 4 * channels]));
        inputs = channels;
    }
    let views = tensors
        .iter()
        .map(|(name, shape, bytes)| (name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
    safetensors::serialize(views, None).unwrap()
}

#[test]
fn a_run_trains_with_imported_weights() {
    let scratch = Scratch::new("perceptual");
    let path = |name: &str| scratch.0.join(name);
    let lpips = concat!(env!("CARGO_MANIFEST_DIR"), "/../agent/tests/perceptual/lpips.pth");
    std::fs::write(path("vgg.safetensors"), vgg()).unwrap();
    let import = |lpips: &str| {
        let mut command = iris();
        command
            .arg("import-perceptual")
            .arg(path("vgg.safetensors"))
            .arg(lpips)
            .arg("--out")
            .arg(path("weights"));
        command.output().unwrap()
    };

    // A file that is cut off: one line, and nothing is written.
    let whole = std::fs::read(lpips).unwrap();
    std::fs::write(path("cut.pth"), &whole[..whole.len() - 4]).unwrap();
    let output = import(path("cut.pth").to_str().unwrap());
    assert_eq!((output.status.code(), stderr(&output).lines().count()), (Some(1), 1), "{}", stderr(&output));
    assert!(
        stderr(&output).ends_with("cut.pth is not a PyTorch checkpoint: it is cut off\n"),
        "{}",
        stderr(&output)
    );
    assert!(!path("weights").exists());

    let output = import(lpips);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(
        said.contains("vgg.safetensors: not torchvision's vgg16-397923af.pth byte for byte (SHA-256 "),
        "{said}"
    );
    assert!(said.contains("lpips.pth: not the vgg.pth of LPIPS 0.1 byte for byte (MD5 "), "{said}");
    let setting = format!("tokenizer.perceptual={}", path("weights").display());
    assert!(said.ends_with(&format!("train with it: {setting}\n")), "{said}");

    let run = path("run");
    let output = train(&run, &[&setting, "epochs=2"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(!stderr(&output).contains("perceptual network is random"), "{}", stderr(&output));
    let metrics = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    assert!(metrics.contains("tokenizer/train/perceptual_loss"), "{metrics}");

    // The settings of the release take these weights, too.
    let release = ["--preset", "atari-100k-release", "--env", "arcade/catch", "agent.tokenizer.channels=32"];
    let settings = [&setting, "epochs=1", "evaluation.final_episodes=0", "collection.steps=20"];
    let output = iris().arg("train").args(release).args(settings).arg("--out").arg(path("release")).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let config = std::fs::read_to_string(path("release/config.toml")).unwrap();
    for line in ["perceptual_dropout = 0.5", "stop_at_end = false"] {
        assert!(config.lines().any(|found| found == line), "{config}");
    }

    // A run's folder is not for weights.
    let output = iris()
        .arg("import-perceptual")
        .args([path("vgg.safetensors"), lpips.into()])
        .arg("--out")
        .arg(&run)
        .output();
    let said = stderr(&output.unwrap());
    assert!(said.contains("holds a run or an agent: choose another folder"), "{said}");
}
