//! Where the processes of a pool compute: on the CPU, on GPUs of their own, or several on one GPU.

use std::collections::BTreeSet;
use std::ffi::OsString;

use anyhow::{Result, bail};

use super::mps::{self, Daemon};
use crate::args::{DeviceName, SweepRunArgs};
#[cfg(feature = "cuda")]
use crate::output::tell;

/// Where a process computes.
#[derive(Clone, Default)]
pub struct Place {
    /// By the name that CUDA_VISIBLE_DEVICES has for it.
    pub gpu: Option<String>,
    /// Whether other processes use the GPU too.
    pub shared: bool,
    pub variables: Vec<(&'static str, OsString)>,
}

impl Place {
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
    let mut daemons = Vec::new();
    let mut by_gpu = Vec::new();
    for (number, name) in names.iter().enumerate() {
        let sharing = (0..args.jobs).filter(|job| job % names.len() == number).count();
        let alone = Place { gpu: Some(name.clone()), shared: false, ..Place::default() };
        by_gpu.push(match sharing > 1 {
            true if mps::is_provided() => Place { shared: true, ..alone },
            true => {
                let daemon = Daemon::start(name)?;
                let variables = daemon.variables().map(|(name, value)| (name, value.into())).to_vec();
                daemons.push(daemon);
                Place { shared: true, variables, ..alone }
            }
            false => Place { variables: vec![("CUDA_VISIBLE_DEVICES", name.into())], ..alone },
        });
    }
    Ok(((0..args.jobs).map(|job| by_gpu[job % by_gpu.len()].clone()).collect(), daemons))
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
