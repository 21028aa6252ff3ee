//! The pretrained perceptual network from files of all formats: the weights, the distance that PyTorch computes with them, and files that are refused.
//! The files of LPIPS were written by PyTorch (`perceptual/make_lpips.py`); those of VGG16, which have 59 MB, are written here.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::io::Write;
use std::path::{Path, PathBuf};

use agent::testing::Scratch;
use agent::{CheckpointError, Perceptual, reference::import_perceptual};
use common::{Golden, assert_close, nhwc};
use engine::{Device, Key, Result, Stepper};
use safetensors::tensor::{Dtype, TensorView};

/// A file of these bytes.
fn write(scratch: &Scratch, name: &str, bytes: &[u8]) -> PathBuf {
    let path = scratch.0.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

fn lpips(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/perceptual").join(name)
}

/// A tensor on its way to a file.
#[derive(Clone)]
struct Tensor {
    name: String,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Tensor {
    fn new(name: &str, shape: &[usize], values: &[f32]) -> Tensor {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Tensor { name: name.into(), shape: shape.to_vec(), bytes }
    }
}

/// VGG16 with the golden weights, and an entry of its classifier.
fn vgg(golden: &Golden) -> Vec<Tensor> {
    let mut tensors = Vec::new();
    let mut inputs = 3;
    for (slice, layers, channels) in [
        (1, &[0, 2][..], 64),
        (2, &[5, 7], 128),
        (3, &[10, 12, 14], 256),
        (4, &[17, 19, 21], 512),
        (5, &[24, 26, 28], 512),
    ] {
        for layer in layers {
            for (part, shape) in [("weight", vec![channels, inputs, 3, 3]), ("bias", vec![channels])] {
                let values =
                    golden.parameter(&format!("tokenizer.lpips.net.slice{slice}.{layer}.{part}"), &shape);
                tensors.push(Tensor::new(&format!("features.{layer}.{part}"), &shape, &values));
            }
            inputs = channels;
        }
    }
    tensors.push(Tensor::new("classifier.6.bias", &[2], &[0.0; 2]));
    tensors
}

fn as_safetensors(tensors: &[Tensor]) -> Vec<u8> {
    let views =
        tensors.iter().map(|t| (&t.name, TensorView::new(Dtype::F32, t.shape.clone(), &t.bytes).unwrap()));
    safetensors::serialize(views, None).unwrap()
}

fn text(s: &str) -> Vec<u8> {
    [&b"X"[..], &(s.len() as u32).to_le_bytes(), s.as_bytes()].concat()
}

fn sizes(sizes: &[usize]) -> Vec<u8> {
    let items = sizes.iter().flat_map(|&n| [&b"J"[..], &(n as u32).to_le_bytes()].concat());
    [&b"("[..], &items.collect::<Vec<u8>>(), b"t"].concat()
}

/// A state dict as `torch.save` pickles it: since PyTorch 1.6, or as torchvision's VGG16 of 2017 was.
fn pickle(tensors: &[Tensor], legacy: bool) -> Vec<u8> {
    let mut out = b"\x80\x02ccollections\nOrderedDict\n)R(".to_vec();
    for (key, tensor) in tensors.iter().enumerate() {
        let row_major: Vec<usize> =
            (0..tensor.shape.len()).map(|axis| tensor.shape[axis + 1..].iter().product()).collect();
        let (rebuild, whole, rest) = match legacy {
            true => ("_rebuild_tensor", &b"N"[..], &b""[..]),
            false => ("_rebuild_tensor_v2", &b""[..], &b"\x89ccollections\nOrderedDict\n)R"[..]),
        };
        let elements = ((tensor.bytes.len() / 4) as u32).to_le_bytes();
        out.extend(text(&tensor.name));
        out.extend(format!("ctorch._utils\n{rebuild}\n((").as_bytes());
        out.extend(
            [&text("storage")[..], b"ctorch\nFloatStorage\n", &text(&key.to_string()), &text("cpu")].concat(),
        );
        out.extend(
            [b"J", &elements[..], whole, b"tQK\x00", &sizes(&tensor.shape), &sizes(&row_major), rest, b"tR"]
                .concat(),
        );
    }
    out.extend(b"u.");
    out
}

fn as_legacy(tensors: &[Tensor]) -> Vec<u8> {
    let mut out =
        b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.\x80\x02}.".to_vec();
    out.extend(pickle(tensors, true));
    out.extend(b"\x80\x02](");
    (0..tensors.len()).for_each(|key| out.extend(text(&key.to_string())));
    out.extend(b"e.");
    for tensor in tensors {
        out.extend(((tensor.bytes.len() / 4) as u64).to_le_bytes());
        out.extend(&tensor.bytes);
    }
    out
}

fn as_zip(tensors: &[Tensor]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let stored = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    let mut add = |name: &str, bytes: &[u8]| {
        zip.start_file(format!("vgg16/{name}"), stored).unwrap();
        zip.write_all(bytes).unwrap();
    };
    add("data.pkl", &pickle(tensors, false));
    tensors.iter().enumerate().for_each(|(key, tensor)| add(&format!("data/{key}"), &tensor.bytes));
    zip.finish().unwrap().into_inner()
}

fn values(perceptual: &Perceptual) -> Vec<f32> {
    perceptual.network.params.values().read::<f32>().unwrap()
}

fn distance(device: &Device, golden: &Golden, perceptual: &Perceptual) -> Result<Vec<f32>> {
    let frames = device.buffer::<f32>("frames", [2, 64, 64, 3])?;
    frames.write(&nhwc(&golden.uniform("input.frames", 2 * 3 * 64 * 64), 3, 64 * 64))?;
    Stepper::new(device, Key::new(0, 0)).run(|tape| {
        let x = tape.buffer(&frames)?;
        let x = tape.affine(x, 2.0, -1.0)?;
        let (a, b) = (tape.slice(x, 0, 0, 1)?, tape.slice(x, 0, 1, 2)?);
        let distance = perceptual.distance(tape, a, b)?;
        tape.read(distance)
    })
}

#[test]
fn every_format_gives_pytorchs_distance() {
    let (golden, device, scratch) = (Golden::load(), Device::under_test(2).unwrap(), Scratch::new("formats"));
    let expected = Perceptual::random(&device, 0.0).unwrap();
    golden.fill(&expected.network, "tokenizer.lpips");
    let tensors = vgg(&golden);
    let linear = golden_linear(&golden);
    let linear = write(&scratch, "lpips.safetensors", &as_safetensors(&linear));
    for (name, bytes, lpips) in [
        ("vgg16.pth", as_legacy(&tensors), lpips("lpips.pth")),
        ("vgg16.pt", as_zip(&tensors), lpips("lpips.pt")),
        ("vgg16.safetensors", as_safetensors(&tensors), linear),
    ] {
        let vgg = write(&scratch, name, &bytes);
        let imported = import_perceptual(&device, &vgg, &lpips).unwrap();
        assert_eq!(values(&imported), values(&expected), "{name}");
        assert_eq!(imported.dropout, 0.0);
    }

    // What is saved and loaded again is the same network, which computes what PyTorch computes.
    let folder = scratch.0.join("network");
    let path = expected.save(&folder).unwrap();
    let loaded = Perceptual::load(&device, &folder, 0.5).unwrap().unwrap();
    assert_eq!((values(&loaded), loaded.dropout), (values(&expected), 0.5));
    let loaded = Perceptual::load(&device, &folder, 0.0).unwrap().unwrap();
    let got = distance(&device, &golden, &loaded).unwrap();
    assert_close("distance", &got, &golden.f32("lpips.value"), 1e-4);

    let good = std::fs::read(&path).unwrap();
    let load = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        Perceptual::load(&device, &folder, 0.0).map(|_| ()).unwrap_err()
    };
    let mut flipped = good.clone();
    *flipped.last_mut().unwrap() ^= 1;
    assert!(matches!(load(&flipped), CheckpointError::Checksum { .. }));
    assert!(matches!(load(&good[..good.len() - 1]), CheckpointError::NotSafetensors { .. }));
    assert!(matches!(load(&as_safetensors(&tensors)), CheckpointError::NotPerceptual { .. }));
}

