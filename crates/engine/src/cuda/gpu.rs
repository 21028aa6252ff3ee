//! One GPU: its memory, its stream, and what runs on it.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use cudarc::driver::{result, sys};

use super::conv::Convolutions;
use super::core::{
    Core, DeviceMemory, FAULT_WORDS, attribute, capability, cuda_version, driver, first_gpu, lock,
};
use super::gemm::Products;
use super::kernels::Kernel;
use super::module::{self, Image, Module};
use super::staging::Staging;
use super::trace::Trace;
use super::{Arg, Convolution, Direction, Grid, Product, Tail, View, library};
use crate::memory::Arena;
use crate::{DType, Error, Precision, Result};

/// Working memory of cuBLASLt and cuDNN.
const WORKSPACE: usize = 256 << 20;
/// The CUDA version of the oldest driver that has all we ask of it.
const OLDEST_DRIVER: i32 = 12_080;

pub(crate) struct Gpu {
    // Freed before the core, whose context they need.
    module: Module,
    products: Mutex<Products>,
    convolutions: Mutex<Convolutions>,
    workspace: DeviceMemory,
    turn: Mutex<Turn>,
    name: String,
    precision: Precision,
    pub(super) trace: Mutex<Option<Trace>>,
    pub(super) tracing: AtomicBool,
    /// Whether a kernel can start before the one before it has ended.
    overlaps: bool,
    /// Bytes of shared memory that a block can have.
    shared: usize,
    /// Multiprocessors.
    processors: usize,
    pub(super) core: Arc<Core>,
}

/// What a step has while it runs: steps take turns.
#[derive(Default)]
pub(crate) struct Turn {
    /// The memory of all steps. Recorded ones keep using the blocks they were recorded with.
    pub arena: Arena,
    /// Counts the times that some of it was lost: what was recorded before must not run again.
    pub losses: u64,
}

