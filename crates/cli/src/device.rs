//! The device that a command computes on.

use anyhow::Result;
use engine::{Device, DeviceKind, Error, Precision};

use crate::advice;
use crate::args::{DeviceArgs, DeviceName, PrecisionName};
use crate::output::program;
use crate::words::counted;

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
                let missing = || format!("`{} doctor` shows what is missing", program());
                let advice = advice::on_gpu(&error).unwrap_or_else(missing);
                let advice = format!("{advice}; --device cpu needs no GPU");
                let words = format!("{error}. {advice}");
                anyhow::Error::from(error).context(words)
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
