//! What everything on a GPU stands on: the driver, its context and stream, memory, and what goes wrong.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use cudarc::driver::{result, sys};

use super::staging::Staging;
use crate::{Error, Result};

/// Words of the fault report: code, op, value, position, limit.
pub(super) const FAULT_WORDS: usize = 5;

/// What memory on the GPU needs to live and to be freed.
pub(super) struct Core {
    pub device: sys::CUdevice,
    pub context: sys::CUcontext,
    pub stream: sys::CUstream,
    /// Whether the last thing asked of the stream was a kernel that lets the next one start before it ends.
    pub chained: AtomicBool,
    pub usage: Arc<Usage>,
    /// Whether work becomes part of a CUDA graph instead of being done.
    pub capturing: AtomicBool,
    /// Where kernels report what they find wrong.
    pub fault: u64,
    /// Names of ops that report faults, by number.
    pub ops: Mutex<Vec<&'static str>>,
    pub staging: Mutex<Staging>,
}

/// Memory of all `Gpu`s of a process that share a card.
#[derive(Default)]
pub(super) struct Usage {
    /// Bytes in use, and the most there were.
    pub used: AtomicUsize,
    pub peak: AtomicUsize,
}

// SAFETY: the handles are the driver's, which may be used from any thread that has entered the context; all work goes to one stream, in order.
unsafe impl Send for Core {}
// SAFETY: as above.
unsafe impl Sync for Core {}

pub(super) fn driver(what: &'static str) -> impl Fn(result::DriverError) -> Error {
    move |e| {
        let reason = match e.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                "its memory is full; smaller batches need less, or other programs use it".into()
            }
            _ => e.to_string(),
        };
        Error::Gpu { what, reason }
    }
}

/// The first GPU, and how many there are. The driver must have been loaded.
pub(super) fn first_gpu() -> Result<(sys::CUdevice, usize)> {
    let none = |reason: String| Error::NoGpu { reason };
    let unseen = "the NVIDIA driver sees none: look at what `nvidia-smi` says, and whether CUDA_VISIBLE_DEVICES hides it";
    result::init().map_err(|e| match e.0 {
        sys::CUresult::CUDA_ERROR_NO_DEVICE => none(unseen.into()),
        code if is_of_mps(code) => Error::Gpu { what: "connecting to MPS", reason: e.to_string() },
        _ => none(format!("the NVIDIA driver does not start: {e}")),
    })?;
    match result::device::get_count().map_err(driver("counting GPUs"))? {
        ..=0 => Err(none(unseen.into())),
        count => Ok((result::device::get(0).map_err(driver("finding the GPU"))?, count as usize)),
    }
}

/// Whether the daemon that shares a GPU is to blame (CUDA_ERROR_MPS_CONNECTION_FAILED and its successors): there is a GPU then.
fn is_of_mps(code: sys::CUresult) -> bool {
    (805..=810).contains(&(code as u32))
}

/// The CUDA version that the driver is made for: 13000 for 13.0. The driver must have been loaded.
pub(super) fn cuda_version() -> Result<i32> {
    let mut version = 0;
    // SAFETY: it writes one number.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(driver("asking the GPU"))?;
    Ok(version)
}

/// A GPU's compute capability: (major, minor).
pub(super) fn capability(device: sys::CUdevice) -> Result<(i32, i32)> {
    use sys::CUdevice_attribute as Attribute;
    Ok((
        attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    ))
}

/// What the driver says about a GPU.
pub(super) fn attribute(device: sys::CUdevice, which: sys::CUdevice_attribute) -> Result<i32> {
    // SAFETY: a valid device.
    unsafe { result::device::get_attribute(device, which) }.map_err(driver("asking the GPU"))
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> Result<MutexGuard<'_, T>> {
    let gone = |_| Error::Gpu { what: "using the GPU", reason: "another thread failed while it did".into() };
    mutex.lock().map_err(gone)
}

impl Core {
    pub fn enter(&self) -> Result<()> {
        // SAFETY: the context is alive as long as the core.
        unsafe { result::ctx::set_current(self.context) }.map_err(driver("choosing the GPU"))
    }

    /// The stream, for anything that starts when everything before it has ended.
    pub fn stream(&self) -> sys::CUstream {
        self.chained.store(false, Ordering::Relaxed);
        self.stream
    }

    /// Refuses what a step must not do: it would become part of the CUDA graph.
    pub fn check_not_capturing(&self, what: &'static str) -> Result<()> {
        match self.capturing.load(Ordering::Relaxed) {
            false => Ok(()),
            true => {
                let reason = "a step is being captured as a CUDA graph; buffers are made and written before it and read after it";
                Err(Error::Gpu { what, reason: reason.into() })
            }
        }
    }

    /// Starts to copy bytes to the GPU. They may be reused at once.
    pub fn upload(&self, to: u64, bytes: &[u8]) -> Result<()> {
        lock(&self.staging)?.upload(to, bytes, self.stream())
    }

