//! Memory that outlives steps: their inputs, results and carried state.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::dtype::{Bf16, from_bf16, to_bf16};
use crate::memory::Block;
use crate::{DType, Device, Element, Error, Result, Shape};

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
    held: Mutex<Held>,
}

/// Where a buffer's memory is.
enum Held {
    Here(Block),
    /// A step has it.
    Taken,
    /// A step failed with it, and there was no memory to replace it.
    Lost(Error),
}

impl Slot {
    /// Takes the block out for a step, or says that another one has it.
    pub fn take(&self) -> Result<Block> {
        let mut held = self.held();
        match std::mem::replace(&mut *held, Held::Taken) {
            Held::Here(block) => Ok(block),
            Held::Taken => Err(Error::InUse { name: self.name.clone() }),
            Held::Lost(error) => {
                *held = Held::Lost(error.clone());
                Err(error)
            }
        }
    }

    pub fn put(&self, block: Block) {
        *self.held() = Held::Here(block);
    }

    /// From here on, using the buffer is this error.
    pub fn lose(&self, error: Error) {
        *self.held() = Held::Lost(error);
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        // Nothing panics while it is locked.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
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

impl Device {
    /// Zeroed memory that outlives steps: their inputs, outputs and carried state.
    pub fn buffer<T: Element>(&self, name: impl Into<String>, shape: impl Into<Shape>) -> Result<Buffer> {
        Buffer::zeroed(self, name.into(), shape.into(), T::DTYPE)
    }

    /// A buffer of one number, for what steps read and the host sets between them: a learning rate.
    pub fn scalar(&self, name: impl Into<String>, value: f32) -> Result<Buffer> {
        let buffer = self.buffer::<f32>(name, [1])?;
        buffer.write(&[value])?;
        Ok(buffer)
    }

    /// A buffer in the device's activation type, for large activations kept between steps. The host reads and writes f32.
    pub fn float_buffer(&self, name: impl Into<String>, shape: impl Into<Shape>) -> Result<Buffer> {
        Buffer::zeroed(self, name.into(), shape.into(), self.float())
    }
}

impl Buffer {
    /// Zeroes on a device.
    fn zeroed(device: &Device, name: String, shape: Shape, dtype: DType) -> Result<Buffer> {
        let bytes = shape.len().saturating_mul(dtype.size());
        let block = Block::zeroed(&name, bytes, device.backend())?;
        let slot = Slot { name, shape, dtype, held: Mutex::new(Held::Here(block)) };
        Ok(Buffer { slot: Arc::new(slot), device: device.clone() })
    }

    /// A number that no other living buffer has.
    pub fn identity(&self) -> u64 {
        Arc::as_ptr(&self.slot) as usize as u64
    }

    /// Where it lies.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Its dimensions.
    pub fn shape(&self) -> Shape {
        self.slot.shape
    }

    /// Its element type.
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

    /// Replaces the contents by those of a buffer of the same type and length, maybe of another device.
    pub fn copy_from(&self, other: &Buffer) -> Result<()> {
        if self.dtype() != other.dtype() {
            let (expected, got) = (self.dtype(), other.dtype());
            return Err(Error::DTypeMismatch { op: "buffer copy", expected, got });
        }
        let (expected, got) = (self.shape().len(), other.shape().len());
        if expected != got {
            return Err(Error::WrongLength { name: self.slot.name.clone(), expected, got });
        }
        self.slot.with(|to| other.slot.with(|from| to.copy_from(from)))
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

    #[test]
    fn lost_memory_is_reported_as_such() -> Result<()> {
        let buffer = Device::cpu(Some(1))?.buffer::<f32>("moments", [2])?;
        let block = buffer.slot.take()?;
        assert_eq!(buffer.read::<f32>(), Err(Error::InUse { name: "moments".into() }));
        let full = Error::OutOfMemory { what: "moments".into(), bytes: 8, place: "the GPU" };
        buffer.slot.lose(full.clone());
        for _ in 0..2 {
            assert_eq!(buffer.read::<f32>(), Err(full.clone()));
        }
        buffer.slot.put(block);
        assert_eq!(buffer.read::<f32>()?, [0.0; 2]);
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
}
