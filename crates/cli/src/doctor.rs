//! `iris doctor`: what this program and this machine can do, and whether it works.

use std::time::Instant;

use anyhow::{Result, bail};
use engine::{Device, Error, Precision};

use crate::output::say;
use crate::selftest::{BF16_TOLERANCE, F32_TOLERANCE, Selftest};
use crate::words::counted;

pub fn run() -> Result<()> {
    let mut failures = Vec::new();
    let built = |name, is_in| format!("{} {name}", if is_in { "with" } else { "without" });
    let features = [built("atari", cfg!(feature = "atari")), built("cuda", cfg!(feature = "cuda"))];
    line("iris", &format!("{}, built {}", env!("CARGO_PKG_VERSION"), features.join(", ")));
    line("CPU", &processor());
    let has_gpu = gpu();
    failures.extend(atari());
    say!("\nself-test: losses of three tiny networks after ten training steps");
    let test = Selftest::new()?;
    failures.extend(test_cpu(&test)?);
    if has_gpu {
        failures.extend(test_gpu(&test));
    }
    match failures.is_empty() {
        true => Ok(()),
        false => bail!("these checks failed: {}", failures.join("; ")),
    }
}

fn line(about: &str, text: &str) {
    say!("{about:<10} {text}");
}

/// The name of what failed, if it did.
fn test_cpu(test: &Selftest) -> Result<Option<String>> {
    let device = Device::cpu(None)?;
    let name = format!("the CPU ({})", counted(device.threads(), "thread"));
    Ok((!test.passes(&name, &device, 0.0)).then_some(name))
}

/// The names of what failed. A GPU that cannot be used is not tested.
fn test_gpu(test: &Selftest) -> Vec<String> {
    let mut failures = Vec::new();
    for (precision, name, tolerance) in
        [(Precision::F32, "f32", F32_TOLERANCE), (Precision::Bf16, "bf16", BF16_TOLERANCE)]
    {
        let start = Instant::now();
        match Device::cuda(precision) {
            Ok(device) => {
                let name = format!("{} in {name}", device.name());
                say!("  {name}: ready in {:.1} s", start.elapsed().as_secs_f64());
                if !test.passes(&name, &device, tolerance) {
                    failures.push(name);
                }
            }
            Err(error @ Error::NoGpu { .. }) => {
                say!("  the GPU is not tested: {error}");
                break;
            }
            Err(error) => failures.push(error.to_string()),
        }
    }
    failures
}

/// Name, cores, instructions and memory.
fn processor() -> String {
    let name = value_of("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.into());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let memory = |key| {
        let kib: f64 = value_of("/proc/meminfo", key)?.trim_end_matches("kB").trim().parse().ok()?;
        Some(kib * 1024.0)
    };
    let memory = match (memory("MemAvailable"), memory("MemTotal")) {
        (Some(free), Some(all)) => format!(", {}", free_of(free, all)),
        _ => String::new(),
    };
    format!("{name}, {}, {}{memory}", counted(cores, "core"), engine::instructions())
}

/// The first value under `key` in a file of lines `key: value`, as in Linux's /proc.
fn value_of(file: &str, key: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let mut pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.find(|(name, _)| name.trim() == key).map(|(_, value)| value.trim().to_string())
}

fn free_of(free: f64, all: f64) -> String {
    let gib = f64::from(1 << 30);
    format!("{:.1} of {:.1} GiB memory free", free / gib, all / gib)
}

#[cfg(not(feature = "cuda"))]
fn gpu() -> bool {
    if let Err(error) = Device::cuda(Precision::F32) {
        line("GPU", &crate::advice::with(error.to_string(), crate::advice::on_gpu(&error)));
    }
    false
}

/// Prints the GPU, its driver and libraries. Returns whether there is a GPU to test.
#[cfg(feature = "cuda")]
fn gpu() -> bool {
    let report = engine::gpu_report();
    let has_gpu = !matches!(report, Err(Error::NoGpu { .. }));
    match report {
        Ok(gpu) => {
            let memory = free_of(gpu.free_memory as f64, gpu.total_memory as f64);
            let (major, minor) = gpu.compute_capability;
            line("GPU", &format!("{}, compute capability {major}.{minor}, {memory}", gpu.name));
            if gpu.count > 1 {
                let count = gpu.count;
                line("", &format!("the first of {count}: CUDA_VISIBLE_DEVICES=1 chooses the second"));
            }
            let (major, minor) = gpu.cuda_version;
            let driver = gpu.driver_version.unwrap_or_else(|| "of unknown version".into());
            line("driver", &format!("{driver}, for CUDA up to {major}.{minor}"));
        }
        Err(error) => line("GPU", &error.to_string()),
    }
    let mut about = "libraries";
    for library in engine::libraries() {
        let state = match &library.found {
            Ok(place) => format!("found: {place}"),
            Err(wrong) => format!("NOT USABLE: {wrong}"),
        };
        line(about, &format!("{:<14} {:<21} {state}", library.name, library.purpose));
        about = "";
    }
    if engine::libraries().iter().any(|library| library.found.is_err()) {
        line("searched", "the system's search path");
        for folder in engine::library_folders() {
            let note = if folder.is_dir() { "" } else { "  (does not exist)" };
            line("", &format!("{}{note}", folder.display()));
        }
        line("", "nvidia/*/lib in the Python packages of VIRTUAL_ENV, CONDA_PREFIX, ~/.local and the system");
    }
    has_gpu
}

#[cfg(not(feature = "atari"))]
fn atari() -> Vec<String> {
    line("Atari", "not in this build: run scripts/atari, then build with --features atari");
    Vec::new()
}

/// Says which ROMs were found, and returns those that are present but unusable.
#[cfg(feature = "atari")]
fn atari() -> Vec<String> {
    let roms = envs::atari::roms();
    let (mut folders, mut missing, mut bad) = (Vec::new(), Vec::new(), Vec::new());
    for (game, rom) in &roms {
        match rom {
            Ok(path) => folders.extend(path.parent().map(|folder| folder.display().to_string())),
            Err(error @ envs::EnvError::NoRom { .. }) => missing.push((*game, error)),
            Err(error) => bad.push(error.to_string()),
        }
    }
    let found = folders.len();
    folders.dedup();
    let places = if found == 0 { String::new() } else { format!(", from {}", folders.join(", ")) };
    line("Atari", &format!("{found} of {} games start{places}", roms.len()));
    bad.iter().for_each(|error| line("", error));
    if let Some((_, error)) = missing.first() {
        let games: Vec<&str> = missing.iter().map(|(game, _)| *game).collect();
        line("", &format!("missing: {}", games.join(", ")));
        line("", &crate::advice::with(error.to_string(), crate::advice::on_game(error)));
    }
    bad
}
