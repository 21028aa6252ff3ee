//! Pinned memory: what the host sends goes there, and the GPU fetches it while the host goes on.

use std::slice;

use cudarc::driver::{result, sys};

use super::core::driver;
use crate::Result;

/// Bytes of each half.
const HALF: usize = 8 << 20;

/// Two halves, filled in turns: one is written again when the GPU has fetched everything in it.
pub(super) struct Staging {
    halves: [Half; 2],
    current: usize,
    /// Bytes of the current half that are taken.
    used: usize,
}

struct Half {
    at: *mut u8,
    /// Over when the GPU has fetched what was in it.
    fetched: sys::CUevent,
}

// SAFETY: memory and events of the driver's, used from one thread at a time.
unsafe impl Send for Staging {}

impl Staging {
    /// The context must have been entered.
    pub fn new() -> Result<Staging> {
        let half = || -> Result<Half> {
            let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
            let fetched = result::event::create(flags).map_err(driver("starting the GPU"))?;
            // SAFETY: freed in `free`.
            let at = unsafe { result::malloc_host(HALF, 0) }.map_err(driver("taking pinned memory"))?;
            Ok(Half { at: at.cast(), fetched })
        };
        Ok(Staging { halves: [half()?, half()?], current: 0, used: 0 })
    }

    /// Starts to copy bytes to the GPU, after everything asked of the stream before. They may be reused at once.
    pub fn upload(&mut self, to: u64, bytes: &[u8], stream: sys::CUstream) -> Result<()> {
        for (i, part) in bytes.chunks(HALF).enumerate() {
            if self.used + part.len() > HALF {
                self.turn_over(stream)?;
            }
            // SAFETY: the part fits what is left of the half, which the GPU does not read any more; callers write memory of their own.
            let copied = unsafe {
                let from = self.halves[self.current].at.add(self.used);
                from.copy_from_nonoverlapping(part.as_ptr(), part.len());
                let from = slice::from_raw_parts(from, part.len());
                result::memcpy_htod_async(to + (i * HALF) as u64, from, stream)
            };
            copied.map_err(driver("copying to the GPU"))?;
            self.used += part.len().next_multiple_of(64);
        }
        Ok(())
    }

    /// Goes over to the other half, as soon as it is free.
    fn turn_over(&mut self, stream: sys::CUstream) -> Result<()> {
        let full = self.halves[self.current].fetched;
        self.current = 1 - self.current;
        self.used = 0;
        // SAFETY: events that live as long as this. One that was never recorded is over.
        unsafe {
            sys::cuEventRecord(full, stream).result().map_err(driver("copying to the GPU"))?;
            let free = sys::cuEventSynchronize(self.halves[self.current].fetched);
            free.result().map_err(driver("copying to the GPU"))
        }
    }

    /// Frees everything, when the stream has nothing to do any more and before its context goes.
    pub fn free(&mut self) {
        for half in &self.halves {
            // SAFETY: made in `new`, and used by nobody any more.
            unsafe {
                let _ = result::event::destroy(half.fetched);
                let _ = result::free_host(half.at.cast());
            }
        }
    }
}
