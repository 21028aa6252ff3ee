//! One GPU: its memory, its stream, and what runs on it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use cudarc::driver::{result, sys};

use super::conv::Convolutions;
use super::core::{
    Core, DeviceMemory, FAULT_WORDS, Usage, attribute, capability, cuda_version, driver, first_gpu, lock,
};
use super::gemm::Products;
use super::module::{self, Image, Module};
use super::staging::Staging;
use super::trace::Trace;
use super::{Convolution, Direction, Product, Tail, library};
use crate::{Error, Precision, Result};

/// Working memory of cuBLASLt and cuDNN.
const WORKSPACE: usize = 256 << 20;
/// The CUDA version of the oldest driver that has all we ask of it.
const OLDEST_DRIVER: i32 = 12_080;

pub(crate) struct Gpu {
    // Freed before the core, whose context they need.
    pub(super) module: Module,
    products: Mutex<Products>,
    convolutions: Mutex<Convolutions>,
    workspace: DeviceMemory,
    name: String,
    precision: Precision,
    pub(super) trace: Mutex<Option<Trace>>,
    pub(super) tracing: AtomicBool,
    /// Whether a kernel can start before the one before it has ended.
    pub(super) overlaps: bool,
    /// Bytes of shared memory that a block can have.
    pub(super) shared: usize,
    /// Multiprocessors.
    processors: usize,
    pub(super) core: Arc<Core>,
}

impl Gpu {
    pub fn new(precision: Precision) -> Result<Arc<Gpu>> {
        Gpu::with_usage(precision, None)
    }

    /// Another one on the same card, with a stream, working memory and kernels of its own. Its work gives way to that of the first.
    pub fn beside(&self) -> Result<Arc<Gpu>> {
        Gpu::with_usage(self.precision, Some(self.core.usage.clone()))
    }

    /// Without usage of another one it is the first of the process.
    fn with_usage(precision: Precision, usage: Option<Arc<Usage>>) -> Result<Arc<Gpu>> {
        library::load()?;
        let (device, _) = first_gpu()?;
        let name = result::device::get_name(device).map_err(driver("finding the GPU"))?;
        let capability = capability(device)?;
        if capability < (8, 0) {
            let (major, minor) = capability;
            let reason = format!("{name} has compute capability {major}.{minor}; at least 8.0 is needed");
            return Err(Error::NoGpu { reason });
        }
        if cuda_version()? < OLDEST_DRIVER {
            let reason = "the NVIDIA driver is too old: 570 or newer is needed, 580 for CUDA 13".into();
            return Err(Error::NoGpu { reason });
        }
        // The first time on a machine, kernels are compiled while the rest starts.
        std::thread::scope(|scope| {
            let images = scope.spawn(|| module::images(capability));
            let images = || images.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            Gpu::start(precision, usage, (device, name, capability), images)
        })
    }

