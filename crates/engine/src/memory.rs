//! Host memory: cache-line aligned blocks, and the arena that hands the same ones out step after step.

use std::collections::HashMap;

/// One cache line; a block is a whole number of them, so every tensor starts aligned.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

// SAFETY: 64 bytes without padding, for which every bit pattern is valid.
unsafe impl bytemuck::Zeroable for Line {}
// SAFETY: as above.
unsafe impl bytemuck::Pod for Line {}

/// An owned, zero-initialised, 64-byte aligned piece of memory.
#[derive(Default)]
pub(crate) struct Block {
    lines: Vec<Line>,
    bytes: usize,
}

impl Block {
    pub fn zeroed(bytes: usize) -> Block {
        let lines = bytemuck::zeroed_vec(bytes.div_ceil(64));
        ask_for_huge_pages(&lines);
        Block { lines, bytes }
    }

    /// All values of the block as `T`s.
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

/// Recycles blocks by size. A step of the same shapes asks for the same sizes in the same order, so after the first
/// one nothing is allocated any more.
#[derive(Default)]
pub(crate) struct Arena {
    free: HashMap<usize, Vec<Block>>,
    total: usize,
}

impl Arena {
    /// A block of `bytes` bytes with unspecified contents. Debug builds fill it with 0xFF (NaN as f32, -1 as i32), so that a
    /// kernel that forgets an element is found by the tests.
    pub fn take(&mut self, bytes: usize) -> Block {
        let lines = bytes.div_ceil(64);
        let mut block = match self.free.get_mut(&lines).and_then(Vec::pop) {
            Some(block) => block,
            None => {
                self.total += lines * 64;
                Block::zeroed(bytes)
            }
        };
        block.bytes = bytes;
        if cfg!(debug_assertions) {
            block.all_mut::<u8>().fill(0xFF);
        }
        block
    }

    pub fn give_back(&mut self, block: Block) {
        if !block.lines.is_empty() {
            self.free.entry(block.lines.len()).or_default().push(block);
        }
    }

    /// Bytes ever allocated: since nothing is returned to the system, this is the peak.
    pub fn bytes(&self) -> usize {
        self.total
    }
}
