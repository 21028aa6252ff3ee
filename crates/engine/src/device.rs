//! Where tensors live and computations run. Networks are written against this handle and never ask which device it is.

use std::sync::{Arc, Mutex};

use crate::backend::Backend;
use crate::cuda::Gpu;
use crate::memory::Block;
use crate::{Error, Result, Shape};

/// The element types of tensors and buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    F32,
    /// How a GPU may store activations. Ops take it wherever they take F32; the host reads and writes it as f32.
    BF16,
    I32,
    U8,
}

impl DType {
    pub fn size(self) -> usize {
        match self {
            DType::F32 | DType::I32 => 4,
            DType::BF16 => 2,
            DType::U8 => 1,
        }
    }
}

impl DType {
    pub(crate) fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::BF16)
    }

    /// Whether an op that expects `self` can take `other`.
    pub(crate) fn takes(self, other: DType) -> bool {
        self == other || (self.is_float() && other.is_float())
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(match self {
            DType::F32 => "f32",
            DType::BF16 => "bf16",
            DType::I32 => "i32",
            DType::U8 => "u8",
        })
    }
}

/// A Rust type that can be an element.
pub trait Element: bytemuck::Pod + Send + Sync {
    const DTYPE: DType;
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;
}

impl Element for i32 {
    const DTYPE: DType = DType::I32;
}

impl Element for u8 {
    const DTYPE: DType = DType::U8;
}

/// The bits of a bf16: the upper half of an f32's. The host only converts it.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Bf16(u16);

// SAFETY: two bytes without padding, for which every bit pattern is valid.
unsafe impl bytemuck::Zeroable for Bf16 {}
// SAFETY: as above.
unsafe impl bytemuck::Pod for Bf16 {}

impl Element for Bf16 {
    const DTYPE: DType = DType::BF16;
}

/// Rounded to the nearest, ties to even.
fn to_bf16(values: &[f32]) -> Vec<Bf16> {
    let narrow = |x: &f32| {
        let bits = x.to_bits();
        let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1));
        Bf16(if x.is_nan() { 0x7FC0 } else { (rounded >> 16) as u16 })
    };
    values.iter().map(narrow).collect()
}

pub(crate) fn from_bf16(values: &[Bf16]) -> Vec<f32> {
    values.iter().map(|x| f32::from_bits(u32::from(x.0) << 16)).collect()
}

/// How a GPU computes. The CPU always computes in f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// Activations in bf16; parameters, statistics, losses and optimiser state in f32.
    #[default]
    Bf16,
    /// Everything in f32, as on the CPU.
    F32,
}

/// A cheap handle; clones share the threads and the GPU.
#[derive(Clone)]
pub struct Device {
    pool: Arc<rayon::ThreadPool>,
    backend: Backend,
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
        Ok(Device { pool: Arc::new(pool), backend: Backend::Cpu })
    }

    /// The CPU with the kernels of one instruction set.
    #[cfg(test)]
    pub(crate) fn cpu_with(isa: crate::cpu::Isa, threads: usize) -> Device {
        let builder = rayon::ThreadPoolBuilder::new().num_threads(threads);
        let pool = builder.start_handler(move |_| crate::cpu::force_isa(isa)).build().unwrap();
        Device { pool: Arc::new(pool), backend: Backend::Cpu }
    }

    /// The first NVIDIA GPU, with a thread of the host per core for what runs there.
    pub fn cuda(precision: Precision) -> Result<Device> {
        Device::cuda_beside(precision, None)
    }

    fn cuda_beside(precision: Precision, threads: Option<usize>) -> Result<Device> {
        let gpu = Gpu::new(precision)?;
        Ok(Device { backend: Backend::Cuda(gpu), ..Device::cpu(threads)? })
    }

    /// What `name` says: "cpu", "cuda", or "auto" for a GPU if one can be used.
    pub fn named(name: &str, precision: Precision, threads: Option<usize>) -> Result<Device> {
        match name {
            "cpu" => Device::cpu(threads),
            "cuda" => Device::cuda_beside(precision, threads),
            "auto" => Device::cuda_beside(precision, threads).or_else(|_| Device::cpu(threads)),
            _ => Err(Error::BadConfig { reason: format!("there is no device `{name}`: cpu, cuda or auto") }),
        }
    }

    /// The device that tests run on: what IRIS_TEST_DEVICE says ("cpu", "cuda", "cuda-bf16"), the CPU unless it says something.
    #[doc(hidden)]
    pub fn under_test(threads: usize) -> Result<Device> {
        static GPU: std::sync::OnceLock<Result<Device>> = std::sync::OnceLock::new();
        let precision = match std::env::var("IRIS_TEST_DEVICE").as_deref() {
            Ok("cuda") => Precision::F32,
            Ok("cuda-bf16") => Precision::Bf16,
            _ => return Device::cpu(Some(threads)),
        };
        GPU.get_or_init(|| Device::cuda(precision)).clone()
    }

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

    pub(crate) fn gpu(&self) -> Option<&Gpu> {
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

    /// Runs `work` and says what a GPU did in it: (what, seconds), in order. Steps that have run before are recorded anew, with a clock
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

    /// Bytes of the GPU that nobody uses.
    pub fn free_memory(&self) -> Option<usize> {
        self.gpu().map(Gpu::free_memory)
    }

    /// Frees what a GPU's steps keep for those that follow, and lets the most that was in use be what is in use now.
    pub fn free_step_memory(&self) {
        if let Some(gpu) = self.gpu() {
            gpu.free_arena();
            gpu.forget_peak_memory();
        }
    }

    /// (bytes of the GPU in use by this process's buffers and steps, the most there were)
    pub fn memory(&self) -> Option<(usize, usize)> {
        self.gpu().map(Gpu::memory)
    }

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

    /// Zeroed memory that outlives steps: their inputs, outputs and carried state.
    pub fn buffer<T: Element>(&self, name: impl Into<String>, shape: impl Into<Shape>) -> Result<Buffer> {
        self.typed_buffer(name, shape, T::DTYPE)
    }

    /// A buffer of one number, for what steps read and the host sets between them: a learning rate.
    pub fn scalar(&self, name: impl Into<String>, value: f32) -> Result<Buffer> {
        let buffer = self.buffer::<f32>(name, [1])?;
        buffer.write(&[value])?;
        Ok(buffer)
    }

    /// A buffer in the device's activation type, for large activations kept between steps. The host reads and writes f32.
    pub fn float_buffer(&self, name: impl Into<String>, shape: impl Into<Shape>) -> Result<Buffer> {
        self.typed_buffer(name, shape, self.float())
    }

    fn typed_buffer(&self, name: impl Into<String>, shape: impl Into<Shape>, dtype: DType) -> Result<Buffer> {
        let (name, shape) = (name.into(), shape.into());
        let bytes = shape.len().saturating_mul(dtype.size());
        let block = Block::zeroed(&name, bytes, &self.backend)?;
        let slot = Slot { name, shape, dtype, block: Mutex::new(Some(block)) };
        Ok(Buffer { slot: Arc::new(slot), device: self.clone() })
    }
}

