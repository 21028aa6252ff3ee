//! Where tensors live and computations run. Networks are written against this handle and never ask which device it is.

use std::sync::{Arc, Mutex};

use crate::memory::Block;
use crate::{Error, Result, Shape};

/// The element types of tensors and buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    F32,
    I32,
    U8,
}

impl DType {
    pub fn size(self) -> usize {
        match self {
            DType::F32 | DType::I32 => 4,
            DType::U8 => 1,
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(match self {
            DType::F32 => "f32",
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

/// A cheap handle; clones share the threads.
#[derive(Clone)]
pub struct Device {
    pool: Arc<rayon::ThreadPool>,
}

impl Device {
    /// The CPU with `threads` worker threads, or one per core. Results do not depend on the number.
    pub fn cpu(threads: Option<usize>) -> Result<Device> {
        let threads = threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
        if threads == 0 {
            return Err(Error::Threads { threads, reason: "at least one is needed".into() });
        }
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|i| format!("engine-{i}"))
            .build()
            .map_err(|e| Error::Threads { threads, reason: e.to_string() })?;
        Ok(Device { pool: Arc::new(pool) })
    }

    pub fn threads(&self) -> usize {
        self.pool.current_num_threads()
    }

    /// Runs `f` on the device's threads.
    pub(crate) fn install<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        self.pool.install(f)
    }

    /// Zeroed memory that outlives steps: their inputs, outputs and carried state.
    pub fn buffer<T: Element>(&self, name: impl Into<String>, shape: impl Into<Shape>) -> Buffer {
        let shape = shape.into();
        Buffer {
            slot: Arc::new(Slot {
                name: name.into(),
                shape,
                dtype: T::DTYPE,
                block: Mutex::new(Some(Block::zeroed(shape.len().saturating_mul(T::DTYPE.size())))),
            }),
        }
    }
}

/// Device memory that outlives steps. The host writes inputs into it before a step and reads results after it; inside a step a
/// [`Tape`](crate::Tape) reads it as a tensor or stores tensors into it. Clones share the memory.
#[derive(Clone)]
pub struct Buffer {
    pub(crate) slot: Arc<Slot>,
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

    fn with<R>(&self, f: impl FnOnce(&mut Block) -> R) -> Result<R> {
        let mut block = self.take()?;
        let result = f(&mut block);
        self.put(block);
        Ok(result)
    }
}

impl Buffer {
    pub fn shape(&self) -> Shape {
        self.slot.shape
    }

    pub fn dtype(&self) -> DType {
        self.slot.dtype
    }

    fn expect<T: Element>(&self, op: &'static str) -> Result<()> {
        match T::DTYPE == self.dtype() {
            true => Ok(()),
            false => Err(Error::DTypeMismatch { op, expected: self.dtype(), got: T::DTYPE }),
        }
    }

    /// Replaces the contents.
    pub fn write<T: Element>(&self, values: &[T]) -> Result<()> {
        self.expect::<T>("buffer write")?;
        let expected = self.shape().len();
        if values.len() != expected {
            return Err(Error::WrongLength { name: self.slot.name.clone(), expected, got: values.len() });
        }
        self.slot.with(|block| block.all_mut::<T>().copy_from_slice(values))
    }

    /// Replaces `values.len()` elements from element `start` on.
    pub fn write_at<T: Element>(&self, start: usize, values: &[T]) -> Result<()> {
        self.expect::<T>("buffer write")?;
        let (end, limit) = (start.saturating_add(values.len()), self.shape().len());
        if end > limit {
            return Err(Error::RangeOutOfBounds { op: "buffer write", start, end, limit });
        }
        self.slot.with(|block| block.all_mut::<T>()[start..end].copy_from_slice(values))
    }

    /// A copy of the contents.
    pub fn read<T: Element>(&self) -> Result<Vec<T>> {
        self.expect::<T>("buffer read")?;
        self.slot.with(|block| block.all::<T>().to_vec())
    }

    /// A copy of elements `start..end`.
    pub fn read_range<T: Element>(&self, start: usize, end: usize) -> Result<Vec<T>> {
        self.expect::<T>("buffer read")?;
        let limit = self.shape().len();
        if start > end || end > limit {
            return Err(Error::RangeOutOfBounds { op: "buffer read", start, end, limit });
        }
        self.slot.with(|block| block.all::<T>()[start..end].to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_check_type_and_length() -> Result<()> {
        let device = Device::cpu(Some(1))?;
        let buffer = device.buffer::<f32>("frames", [2, 3]);
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

    #[test]
    fn no_threads_is_an_error() {
        assert!(matches!(Device::cpu(Some(0)), Err(Error::Threads { threads: 0, .. })));
    }
}