    fn start(
        precision: Precision,
        usage: Option<Arc<Usage>>,
        (device, name, capability): (sys::CUdevice, String, (i32, i32)),
        images: impl FnOnce() -> Result<Vec<Image>>,
    ) -> Result<Arc<Gpu>> {
        // SAFETY: a valid device; released when the core is dropped.
        let context = unsafe { result::primary_ctx::retain(device) }.map_err(driver("starting the GPU"))?;
        // SAFETY: the context was just retained.
        unsafe { result::ctx::set_current(context) }.map_err(driver("starting the GPU"))?;
        use result::stream::{StreamKind, create_with_priority, get_priority_range};
        let (least, greatest) = get_priority_range().map_err(driver("starting the GPU"))?;
        let priority = if usage.is_none() { greatest } else { least };
        let stream =
            create_with_priority(StreamKind::NonBlocking, priority).map_err(driver("starting the GPU"))?;
        // SAFETY: freed with the core.
        let fault = unsafe {
            let fault = result::malloc_sync(FAULT_WORDS * 4).map_err(driver("taking memory"))?;
            result::memset_d8_async(fault, 0, FAULT_WORDS * 4, stream).map_err(driver("taking memory"))?;
            fault
        };
        let core = Arc::new(Core {
            device,
            context,
            stream,
            chained: AtomicBool::new(false),
            usage: usage.unwrap_or_default(),
            capturing: AtomicBool::new(false),
            fault,
            ops: Mutex::new(Vec::new()),
            staging: Mutex::new(Staging::new()?),
        });
        use sys::CUdevice_attribute as Attribute;
        let shared = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        let processors = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let (products, convolutions) = (Products::new()?, Convolutions::new(stream)?);
        let workspace = DeviceMemory::new(&core, "the working memory of cuBLAS and cuDNN", WORKSPACE)?;
        let gpu = Gpu {
            module: Module::new(images()?)?,
            products: Mutex::new(products),
            convolutions: Mutex::new(convolutions),
            workspace,
            name,
            precision,
            trace: Mutex::new(None),
            tracing: AtomicBool::new(false),
            overlaps: capability >= (9, 0),
            shared: shared as usize,
            processors: processors.max(1) as usize,
            core: core.clone(),
        };
        Ok(Arc::new(gpu))
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// Makes this thread one that can talk to the GPU.
    pub fn enter(&self) -> Result<()> {
        self.core.enter()
    }

    /// Whether blocks can work together in clusters.
    pub fn has_clusters(&self) -> bool {
        self.overlaps
    }

    /// Multiprocessors: what decides how many blocks are resident.
    pub fn processors(&self) -> usize {
        self.processors
    }

    /// Bytes of shared memory that a block of `launch_chained` can have, its kernel's own included.
    pub fn shared_memory(&self) -> usize {
        self.shared
    }

    /// (bytes in use, the most there were)
    pub fn memory(&self) -> (usize, usize) {
        let Usage { used, peak } = &*self.core.usage;
        (used.load(Ordering::Relaxed), peak.load(Ordering::Relaxed))
    }

    pub fn forget_peak_memory(&self) {
        let Usage { used, peak } = &*self.core.usage;
        peak.store(used.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Bytes nobody uses.
    pub fn free_memory(&self) -> usize {
        self.enter().ok().and_then(|()| result::mem_get_info().ok()).map_or(0, |(free, _)| free)
    }

    /// Uninitialised memory. `what` names its purpose in the error if there is none left.
    pub fn allocate(&self, what: &str, bytes: usize) -> Result<DeviceMemory> {
        DeviceMemory::new(&self.core, what, bytes)
    }

    /// Zeroes a new buffer, which must not happen while a step is being captured.
    pub fn zero(&self, at: u64, bytes: usize) -> Result<()> {
        self.core.check_not_capturing("making a buffer")?;
        self.fill_bytes(at, 0, bytes)
    }

    pub fn fill_bytes(&self, at: u64, byte: u8, count: usize) -> Result<()> {
        // SAFETY: callers fill memory of their own.
        unsafe { result::memset_d8_async(at, byte, count, self.core.stream()) }
            .map_err(driver("filling memory"))
    }

    pub fn fill_words(&self, at: u64, word: u32, count: usize) -> Result<()> {
        // SAFETY: callers fill memory of their own.
        unsafe { sys::cuMemsetD32Async(at, word, count, self.core.stream()) }
            .result()
            .map_err(driver("filling memory"))
    }

    pub fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<()> {
        // SAFETY: callers copy between blocks of their own.
        unsafe { result::memcpy_dtod_async(to, from, bytes, self.core.stream()) }
            .map_err(driver("copying memory"))
    }

    /// Copies bytes from the host, which may be reused at once.
    pub fn upload(&self, to: u64, bytes: &[u8]) -> Result<()> {
        self.core.upload(to, bytes)
    }

    /// Waits until everything asked for is done, and reports what went wrong on the way.
    pub fn synchronise(&self) -> Result<()> {
        self.core.wait()
    }

    pub fn product(&self, product: &Product) -> Result<()> {
        let mut products = lock(&self.products)?;
        let name = || {
            let (Product { m, n, k, batch, .. }, dtype) = (product, product.a.dtype);
            format!("product {m}x{n}x{k} batch {batch} {dtype}")
        };
        self.timed(name, || products.run(product, self.core.stream(), self.workspace.at(), WORKSPACE))
    }

    pub fn convolve(
        &self,
        shape: &Convolution,
        direction: Direction,
        x: u64,
        weight: u64,
        y: u64,
        accumulate: bool,
    ) -> Result<()> {
        // cuDNN has the stream already.
        self.core.stream();
        let mut convolutions = lock(&self.convolutions)?;
        let name = || {
            let Convolution { batch, height, inputs, outputs, stride, .. } = shape;
            format!("conv {direction:?} {batch}x{height} {inputs}->{outputs} stride {stride}")
        };
        let workspace = (self.workspace.at(), WORKSPACE);
        self.timed(name, || convolutions.run(shape, direction, (x, weight, y), accumulate, workspace))
    }

    /// A convolution with what follows it in one pass; false if that is not possible.
    pub fn convolve_fused(
        &self,
        shape: &Convolution,
        x: u64,
        weight: u64,
        y: u64,
        tail: Tail,
    ) -> Result<bool> {
        let mut convolutions = lock(&self.convolutions)?;
        // cuDNN was given the stream itself.
        self.core.stream();
        let mut fused = false;
        let name = || {
            let Convolution { batch, height, inputs, outputs, stride, .. } = shape;
            format!("conv Fused {batch}x{height} {inputs}->{outputs} stride {stride}")
        };
        let workspace = (self.workspace.at(), WORKSPACE);
        self.timed(name, || {
            fused = convolutions.run_fused(shape, (x, weight, y), tail, workspace)?;
            Ok(())
        })?;
        Ok(fused)
    }

    /// Where kernels report what they find wrong.
    pub fn fault(&self) -> u64 {
        self.core.fault
    }

    /// The number under which an op reports faults.
    pub fn op(&self, name: &'static str) -> i32 {
        let Ok(mut ops) = self.core.ops.lock() else { return 0 };
        let found = ops.iter().position(|op| *op == name).unwrap_or_else(|| {
            ops.push(name);
            ops.len() - 1
        });
        found as i32
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // The memory freed next may still be in use, and belongs to this context.
        let _ = self.core.enter();
        // SAFETY: the stream is alive as long as the core.
        let _ = unsafe { result::stream::synchronize(self.core.stream) };
    }
}
