//! Finding NVIDIA's libraries: where the system looks, the usual folders, and the pip wheels' folders.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::{Error, Result};

/// One library the GPU needs, and where it was found.
#[derive(Clone, Debug)]
pub struct Library {
    pub name: &'static str,
    /// What it is for.
    pub purpose: &'static str,
    /// "the system's search path" or a file.
    pub found: Option<String>,
    /// How to get it.
    pub advice: &'static str,
}

struct Wanted {
    name: &'static str,
    purpose: &'static str,
    files: &'static [&'static str],
    advice: &'static str,
}

/// The driver comes first.
const WANTED: [Wanted; 4] = [
    Wanted {
        name: "NVIDIA driver",
        purpose: "runs everything",
        files: &["libcuda.so.1"],
        advice: "install the NVIDIA driver of your distribution, 580 or newer for CUDA 13",
    },
    Wanted {
        name: "NVRTC",
        purpose: "compiles our kernels",
        files: &["libnvrtc.so.13", "libnvrtc.so.12"],
        advice: "install the CUDA toolkit, or `pip install nvidia-cuda-nvrtc`",
    },
    Wanted {
        name: "cuBLASLt",
        purpose: "matrix products",
        files: &["libcublasLt.so.13", "libcublasLt.so.12"],
        advice: "install the CUDA toolkit, or `pip install nvidia-cublas`",
    },
    Wanted {
        name: "cuDNN",
        purpose: "convolutions",
        files: &["libcudnn.so.9"],
        advice: "install cuDNN 9, or `pip install nvidia-cudnn-cu13`",
    },
];

/// Looks for every library; the ones found are loaded and stay so.
pub fn libraries() -> &'static [Library] {
    static FOUND: OnceLock<Vec<Library>> = OnceLock::new();
    FOUND.get_or_init(|| {
        let folders = library_folders();
        WANTED
            .iter()
            .map(|w| Library {
                name: w.name,
                purpose: w.purpose,
                found: w.files.iter().find_map(|file| open(file, &folders)),
                advice: w.advice,
            })
            .collect()
    })
}

/// Loads all of them, or says what is missing.
pub(super) fn load() -> Result<()> {
    check(libraries())
}

/// Loads the driver, which is enough to ask about a GPU, or says that it is missing.
pub(super) fn load_driver() -> Result<()> {
    check(&libraries()[..1])
}

fn check(libraries: &[Library]) -> Result<()> {
    match libraries.iter().find(|library| library.found.is_none()) {
        None => Ok(()),
        Some(Library { name, advice, .. }) => {
            Err(Error::NoGpu { reason: format!("{name} was not found: {advice}") })
        }
    }
}

fn open(file: &str, folders: &[PathBuf]) -> Option<String> {
    if keep_open(Path::new(file)) {
        return Some("the system's search path".into());
    }
    let path =
        folders.iter().map(|folder| folder.join(file)).find(|path| path.is_file() && keep_open(path))?;
    Some(path.display().to_string())
}

/// Loads a library for good, visible to those that ask for it by name later.
fn keep_open(path: &Path) -> bool {
    use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
    // SAFETY: NVIDIA's libraries may be loaded at any time.
    match unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) } {
        Ok(library) => {
            std::mem::forget(library);
            true
        }
        Err(_) => false,
    }
}

/// The folders that are searched after the system's own, in this order.
pub fn library_folders() -> Vec<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let mut folders = Vec::new();
    for root in ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(variable) {
        folders.push(root.join("lib64"));
    }
    folders.push("/usr/local/cuda/lib64".into());
    folders.push("/usr/lib/x86_64-linux-gnu".into());
    // The wheels put libraries into site-packages/nvidia/<package>/lib.
    let roots = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(variable);
    let roots = roots.chain(variable("HOME").map(|home| home.join(".local")));
    for root in roots.chain(["/usr/local".into(), "/usr".into()]) {
        for python in inside(&root.join("lib")).into_iter().filter(|path| name_starts_with(path, "python3")) {
            for packages in ["site-packages", "dist-packages"] {
                let wheels = inside(&python.join(packages).join("nvidia"));
                folders.extend(wheels.into_iter().map(|wheel| wheel.join("lib")));
            }
        }
    }
    folders
}

fn inside(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

fn name_starts_with(path: &Path, start: &str) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(start))
}