impl Gpu {
    pub fn new(precision: Precision) -> Result<Arc<Gpu>> {
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
            Gpu::start(precision, (device, name, capability), images)
        })
    }

    fn start(
        precision: Precision,
        (device, name, capability): (sys::CUdevice, String, (i32, i32)),
        images: impl FnOnce() -> Result<Vec<Image>>,
    ) -> Result<Arc<Gpu>> {
        // SAFETY: a valid device; released when the core is dropped.
        let context = unsafe { result::primary_ctx::retain(device) }.map_err(driver("starting the GPU"))?;
        // SAFETY: the context was just retained.
        unsafe { result::ctx::set_current(context) }.map_err(driver("starting the GPU"))?;
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking)
            .map_err(driver("starting the GPU"))?;
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
            used: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            recording: AtomicBool::new(false),
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
            turn: Mutex::default(),
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

    /// Waits until no other step runs.
    pub fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(|poisoned| {
            // A step panicked with the memory in its hands.
            self.turn.clear_poison();
            let mut turn = poisoned.into_inner();
            turn.losses += 1;
            turn
        })
    }

    /// Frees the memory of steps; those recorded are recorded anew.
    pub fn free_arena(&self) {
        let mut turn = self.turn();
        turn.arena = Arena::default();
        turn.losses += 1;
    }

    /// Whether blocks can work together in clusters.
    pub fn has_clusters(&self) -> bool {
        self.overlaps
    }

    /// Multiprocessors: what decides how many blocks are resident.
    pub fn processors(&self) -> usize {
        self.processors
    }

    /// Bytes of shared memory that a block of [`launch_chained`](Gpu::launch_chained) can have, its kernel's own included.
    pub fn shared_memory(&self) -> usize {
        self.shared
    }

    /// (bytes in use, the most there were)
    pub fn memory(&self) -> (usize, usize) {
        (self.core.used.load(Ordering::Relaxed), self.core.peak.load(Ordering::Relaxed))
    }

    pub fn forget_peak_memory(&self) {
        self.core.peak.store(self.core.used.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Bytes nobody uses.
    pub fn free_memory(&self) -> usize {
        self.enter().ok().and_then(|()| result::mem_get_info().ok()).map_or(0, |(free, _)| free)
    }

    /// Uninitialised memory. `what` names its purpose in the error if there is none left.
    pub fn allocate(&self, what: &str, bytes: usize) -> Result<DeviceMemory> {
        DeviceMemory::new(&self.core, what, bytes)
    }

    /// Zeroes a new buffer, which must not happen while a step is being recorded.
    pub fn zero(&self, at: u64, bytes: usize) -> Result<()> {
        self.core.check_not_recording("making a buffer")?;
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

    /// Starts a kernel; called by the functions in [`kernels`](super::kernels) alone, which have the types of its arguments.
    pub(super) fn launch(&self, kernel: &'static Kernel, grid: Grid, args: &[Arg]) -> Result<()> {
        self.timed(|| kernel.name.into(), || self.launch_now(kernel, grid, args))
    }

    fn launch_now(&self, kernel: &'static Kernel, grid: Grid, args: &[Arg]) -> Result<()> {
        check_sizes(kernel.name, args)?;
        let (blocks, threads, shared) = checked(kernel.name, grid, MOST_SHARED)?;
        let function = self.module.function(kernel.name)?;
        let mut words: Vec<[u64; 2]> = args.iter().map(|arg| pack(*arg)).collect();
        let mut pointers = pointers(&mut words);
        // SAFETY: the arguments are those of the declaration, which was compared with the kernel when it was loaded. They outlive the call,
        // which copies them.
        unsafe {
            let stream = self.core.stream();
            result::launch_kernel(
                function,
                (blocks.0, blocks.1, 1),
                (threads, 1, 1),
                shared,
                stream,
                &mut pointers,
            )
        }
        .map_err(driver(kernel.name))
    }

    /// [`launch`](Gpu::launch) of a kernel that lets the next one start early and itself waits for the one before: directly after another
    /// such kernel, it starts before that has ended, where the GPU can.
    pub(super) fn launch_chained(&self, kernel: &'static Kernel, grid: Grid, args: &[Arg]) -> Result<()> {
        self.timed(|| kernel.name.into(), || self.launch_chained_now(kernel, grid, args))
    }

    fn launch_chained_now(&self, kernel: &'static Kernel, grid: Grid, args: &[Arg]) -> Result<()> {
        check_sizes(kernel.name, args)?;
        let (blocks, threads, shared) = checked(kernel.name, grid, self.shared)?;
        let function = self.module.chained(kernel.name, self.shared)?;
        let mut words: Vec<[u64; 2]> = args.iter().map(|arg| pack(*arg)).collect();
        let mut pointers = pointers(&mut words);
        let chained = self.core.chained.swap(true, Ordering::Relaxed);
        let mut value = sys::CUlaunchAttributeValue { pad: [0; 64] };
        value.programmaticStreamSerializationAllowed = 1;
        let id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        let mut early = sys::CUlaunchAttribute { id, pad: [0; 4], value };
        let config = sys::CUlaunchConfig {
            gridDimX: blocks.0,
            gridDimY: blocks.1,
            gridDimZ: 1,
            blockDimX: threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shared,
            hStream: self.core.stream,
            attrs: &mut early,
            // What is timed by itself does not overlap.
            numAttrs: u32::from(self.overlaps && chained && !self.traces()),
        };
        // SAFETY: as in `launch`; the attribute outlives the call.
        let done = unsafe {
            sys::cuLaunchKernelEx(&config, function, pointers.as_mut_ptr(), std::ptr::null_mut()).result()
        };
        if done.is_err() {
            self.core.stream();
        }
        done.map_err(driver(kernel.name))
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

    /// From here to the end of the recording work is written down instead of done.
    pub fn begin_recording(&self) -> Result<Recording<'_>> {
        // The arena may have to take memory for the step while it is written down.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream is alive and nobody else records on it.
        unsafe { result::stream::begin_capture(self.core.stream(), mode) }
            .map_err(driver("recording a step"))?;
        self.core.recording.store(true, Ordering::Relaxed);
        Ok(Recording { gpu: self, over: false })
    }

    fn end_recording(&self) -> Result<Graph> {
        self.core.recording.store(false, Ordering::Relaxed);
        // SAFETY: begun by `begin_recording`.
        let graph =
            unsafe { result::stream::end_capture(self.core.stream()) }.map_err(driver("recording a step"))?;
        // SAFETY: a graph that was just recorded; its executable form does not need it any more.
        let exec = unsafe {
            let exec = result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0));
            let _ = result::graph::destroy(graph);
            exec
        };
        Ok(Graph { exec: exec.map_err(driver("preparing a recorded step"))?, core: self.core.clone() })
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // What is freed next may still be in use, and belongs to this context, whatever went wrong before.
        let _ = self.core.enter();
        // SAFETY: the stream is alive as long as the core.
        let _ = unsafe { result::stream::synchronize(self.core.stream) };
    }
}

