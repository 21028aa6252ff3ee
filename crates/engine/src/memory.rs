//! Memory: cache-line aligned blocks of the host or blocks of a GPU, and the arena that hands the same ones out step after step.

use std::collections::BTreeMap;

use crate::backend::Backend;
use crate::cuda::{DeviceMemory, Gpu};
use crate::{Element, Error, Result};

/// One cache line; a block is a whole number of them, so every tensor starts aligned.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

// SAFETY: 64 bytes without padding, for which every bit pattern is valid.
unsafe impl bytemuck::Zeroable for Line {}
// SAFETY: as above.
unsafe impl bytemuck::Pod for Line {}

/// An owned, 64-byte aligned piece of memory.
#[derive(Default)]
pub(crate) struct Block {
    lines: Vec<Line>,
    /// Where it lies on a GPU; then there are no lines.
    device: Option<DeviceMemory>,
    bytes: usize,
}

impl Block {
    /// Zeroes, or an error that says what they were for.
    pub fn zeroed(what: &str, bytes: usize, backend: &Backend) -> Result<Block> {
        match backend {
            Backend::Cpu => Block::on_host(what, bytes),
            Backend::Cuda(gpu) => {
                let block = Block::on_gpu(what, bytes, gpu)?;
                gpu.zero(block.at(), bytes.max(1))?;
                Ok(block)
            }
        }
    }

    /// Zeroes of the host.
    fn on_host(what: &str, bytes: usize) -> Result<Block> {
        let lines = bytemuck::try_zeroed_vec(bytes.div_ceil(64)).map_err(|()| Error::OutOfMemory {
            what: what.into(),
            bytes,
            place: "the machine",
        })?;
        ask_for_huge_pages(&lines);
        Ok(Block { lines, device: None, bytes })
    }

    /// Uninitialised memory of a GPU.
    fn on_gpu(what: &str, bytes: usize, gpu: &Gpu) -> Result<Block> {
        Ok(Block { lines: Vec::new(), device: Some(gpu.allocate(what, bytes)?), bytes })
    }

    /// Its address on the GPU; 0 for a block of the host.
    pub fn at(&self) -> u64 {
        self.device.as_ref().map_or(0, DeviceMemory::at)
    }

    /// Replaces the `T`s from number `start` on.
    pub fn write<T: Element>(&mut self, start: usize, values: &[T]) -> Result<()> {
        match &self.device {
            Some(device) => device.write(start * size_of::<T>(), bytemuck::cast_slice(values)),
            None => {
                self.all_mut::<T>()[start..start + values.len()].copy_from_slice(values);
                Ok(())
            }
        }
    }

    /// A copy of the `T`s `start..end`. Waits for the device.
    pub fn read<T: Element>(&self, start: usize, end: usize) -> Result<Vec<T>> {
        match &self.device {
            Some(device) => {
                let mut values = vec![T::zeroed(); end - start];
                device.read(start * size_of::<T>(), bytemuck::cast_slice_mut(&mut values))?;
                Ok(values)
            }
            None => Ok(self.all::<T>()[start..end].to_vec()),
        }
    }

    /// Replaces the bytes by those of a block of the same size, maybe of another device.
    pub fn copy_from(&mut self, other: &Block) -> Result<()> {
        match (&self.device, &other.device) {
            (Some(to), Some(from)) => to.copy_from(from, self.bytes.min(other.bytes)),
            _ => self.write(0, &other.read::<u8>(0, other.bytes)?),
        }
    }

    /// Whether it was taken out and never put back: a step failed in between.
    pub fn is_lost(&self) -> bool {
        self.lines.is_empty() && self.device.is_none()
    }

    fn capacity(&self) -> usize {
        self.device.as_ref().map_or(self.lines.len() * 64, DeviceMemory::bytes)
    }

    /// All values of a block of the host as `T`s.
    pub fn all<T: bytemuck::Pod>(&self) -> &[T] {
        &bytemuck::cast_slice(&self.lines)[..self.bytes / size_of::<T>()]
    }

    pub fn all_mut<T: bytemuck::Pod>(&mut self) -> &mut [T] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.bytes / size_of::<T>()]
    }

    pub fn f32(&self) -> &[f32] {
        self.all()
    }

    pub fn f32_mut(&mut self) -> &mut [f32] {
        self.all_mut()
    }
}

/// Large blocks are streamed through; with 4 KiB pages most of that time goes into looking addresses up. Linux gives 2 MiB pages to those
/// who ask before they touch the memory.
#[cfg(target_os = "linux")]
fn ask_for_huge_pages(lines: &[Line]) {
    const LARGE: usize = 4 << 20;
    const PAGE: usize = 4096;
    let range = lines.as_ptr_range();
    let (start, end) = ((range.start as usize).next_multiple_of(PAGE), range.end as usize / PAGE * PAGE);
    if size_of_val(lines) >= LARGE {
        // SAFETY: whole pages inside an allocation of ours; the advice does not change their contents. If it is refused, nothing is lost.
        unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_HUGEPAGE) };
    }
}

#[cfg(not(target_os = "linux"))]
fn ask_for_huge_pages(_lines: &[Line]) {}

/// Recycles blocks by size. A step of the same shapes asks for the same sizes in the same order, so after the first few
/// nothing is allocated any more.
#[derive(Default)]
pub(crate) struct Arena {
    free: BTreeMap<usize, Vec<Block>>,
    total: usize,
}

/// The memory of all steps of a GPU. Captured steps keep using the blocks they were captured with.
#[derive(Default)]
pub(crate) struct StepMemory {
    pub arena: Arena,
    /// Counts the times that some of it was lost: what was captured before must not run again.
    pub losses: u64,
}

/// How many times larger than asked for a block of a GPU may be: steps of different shapes share an arena there.
const LARGER: usize = 4;

impl Arena {
    /// A block of `bytes` bytes with unspecified contents. Debug builds fill it with 0xFF (NaN as f32, -1 as i32), so that a
    /// kernel that forgets an element is found by the tests.
    pub fn take(&mut self, bytes: usize, backend: &Backend) -> Result<Block> {
        const WHAT: &str = "the tensors of a step";
        let (capacity, largest) = match backend {
            Backend::Cpu => (bytes.next_multiple_of(64), bytes.next_multiple_of(64)),
            Backend::Cuda(_) => {
                // CUDA refuses zero-byte allocations.
                let capacity = bytes.max(1).next_multiple_of(256);
                (capacity, LARGER * capacity)
            }
        };
        let mut block = match self.free.range_mut(capacity..=largest).find_map(|(_, blocks)| blocks.pop()) {
            Some(block) => block,
            None => {
                let block = match backend {
                    Backend::Cpu => Block::on_host(WHAT, capacity)?,
                    Backend::Cuda(gpu) => Block::on_gpu(WHAT, capacity, gpu)?,
                };
                self.total += capacity;
                block
            }
        };
        block.bytes = bytes;
        if cfg!(debug_assertions) {
            match backend {
                Backend::Cpu => block.all_mut::<u8>().fill(0xFF),
                Backend::Cuda(gpu) => gpu.fill_bytes(block.at(), 0xFF, capacity)?,
            }
        }
        Ok(block)
    }

    pub fn give_back(&mut self, block: Block) {
        let capacity = block.capacity();
        if capacity > 0 {
            self.free.entry(capacity).or_default().push(block);
        }
    }

    /// Bytes ever allocated. Unless a step failed, this is the peak: nothing is returned to the system.
    pub fn bytes(&self) -> usize {
        self.total
    }
}
