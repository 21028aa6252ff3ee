//! Where tensors live and computations run. Networks are written against this handle and never ask which device it is.

use std::sync::{Arc, Mutex, MutexGuard};

use crate::backend::Backend;
use crate::cuda::Gpu;
use crate::memory::{Arena, StepMemory};
use crate::{DType, Error, Precision, Result};

/// Which device is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceKind {
    /// A GPU if there is one that can be used, otherwise the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The first NVIDIA GPU.
    Cuda,
}

/// A cheap handle; clones share the threads and the GPU.
#[derive(Clone)]
pub struct Device {
    pool: Arc<rayon::ThreadPool>,
    backend: Backend,
    /// On a GPU: the memory of all steps, which take turns.
    memory: Arc<Mutex<StepMemory>>,
    /// Bytes of the GPU that this process may count on.
    limit: Option<usize>,
}

impl Device {
    /// The CPU with `threads` worker threads, or one per core. Results do not depend on the number.
    pub fn cpu(threads: Option<usize>) -> Result<Device> {
        crate::cpu::check_isa()?;
        let threads = threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
        if threads == 0 {
            return Err(Error::Threads { threads, reason: "at least one is needed".into() });
        }
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|i| format!("engine-{i}"))
            .build()
            .map_err(|e| Error::Threads { threads, reason: e.to_string() })?;
        Ok(Device::on_cpu(pool))
    }

    /// The CPU with the kernels of one instruction set.
    #[cfg(test)]
    pub(crate) fn cpu_with(isa: crate::cpu::Isa, threads: usize) -> Device {
        let builder = rayon::ThreadPoolBuilder::new().num_threads(threads);
        let pool = builder.start_handler(move |_| crate::cpu::force_isa(isa)).build().unwrap();
        Device::on_cpu(pool)
    }

    fn on_cpu(pool: rayon::ThreadPool) -> Device {
        Device { pool: Arc::new(pool), backend: Backend::Cpu, memory: Arc::default(), limit: None }
    }

    /// The first NVIDIA GPU, with a thread of the host per core for what runs there.
    pub fn cuda(precision: Precision) -> Result<Device> {
        Device::cuda_beside(precision, None)
    }

    fn cuda_beside(precision: Precision, threads: Option<usize>) -> Result<Device> {
        let gpu = Gpu::new(precision)?;
        Ok(Device { backend: Backend::Cuda(gpu), ..Device::cpu(threads)? })
    }

    /// The device of this kind, with `threads` threads of the host, or one per core.
    pub fn open(kind: DeviceKind, precision: Precision, threads: Option<usize>) -> Result<Device> {
        match kind {
            DeviceKind::Cpu => Device::cpu(threads),
            DeviceKind::Cuda => Device::cuda_beside(precision, threads),
            DeviceKind::Auto => match Device::cuda_beside(precision, threads) {
                Err(error) if error.is_no_gpu() => Device::cpu(threads),
                opened => opened,
            },
        }
    }

    /// A device for work beside this one: on a GPU with a stream and memory of its own, so that neither sees what the other captures. On the CPU
    /// it is this one.
    pub fn beside(&self) -> Result<Device> {
        match &self.backend {
            Backend::Cpu => Ok(self.clone()),
            Backend::Cuda(gpu) => {
                let backend = Backend::Cuda(Gpu::new(gpu.precision())?);
                Ok(Device { backend, memory: Arc::default(), ..self.clone() })
            }
        }
    }

    /// Whether it is a GPU.
    pub fn is_gpu(&self) -> bool {
        self.gpu().is_some()
    }

    /// "cpu" or the GPU's name.
    pub fn name(&self) -> String {
        self.gpu().map_or("cpu".into(), |gpu| gpu.name().into())
    }

    pub(crate) fn backend(&self) -> &Backend {
        &self.backend
    }

    fn gpu(&self) -> Option<&Gpu> {
        match &self.backend {
            Backend::Cpu => None,
            Backend::Cuda(gpu) => Some(gpu),
        }
    }

    /// Whether steps of one can use buffers of the other: all CPUs are one, every GPU is its own.
    pub(crate) fn shares_memory_with(&self, other: &Device) -> bool {
        match (&self.backend, &other.backend) {
            (Backend::Cpu, Backend::Cpu) => true,
            (Backend::Cuda(one), Backend::Cuda(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// How activations are stored.
    pub(crate) fn float(&self) -> DType {
        match self.gpu().map(Gpu::precision) {
            Some(Precision::Bf16) => DType::BF16,
            _ => DType::F32,
        }
    }

    /// Bytes of an activation.
    pub fn float_size(&self) -> usize {
        self.float().size()
    }

    /// Waits until everything asked for is done, and reports what went wrong on the way.
    pub fn synchronise(&self) -> Result<()> {
        self.gpu().map_or(Ok(()), Gpu::synchronise)
    }

    /// Runs `work` and says what a GPU did in it: (what, seconds), in order. Steps that have run before are captured again, with a clock
    /// around every kernel. Empty on the CPU.
    pub fn trace<E: From<Error>>(
        &self,
        work: impl FnOnce() -> Result<(), E>,
    ) -> Result<Vec<(String, f64)>, E> {
        let Some(gpu) = self.gpu() else {
            work()?;
            return Ok(Vec::new());
        };
        gpu.begin_trace();
        let done = work();
        let times = gpu.end_trace()?;
        done?;
        Ok(times)
    }

    /// The same with a number of bytes that the GPU has for this process, whatever others use of it; `None` for what is free. No allocation is refused for it.
    pub fn with_memory(self, limit: Option<usize>) -> Device {
        Device { limit, ..self }
    }

    /// Bytes of the GPU that nobody uses, or that are left of those for this process.
    pub fn free_memory(&self) -> Option<usize> {
        self.gpu().map(|gpu| match self.limit {
            Some(limit) => limit.saturating_sub(gpu.memory().0),
            None => gpu.free_memory(),
        })
    }

    /// Frees what a GPU's steps keep for those that follow, and lets the most that was in use be what is in use now.
    pub fn free_step_memory(&self) {
        if let Backend::Cuda(gpu) = &self.backend {
            let mut memory = self.step_memory();
            memory.arena = Arena::default();
            memory.losses += 1;
            gpu.forget_peak_memory();
        }
    }

    /// Waits until no other step of the GPU runs.
    pub(crate) fn step_memory(&self) -> MutexGuard<'_, StepMemory> {
        self.memory.lock().unwrap_or_else(|poisoned| {
            // A step panicked with the memory in its hands.
            self.memory.clear_poison();
            let mut memory = poisoned.into_inner();
            memory.losses += 1;
            memory
        })
    }

    /// (bytes of the GPU in use by this process's buffers and steps, the most there were)
    pub fn memory(&self) -> Option<(usize, usize)> {
        self.gpu().map(Gpu::memory)
    }

    /// Threads of the host.
    pub fn threads(&self) -> usize {
        self.pool.current_num_threads()
    }

    /// Runs `f` on the device's threads. A GPU is driven from the calling one.
    pub(crate) fn install<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        match self.backend {
            Backend::Cuda(_) => f(),
            Backend::Cpu => self.pool.install(f),
        }
    }

    /// Runs `f` on the device's threads of the host, also beside a GPU: loops of rayon in it keep to them.
    pub fn on_host_threads<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        self.pool.install(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine without a GPU computes on the CPU; a GPU that is there and does not work is reported.
    #[test]
    fn only_a_missing_gpu_is_replaced_by_the_cpu() -> Result<()> {
        let error = |reason: &str| Error::Gpu { what: "compiling kernels", reason: reason.into() };
        assert!(Error::NoGpu { reason: "the NVIDIA driver: not found".into() }.is_no_gpu());
        assert!(!error("expected a semicolon").is_no_gpu());
        if matches!(Device::cuda(Precision::F32), Err(Error::NoGpu { .. })) {
            assert!(!Device::open(DeviceKind::Auto, Precision::F32, Some(1))?.is_gpu());
        }
        Ok(())
    }

    #[test]
    fn no_threads_is_an_error() {
        assert!(matches!(Device::cpu(Some(0)), Err(Error::Threads { threads: 0, .. })));
    }

    #[test]
    fn a_step_without_room_is_an_error_and_a_smaller_one_succeeds() -> Result<()> {
        let device = Device::under_test(1)?;
        let mut stepper = crate::Stepper::new(&device, crate::Key::new(0, 0));
        let input = device.buffer::<f32>("x", [4])?;
        input.write(&[1.0f32, 2.0, 3.0, 4.0])?;
        for _ in 0..2 {
            let failed = stepper.run(|tape| -> Result<()> {
                let x = tape.buffer(&input)?;
                tape.add(x, x)?;
                tape.alloc(1 << 46, DType::F32)?;
                Ok(())
            });
            let message = failed.unwrap_err().to_string();
            assert!(message.contains("no memory for the tensors of a step: 256.0 TiB more"), "{message}");
            let sum = stepper.run(|tape| -> Result<Vec<f32>> {
                let x = tape.buffer(&input)?;
                let sum = tape.add(x, x)?;
                tape.read(sum)
            })?;
            assert_eq!(sum, [2.0, 4.0, 6.0, 8.0]);
        }
        Ok(())
    }

    /// A step that takes all of a card's memory, and one after it that is captured and replayed.
    #[test]
    fn a_full_card_without_room_is_an_error_and_a_smaller_step_succeeds() -> Result<()> {
        let device = Device::under_test(1)?;
        if !device.is_gpu() {
            return Ok(());
        }
        let mut stepper = crate::Stepper::new(&device, crate::Key::new(0, 0));
        let (input, output) = (device.buffer::<f32>("x", [4])?, device.buffer::<f32>("y", [4])?);
        input.write(&[1.0f32, 2.0, 3.0, 4.0])?;
        let full = stepper.run(|tape| -> Result<()> {
            let mut blocks = Vec::new();
            loop {
                blocks.push(tape.alloc(1 << 28, DType::F32)?);
            }
        });
        assert!(matches!(full, Err(Error::OutOfMemory { place: "the GPU", .. })), "{full:?}");
        for factor in [1.0, 2.0, 3.0] {
            input.write(&[factor, 2.0 * factor, 3.0 * factor, 4.0 * factor])?;
            stepper.run_captured(crate::StepId::new("sum", &()), |tape| -> Result<()> {
                let x = tape.buffer(&input)?;
                let sum = tape.add(x, x)?;
                tape.store(&output, 0, sum)
            })?;
            assert_eq!(output.read::<f32>()?, [2.0, 4.0, 6.0, 8.0].map(|y| y * factor));
        }
        Ok(())
    }
}
