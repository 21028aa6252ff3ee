//! Where the processes of a pool compute: on the CPU, on GPUs of their own, or several on one GPU.

use std::collections::BTreeSet;
use std::ffi::OsString;

use anyhow::{Result, bail};

use super::mps::{self, Daemon};
use crate::args::{DeviceName, SweepRunArgs};
use crate::output::tell;

/// Bytes that a process takes of a GPU beside its buffers: its context, kernels, and what cuBLAS and cuDNN keep.
const RESERVE: usize = 1 << 30;

/// Where a process computes.
#[derive(Clone, Default)]
pub struct Place {
    /// By the name that CUDA_VISIBLE_DEVICES has for it.
    pub gpu: Option<String>,
    /// How many processes use the GPU, this one among them.
    pub sharers: usize,
    /// Bytes of the GPU that the process may count on, unless the user says otherwise.
    pub memory: Option<usize>,
    pub variables: Vec<(&'static str, OsString)>,
}

impl Place {
    pub fn is_shared(&self) -> bool {
        self.sharers > 1
    }

    /// The device to ask for. With a GPU it is that GPU or an error: a run that fell back to the CPU would take weeks, unnoticed.
    pub fn device(&self, asked: DeviceName) -> DeviceName {
        if self.gpu.is_some() { DeviceName::Cuda } else { asked }
    }
}

/// Where each job runs, and the daemons of GPUs that several share.
pub fn places(args: &SweepRunArgs) -> Result<(Vec<Place>, Vec<Daemon>)> {
    let gpus = match (args.gpus.is_empty(), args.task.device.device) {
        (false, DeviceName::Cpu) => bail!("--gpus names GPUs, but --device is cpu: leave one of them out"),
        (false, _) => args.gpus.clone(),
        (true, DeviceName::Cpu) => Vec::new(),
        (true, device) => first_gpu(device)?,
    };
    let distinct: BTreeSet<&usize> = gpus.iter().collect();
    if distinct.len() < gpus.len() {
        bail!("--gpus names a GPU twice; --jobs says how many runs share the GPUs");
    }
    if gpus.is_empty() {
        return Ok((vec![Place::default(); args.jobs], Vec::new()));
    }
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let names = mps::names(&gpus, visible.as_deref())?;
    mps::end_leftovers();
    // Before a daemon has the GPU.
    let total = total_memory().filter(|_| args.task.memory.gpu_memory.is_none());
    let mut daemons = Vec::new();
    let mut by_gpu = Vec::new();
    for (number, name) in names.iter().enumerate() {
        let sharing = (0..args.jobs).filter(|job| job % names.len() == number).count();
        let alone = Place { gpu: Some(name.clone()), sharers: sharing, ..Place::default() };
        let alone =
            Place { memory: total.filter(|_| sharing > 1).map(|all| memory_of_each(all, sharing)), ..alone };
        by_gpu.push(match sharing > 1 {
            true if mps::is_provided() => alone,
            true => {
                let daemon = Daemon::start(name)?;
                let variables = daemon.variables().map(|(name, value)| (name, value.into())).to_vec();
                daemons.push(daemon);
                Place { variables, ..alone }
            }
            false => Place { variables: vec![("CUDA_VISIBLE_DEVICES", name.into())], ..alone },
        });
    }
    if let Some(bytes) = by_gpu.iter().filter_map(|place| place.memory).min() {
        tell!(
            "a run that shares a GPU counts on {:.1} GiB of it; --gpu-memory changes that",
            bytes as f64 / (1u64 << 30) as f64
        );
    }
    Ok(((0..args.jobs).map(|job| by_gpu[job % by_gpu.len()].clone()).collect(), daemons))
}

/// Bytes of a GPU for each of several processes: an equal part, without what the driver and the libraries take of it.
fn memory_of_each(total: usize, processes: usize) -> usize {
    let part = total / processes.max(1);
    part.saturating_sub(RESERVE).max(part / 2)
}

/// Bytes of the first GPU; the others are taken to be like it.
#[cfg(feature = "cuda")]
fn total_memory() -> Option<usize> {
    engine::gpu_report().ok().map(|report| report.total_memory)
}

#[cfg(not(feature = "cuda"))]
fn total_memory() -> Option<usize> {
    None
}

/// The GPU that programs use where none is named, if there is one.
#[cfg(feature = "cuda")]
fn first_gpu(device: DeviceName) -> Result<Vec<usize>> {
    match engine::gpu_report() {
        Ok(report) if report.count > 1 => {
            tell!("note: this uses the first of {} GPUs; --gpus 0,1 uses two", report.count);
            Ok(vec![0])
        }
        Ok(_) => Ok(vec![0]),
        Err(error) if error.is_no_gpu() && device == DeviceName::Auto => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}

/// Without support for GPUs every run says so that is asked for one.
#[cfg(not(feature = "cuda"))]
fn first_gpu(_device: DeviceName) -> Result<Vec<usize>> {
    Ok(Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_share_a_gpu_equally() {
        let gib = |n: usize| n << 30;
        assert_eq!(memory_of_each(gib(140), 4), gib(34));
        assert_eq!(memory_of_each(gib(24), 2), gib(11));
        // On a small GPU the reserve leaves something.
        assert_eq!(memory_of_each(gib(6), 6), gib(1) / 2);
    }
}
