//! The device that a command computes on.

use anyhow::{Result, anyhow};
use engine::{Device, Error, Precision};

use crate::args::{DeviceArgs, DeviceName, PrecisionName};
use crate::output::program;
use crate::words::counted;

impl DeviceArgs {
    /// The device that was asked for.
    pub fn open(&self) -> Result<Device> {
        let name = match self.device {
            DeviceName::Auto => "auto",
            DeviceName::Cuda => "cuda",
            DeviceName::Cpu => "cpu",
        };
        let precision = match self.precision {
            PrecisionName::Bf16 => Precision::Bf16,
            PrecisionName::F32 => Precision::F32,
        };
        Device::named(name, precision, self.threads).map_err(|error| match error {
            Error::NoGpu { .. } => {
                anyhow!("{error}. `{} doctor` says more, and --device cpu does without one", program())
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
        let note = match expected {
            true => format!("; no GPU can be used, `{} doctor` says why", program()),
            false => String::new(),
        };
        format!("the CPU ({threads}{note})")
    }
}
