//! The device that tests run on.

use std::sync::OnceLock;

use crate::{Device, Precision, Result};

impl Device {
    /// The device of the environment variable IRIS_TEST_DEVICE ("cpu", "cuda" in f32, "cuda-bf16"), by default the CPU with `threads` threads.
    pub fn under_test(threads: usize) -> Result<Device> {
        static GPU: OnceLock<Result<Device>> = OnceLock::new();
        let precision = match std::env::var("IRIS_TEST_DEVICE").as_deref() {
            Ok("cuda") => Precision::F32,
            Ok("cuda-bf16") => Precision::Bf16,
            _ => return Device::cpu(Some(threads)),
        };
        GPU.get_or_init(|| Device::cuda(precision)).clone()
    }
}