/// Device memory that outlives steps. The host writes inputs into it before a step and reads results after it; inside a step a
/// [`Tape`](crate::Tape) reads it as a tensor or stores tensors into it. Clones share the memory.
#[derive(Clone)]
pub struct Buffer {
    pub(crate) slot: Arc<Slot>,
    device: Device,
}

pub(crate) struct Slot {
    pub name: String,
    pub shape: Shape,
    pub dtype: DType,
    /// Empty while a step has taken the block.
    pub block: Mutex<Option<Block>>,
}

impl Slot {
    /// Takes the block out for a step, or says that another one has it.
    pub fn take(&self) -> Result<Block> {
        let taken = self.block.lock().map(|mut guard| guard.take()).unwrap_or(None);
        taken.ok_or_else(|| Error::InUse { name: self.name.clone() })
    }

    pub fn put(&self, block: Block) {
        if let Ok(mut guard) = self.block.lock() {
            *guard = Some(block);
        }
    }

    fn with<R>(&self, f: impl FnOnce(&mut Block) -> Result<R>) -> Result<R> {
        let mut block = self.take()?;
        let result = f(&mut block);
        self.put(block);
        result
    }

    fn write<T: Element>(&self, start: usize, values: &[T]) -> Result<()> {
        self.with(|block| match self.dtype {
            DType::BF16 => block.write(start, &to_bf16(bytemuck::cast_slice(values))),
            _ => block.write(start, values),
        })
    }

    fn read<T: Element>(&self, start: usize, end: usize) -> Result<Vec<T>> {
        self.with(|block| match self.dtype {
            DType::BF16 => Ok(bytemuck::cast_vec(from_bf16(&block.read::<Bf16>(start, end)?))),
            _ => block.read(start, end),
        })
    }
}

impl Buffer {
    /// A number that no other living buffer has.
    pub fn identity(&self) -> u64 {
        Arc::as_ptr(&self.slot) as usize as u64
    }

    /// Where it lies.
    pub fn device(&self) -> &Device {
        &self.device
    }

    pub fn shape(&self) -> Shape {
        self.slot.shape
    }

    pub fn dtype(&self) -> DType {
        self.slot.dtype
    }

    fn expect<T: Element>(&self, op: &'static str) -> Result<()> {
        match self.dtype() {
            dtype if T::DTYPE == dtype => Ok(()),
            DType::BF16 if T::DTYPE == DType::F32 => Ok(()),
            expected => Err(Error::DTypeMismatch { op, expected, got: T::DTYPE }),
        }
    }