/// A step being recorded. It ends with this, also when the step panics.
pub(crate) struct Recording<'a> {
    gpu: &'a Gpu,
    over: bool,
}

impl Recording<'_> {
    pub fn end(mut self) -> Result<Graph> {
        self.over = true;
        self.gpu.end_recording()
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        if !self.over {
            let _ = self.gpu.end_recording();
        }
    }
}

/// Where the driver finds each argument.
fn pointers(words: &mut [[u64; 2]]) -> Vec<*mut c_void> {
    words.iter_mut().map(|word| std::ptr::from_mut(word).cast()).collect()
}

/// Kernels count elements in 32 bits.
fn check_sizes(kernel: &'static str, args: &[Arg]) -> Result<()> {
    match args.iter().any(|arg| matches!(arg, Arg::U32(n) if *n > i32::MAX as usize)) {
        false => Ok(()),
        true => {
            let reason = "a tensor has more than two billion elements; use smaller batches".into();
            Err(Error::Gpu { what: kernel, reason })
        }
    }
}

/// Bytes of shared memory that CUDA gives a kernel unasked.
const MOST_SHARED: usize = 48 << 10;

/// A grid as the driver takes it, if it is within CUDA's limits: blocks, threads, bytes of shared memory. The driver would say no more
/// than "invalid value".
fn checked(kernel: &'static str, grid: Grid, most_shared: usize) -> Result<((u32, u32), u32, u32)> {
    const MOST_BLOCKS: usize = i32::MAX as usize;
    const MOST_ROWS: usize = 65_535;
    const MOST_THREADS: usize = 1024;
    let Grid { blocks: (columns, rows), threads, shared } = grid;
    let limits = [
        (shared, most_shared, "bytes of a block's shared memory", "narrower or shorter networks"),
        (rows, MOST_ROWS, "rows of blocks", "smaller batches"),
        (columns, MOST_BLOCKS, "blocks", "smaller batches"),
        (threads, MOST_THREADS, "threads in a block", "narrower networks"),
    ];
    match limits.into_iter().find(|(wanted, most, ..)| wanted > most) {
        Some((wanted, most, what, less)) => {
            let reason = format!("it needs {wanted} {what}, of which there are {most}: use {less}");
            Err(Error::Gpu { what: kernel, reason })
        }
        None => Ok(((columns as u32, rows as u32), threads as u32, shared as u32)),
    }
}

/// An argument as the driver reads it: its bytes first.
fn pack(arg: Arg) -> [u64; 2] {
    match arg {
        Arg::At(at) => [at, 0],
        Arg::View(View { at, dtype }) => [at, u64::from(dtype == DType::BF16)],
        Arg::U32(x) => [x as u64, 0],
        Arg::I32(x) => [u64::from(x as u32), 0],
        Arg::F32(x) => [u64::from(x.to_bits()), 0],
        Arg::F64(x) => [x.to_bits(), 0],
        Arg::Flag(x) => [u64::from(x), 0],
    }
}

/// A recorded step.
pub(crate) struct Graph {
    exec: sys::CUgraphExec,
    core: Arc<Core>,
}

// SAFETY: as for the core.
unsafe impl Send for Graph {}

impl Graph {
    pub fn launch(&self) -> Result<()> {
        // SAFETY: both are alive; the memory it uses is kept by whoever keeps the graph.
        unsafe { result::graph::launch(self.exec, self.core.stream()) }
            .map_err(driver("running a recorded step"))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: created in `end_recording`.
        unsafe {
            let _ = result::ctx::set_current(self.core.context);
            let _ = result::stream::synchronize(self.core.stream());
            let _ = result::graph::exec_destroy(self.exec);
        }
    }
}
