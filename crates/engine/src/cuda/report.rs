//! What can be said about the GPU before anything runs on it.

use cudarc::driver::{result, sys};

use super::core::{capability, cuda_version, driver, first_gpu};
use super::library;
use crate::Result;

/// The GPU that is used, and the driver beneath it.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuReport {
    /// As NVIDIA calls it.
    pub name: String,
    /// In bytes.
    pub total_memory: usize,
    /// In bytes.
    pub free_memory: usize,
    /// (major, minor)
    pub compute_capability: (i32, i32),
    /// Such as "580.65.06"; unknown where the system does not say.
    pub driver_version: Option<String>,
    /// The newest CUDA that the driver runs: (major, minor).
    pub cuda_version: (i32, i32),
    /// GPUs that the driver sees. The first is used.
    pub count: usize,
}

/// Asks the driver about the first GPU. Needs no other library.
pub fn gpu_report() -> Result<GpuReport> {
    library::load_driver()?;
    let (device, count) = first_gpu()?;
    let asking = driver("asking the GPU");
    let version = cuda_version()?;
    let (free_memory, total_memory) = memory(device)?;
    Ok(GpuReport {
        name: result::device::get_name(device).map_err(&asking)?,
        total_memory,
        free_memory,
        compute_capability: capability(device)?,
        driver_version: driver_version(),
        cuda_version: (version / 1000, version % 1000 / 10),
        count,
    })
}

/// Bytes of a GPU: (free, all).
fn memory(device: sys::CUdevice) -> Result<(usize, usize)> {
    let asking = driver("asking the GPU");
    let before = result::ctx::get_current().map_err(&asking)?.unwrap_or(std::ptr::null_mut());
    // SAFETY: a valid device; released below.
    let context = unsafe { result::primary_ctx::retain(device) }.map_err(&asking)?;
    // SAFETY: the context was just retained, and is left before it is released.
    unsafe {
        let asked = result::ctx::set_current(context).and_then(|()| result::mem_get_info());
        let _ = result::ctx::set_current(before);
        let _ = result::primary_ctx::release(device);
        asked.map_err(&asking)
    }
}

/// The kernel module's version, from where it can be read: the driver's own interface only says which CUDA it runs.
fn driver_version() -> Option<String> {
    let files = ["/sys/module/nvidia/version", "/proc/driver/nvidia/version"];
    files.iter().find_map(|file| version_in(&std::fs::read_to_string(file).ok()?))
}

/// The first word of digits and dots.
fn version_in(text: &str) -> Option<String> {
    let is_version =
        |word: &&str| word.contains('.') && word.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    text.split_whitespace().find(is_version).map(String::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_found_in_both_files() {
        let long = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (root@host)\nGCC version:  gcc version 12.2.0";
        assert_eq!(version_in(long).as_deref(), Some("580.65.06"));
        assert_eq!(version_in("575.57.08\n").as_deref(), Some("575.57.08"));
        assert_eq!(version_in("none"), None);
    }
}