/// LPIPS's weights with the golden values.
fn golden_linear(golden: &Golden) -> Vec<Tensor> {
    let channels = [64, 128, 256, 512, 512].into_iter().enumerate();
    channels
        .map(|(i, channels)| {
            let (name, shape) = (format!("lin{i}.model.1.weight"), [1, channels, 1, 1]);
            Tensor::new(&name, &shape, &golden.parameter(&format!("tokenizer.lpips.{name}"), &shape))
        })
        .collect()
}

#[test]
fn bad_files_are_refused_with_one_message() {
    let (golden, device, scratch) = (Golden::load(), Device::under_test(2).unwrap(), Scratch::new("bad"));
    let good = vgg(&golden);
    let refusal = |vgg: &Path, lpips: &Path| {
        let text = import_perceptual(&device, vgg, lpips).map(|_| ()).unwrap_err().to_string();
        text.replace(&scratch.0.display().to_string(), "").replace(lpips.to_str().unwrap(), "LPIPS")
    };
    let with = |change: &dyn Fn(&mut Vec<Tensor>)| {
        let mut tensors = good.clone();
        change(&mut tensors);
        refusal(&write(&scratch, "v.pth", &as_legacy(&tensors)), &lpips("lpips.pth"))
    };
    assert_eq!(with(&|t| drop(t.remove(4))), "/v.pth: entry `features.5.weight` is missing");
    assert_eq!(
        with(&|t| t[0].shape = vec![64, 27]),
        "/v.pth: entry `features.0.weight` has shape [64, 27], expected [64, 3, 3, 3]"
    );
    let extra = "is not part of a perceptual network";
    assert_eq!(
        with(&|t| t.push(Tensor::new("features.30.bias", &[1], &[0.0]))),
        format!("/v.pth: entry `features.30.bias` {extra}")
    );
    assert_eq!(
        with(&|t| t[1].bytes[..4].copy_from_slice(&f32::NAN.to_le_bytes())),
        "/v.pth: entry `features.0.bias` holds NaN: the file is damaged, or the network had diverged"
    );
    assert_eq!(
        refusal(&lpips("lpips.pth"), &lpips("lpips.pth")),
        "LPIPS: entry `features.0.weight` is missing"
    );

    // Cut off anywhere, in every format; the first bytes tell the formats apart.
    let vgg = write(&scratch, "v.safetensors", &as_safetensors(&good));
    let files = [
        std::fs::read(lpips("lpips.pth")).unwrap(),
        std::fs::read(lpips("lpips.pt")).unwrap(),
        as_safetensors(&golden_linear(&golden)),
    ];
    for whole in files {
        for length in (0..whole.len()).step_by(211).chain([whole.len() - 1]) {
            let cut = write(&scratch, "cut", &whole[..length]);
            let text = refusal(&vgg, &cut);
            assert!(
                [
                    "is not a PyTorch checkpoint",
                    "refused to read its pickle",
                    "is not a readable safetensors"
                ]
                .iter()
                .any(|start| text.contains(start)),
                "{length}: {text}"
            );
        }
    }

    // A legacy file whose storages are not what its pickle says.
    let whole = as_legacy(&golden_linear(&golden));
    let counts = whole.windows(8).position(|w| w == 64u64.to_le_bytes()).unwrap();
    let mut other = whole.clone();
    other[counts] = 65;
    let text = refusal(&vgg, &write(&scratch, "other", &other));
    assert_eq!(
        text,
        "/other is not a PyTorch checkpoint: storage 0 does not have the 64 elements its tensors expect"
    );
}