    /// Replaces the contents.
    pub fn write<T: Element>(&self, values: &[T]) -> Result<()> {
        self.expect::<T>("buffer write")?;
        let expected = self.shape().len();
        if values.len() != expected {
            return Err(Error::WrongLength { name: self.slot.name.clone(), expected, got: values.len() });
        }
        self.slot.write(0, values)
    }

    /// Replaces `values.len()` elements from element `start` on.
    pub fn write_at<T: Element>(&self, start: usize, values: &[T]) -> Result<()> {
        self.expect::<T>("buffer write")?;
        let (end, limit) = (start.saturating_add(values.len()), self.shape().len());
        if end > limit {
            return Err(Error::RangeOutOfBounds { op: "buffer write", start, end, limit });
        }
        self.slot.write(start, values)
    }

    /// A copy of the contents.
    pub fn read<T: Element>(&self) -> Result<Vec<T>> {
        self.expect::<T>("buffer read")?;
        self.slot.read(0, self.shape().len())
    }

    /// A copy of elements `start..end`.
    pub fn read_range<T: Element>(&self, start: usize, end: usize) -> Result<Vec<T>> {
        self.expect::<T>("buffer read")?;
        let limit = self.shape().len();
        if start > end || end > limit {
            return Err(Error::RangeOutOfBounds { op: "buffer read", start, end, limit });
        }
        self.slot.read(start, end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_check_type_and_length() -> Result<()> {
        let device = Device::cpu(Some(1))?;
        let buffer = device.buffer::<f32>("frames", [2, 3])?;
        assert_eq!(buffer.read::<f32>()?, vec![0.0; 6]);
        buffer.write(&[1.0f32; 6])?;
        buffer.write_at(4, &[2.0f32, 3.0])?;
        assert_eq!(buffer.read_range::<f32>(3, 6)?, vec![1.0, 2.0, 3.0]);
        assert_eq!(
            buffer.write(&[1.0f32; 5]).unwrap_err().to_string(),
            "`frames` holds 6 values, but 5 were given"
        );
        assert!(matches!(buffer.write(&[1i32; 6]), Err(Error::DTypeMismatch { .. })));
        assert!(matches!(buffer.write_at(5, &[0.0f32; 2]), Err(Error::RangeOutOfBounds { .. })));
        Ok(())
    }

    /// More than a GPU's pinned memory holds, at once and one after the other.
    #[test]
    fn everything_written_arrives() -> Result<()> {
        let device = Device::under_test(1)?;
        let large = device.buffer::<i32>("large", [6_000_001])?;
        let values: Vec<i32> = (0..6_000_001).map(|i| i * 7 - 3).collect();
        large.write(&values)?;
        let buffers: Vec<Buffer> =
            (0..50).map(|i| device.buffer::<i32>(format!("part {i}"), [100_003])).collect::<Result<_>>()?;
        for (i, buffer) in buffers.iter().enumerate() {
            buffer.write(&values[i * 1000..][..100_003])?;
        }
        assert_eq!(large.read::<i32>()?, values);
        for (i, buffer) in buffers.iter().enumerate() {
            assert_eq!(buffer.read::<i32>()?, values[i * 1000..][..100_003]);
        }
        Ok(())
    }

    /// Numbers of four bytes: more than addresses can tell apart, whatever the system promises.
    const TOO_MUCH: usize = 1 << 46;

    #[test]
    fn a_buffer_without_room_is_an_error_and_harms_nothing() -> Result<()> {
        let device = Device::under_test(1)?;
        let place = if device.is_gpu() { "the GPU" } else { "the machine" };
        let what = "table of everything".to_string();
        let full = Error::OutOfMemory { what: what.clone(), bytes: TOO_MUCH * 4, place };
        assert_eq!(device.buffer::<f32>(what, [TOO_MUCH]).err(), Some(full));
        let buffer = device.buffer::<f32>("small", [3])?;
        buffer.write(&[1.0f32, 2.0, 3.0])?;
        assert_eq!(buffer.read::<f32>()?, [1.0, 2.0, 3.0]);
        Ok(())
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
                tape.alloc(TOO_MUCH, DType::F32)?;
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

    /// A step that takes all of a card's memory, and one after it that is recorded and replayed.
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

    #[test]
    fn halves_are_rounded_to_the_nearest() {
        let back = |x: f32| from_bf16(&to_bf16(&[x]))[0];
        assert_eq!([1.0, -2.5, 0.0, f32::INFINITY].map(back), [1.0, -2.5, 0.0, f32::INFINITY]);
        assert_eq!(back(1.0 + 1.0 / 256.0), 1.0, "a tie goes to the even neighbour");
        assert_eq!(back(1.0 + 3.0 / 256.0), 1.0 + 4.0 / 256.0);
        assert!(back(f32::NAN).is_nan());
    }

    #[test]
    fn no_threads_is_an_error() {
        assert!(matches!(Device::cpu(Some(0)), Err(Error::Threads { threads: 0, .. })));
    }
}