    pub fn wait(&self) -> Result<()> {
        self.enter()?;
        // SAFETY: the stream is alive as long as the core.
        unsafe { result::stream::synchronize(self.stream) }.map_err(driver("waiting for the GPU"))?;
        self.check_faults()
    }

    fn check_faults(&self) -> Result<()> {
        let mut words = [0i32; FAULT_WORDS];
        // SAFETY: the words were allocated in `Gpu::start`, and nothing is running.
        unsafe { result::memcpy_dtoh_sync(&mut words, self.fault) }.map_err(driver("waiting for the GPU"))?;
        let [code, op, value, position, limit] = words;
        if code == 0 {
            return Ok(());
        }
        // SAFETY: as above. On the stream, so that no later kernel reports before it.
        unsafe { result::memset_d8_async(self.fault, 0, FAULT_WORDS * 4, self.stream()) }
            .map_err(driver("waiting for the GPU"))?;
        let op = self.ops.lock().ok().and_then(|ops| ops.get(op as usize).copied()).unwrap_or("a kernel");
        Err(match code {
            1 => Error::IndexOutOfRange {
                op,
                index: i64::from(value),
                position: position as usize,
                limit: limit as usize,
            },
            _ => Error::NotFinite { what: op, value: f32::from_bits(value as u32) },
        })
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // SAFETY: created in `Gpu::start`, used by nobody any more: everything that uses them holds the core.
        unsafe {
            let _ = result::ctx::set_current(self.context);
            let _ = result::stream::synchronize(self.stream);
            let _ = result::free_sync(self.fault);
            if let Ok(staging) = self.staging.get_mut() {
                staging.free();
            }
            let _ = result::stream::destroy(self.stream);
            let _ = result::primary_ctx::release(self.device);
        }
    }
}

/// Memory of the GPU.
pub(crate) struct DeviceMemory {
    core: Arc<Core>,
    at: u64,
    bytes: usize,
}

impl DeviceMemory {
    pub(super) fn new(core: &Arc<Core>, what: &str, bytes: usize) -> Result<DeviceMemory> {
        core.enter()?;
        // SAFETY: freed when this is dropped.
        let at = unsafe { result::malloc_sync(bytes.max(1)) }.map_err(|e| match e.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                Error::OutOfMemory { what: what.into(), bytes, place: "the GPU" }
            }
            _ => driver("taking memory")(e),
        })?;
        let used = core.usage.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        core.usage.peak.fetch_max(used, Ordering::Relaxed);
        Ok(DeviceMemory { core: core.clone(), at, bytes })
    }

    pub fn at(&self) -> u64 {
        self.at
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Replaces the bytes from `start` on, after everything asked for before.
    pub fn write(&self, start: usize, bytes: &[u8]) -> Result<()> {
        self.core.check_not_capturing("writing a buffer")?;
        self.core.enter()?;
        // Inside the allocation: callers check ranges.
        self.core.upload(self.at + start as u64, bytes)
    }

    /// Waits for the GPU and copies bytes from `start` on.
    pub fn read(&self, start: usize, bytes: &mut [u8]) -> Result<()> {
        self.core.check_not_capturing("reading a buffer")?;
        self.core.enter()?;
        // SAFETY: inside the allocation; waited for before the slice is used.
        unsafe { result::memcpy_dtoh_async(bytes, self.at + start as u64, self.core.stream()) }
            .map_err(driver("copying from the GPU"))?;
        self.core.wait()
    }

    /// Replaces `bytes` bytes by those of memory of this card, maybe of another stream. Both streams are done with everything asked for before, and
    /// the copy is over when this returns.
    pub fn copy_from(&self, other: &DeviceMemory, bytes: usize) -> Result<()> {
        [self, other]
            .into_iter()
            .try_for_each(|memory| memory.core.check_not_capturing("copying a buffer"))?;
        self.core.wait()?;
        other.core.enter()?;
        // SAFETY: inside both allocations: callers check sizes.
        unsafe { result::memcpy_dtod_async(self.at, other.at, bytes, other.core.stream()) }
            .map_err(driver("copying memory"))?;
        other.core.wait()
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        self.core.usage.used.fetch_sub(self.bytes, Ordering::Relaxed);
        // SAFETY: allocated in `new`; work that uses it was asked for before, and freeing waits for it.
        unsafe {
            let _ = result::ctx::set_current(self.core.context);
            let _ = result::free_sync(self.at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_refuses_is_not_a_missing_gpu() {
        use sys::CUresult::*;
        assert!(is_of_mps(CUDA_ERROR_MPS_CONNECTION_FAILED));
        assert!(is_of_mps(CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED));
        assert!(!is_of_mps(CUDA_ERROR_NO_DEVICE) && !is_of_mps(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH));
    }
}
