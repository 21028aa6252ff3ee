//! The device that a command computes on.

use anyhow::{Result, anyhow};
use engine::{Device, DeviceKind, Error, Precision};

use crate::args::{DeviceArgs, DeviceName, PrecisionName};

impl DeviceArgs {
    /// The device that was asked for.
    pub fn open(&self) -> Result<Device> {
        let kind = match self.device {
            DeviceName::Auto => DeviceKind::Auto,
            DeviceName::Cuda => DeviceKind::Cuda,
            DeviceName::Cpu => DeviceKind::Cpu,
        };
        let precision = match self.precision {
            PrecisionName::Bf16 => Precision::Bf16,
            PrecisionName::F32 => Precision::F32,
        };
        Device::open(kind, precision, self.threads).map_err(|error| match error {
            Error::NoGpu { .. } | Error::Gpu { .. } => {
                anyhow!("{error}. `iris doctor` says more, and --device cpu does without one")
            }
            other => other.into(),
        })
    }

    /// The device in words, for the line that a command begins with.
    pub fn describe(&self, device: &Device) -> String {
        if device.is_gpu() {
            let precision = match self.precision {
                PrecisionName::Bf16 => "bf16",
                PrecisionName::F32 => "f32",
            };
            return format!("{} in {precision}", device.name());
        }
        let threads = counted(device.threads(), "thread");
        // Who built for GPUs expects one.
        let expected = cfg!(feature = "cuda") && self.device == DeviceName::Auto;
        let note = if expected { "; no GPU can be used, `iris doctor` says why" } else { "" };
        format!("the CPU ({threads}{note})")
    }
}

/// "1 thread", "2 threads".
pub fn counted(count: usize, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}
