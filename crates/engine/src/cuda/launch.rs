//! Launches: arguments as the driver reads them, grids within CUDA's limits.

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use cudarc::driver::{result, sys};

use super::core::driver;
use super::gpu::Gpu;
use super::kernels::Kernel;
use super::module::cluster_attribute;
use super::{Arg, CLUSTER, Grid, View};
use crate::{DType, Error, Result};

impl Gpu {
    /// Starts a kernel; called by the functions in [`kernels`](super::kernels) alone, which have the types of its arguments.
    pub(super) fn launch(&self, kernel: &'static Kernel, grid: Grid, args: &[Arg]) -> Result<()> {
        self.timed(|| kernel.name.into(), || self.launch_now(kernel, grid, args))
    }

    fn launch_now(&self, kernel: &'static Kernel, grid: Grid, args: &[Arg]) -> Result<()> {
        check_sizes(kernel.name, args)?;
        let (blocks, threads, shared) = checked(kernel.name, grid, MOST_SHARED)?;
        let function = self.module.function(kernel.name)?;
        let mut words: Vec<[u64; 2]> = args.iter().map(|arg| pack(*arg)).collect();
        let mut pointers = pointers(args, &mut words);
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

    /// [`launch`](Gpu::launch) in clusters of [`CLUSTER`] blocks, with up to all of a multiprocessor's shared memory.
    pub(super) fn launch_clustered(&self, kernel: &'static Kernel, grid: Grid, args: &[Arg]) -> Result<()> {
        self.timed(|| kernel.name.into(), || self.launch_clustered_now(kernel, grid, args))
    }

    fn launch_clustered_now(&self, kernel: &'static Kernel, grid: Grid, args: &[Arg]) -> Result<()> {
        check_sizes(kernel.name, args)?;
        let (blocks, threads, shared) = checked(kernel.name, grid, self.shared)?;
        if self.resident_clusters(kernel.name, grid.threads) == 0 {
            let reason = format!("this GPU has no clusters of {CLUSTER} blocks");
            return Err(Error::Gpu { what: kernel.name, reason });
        }
        let function = self.module.function(kernel.name)?;
        self.launch_with(
            function,
            (blocks, threads, shared),
            self.core.stream(),
            Some(cluster_attribute()),
            args,
        )
        .map_err(driver(kernel.name))
    }

    /// How many clusters of a kernel's blocks run at the same time; 0 where it cannot run.
    pub fn resident_clusters(&self, kernel: &'static str, threads: usize) -> usize {
        match self.has_clusters() {
            true => self.module.resident_clusters(kernel, threads, self.shared).unwrap_or_default(),
            false => 0,
        }
    }

    fn launch_chained_now(&self, kernel: &'static Kernel, grid: Grid, args: &[Arg]) -> Result<()> {
        check_sizes(kernel.name, args)?;
        let (blocks, threads, shared) = checked(kernel.name, grid, self.shared)?;
        let function = self.module.chained(kernel.name, self.shared)?;
        let chained = self.core.chained.swap(true, Ordering::Relaxed);
        // Kernels that are timed one by one do not overlap.
        let early = (self.overlaps && chained && !self.traces()).then(|| {
            let mut value = sys::CUlaunchAttributeValue { pad: [0; 64] };
            value.programmaticStreamSerializationAllowed = 1;
            let id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
            sys::CUlaunchAttribute { id, pad: [0; 4], value }
        });
        let done = self.launch_with(function, (blocks, threads, shared), self.core.stream, early, args);
        if done.is_err() {
            self.core.stream();
        }
        done.map_err(driver(kernel.name))
    }

    /// Starts a kernel on a stream, with an attribute if there is one.
    fn launch_with(
        &self,
        function: sys::CUfunction,
        (blocks, threads, shared): Size,
        stream: sys::CUstream,
        mut attribute: Option<sys::CUlaunchAttribute>,
        args: &[Arg],
    ) -> std::result::Result<(), result::DriverError> {
        let mut words: Vec<[u64; 2]> = args.iter().map(|arg| pack(*arg)).collect();
        let mut pointers = pointers(args, &mut words);
        let config = sys::CUlaunchConfig {
            gridDimX: blocks.0,
            gridDimY: blocks.1,
            gridDimZ: 1,
            blockDimX: threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shared,
            hStream: stream,
            attrs: attribute.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut),
            numAttrs: u32::from(attribute.is_some()),
        };
        // SAFETY: as in `launch_now`; the attribute outlives the call.
        unsafe {
            sys::cuLaunchKernelEx(&config, function, pointers.as_mut_ptr(), std::ptr::null_mut()).result()
        }
    }
}

/// Where the driver finds each argument.
fn pointers(args: &[Arg], words: &mut [[u64; 2]]) -> Vec<*mut c_void> {
    let pointer = |(arg, word): (&Arg, &mut [u64; 2])| match arg {
        Arg::Joins(table) => std::ptr::from_ref(*table).cast_mut().cast(),
        _ => std::ptr::from_mut(word).cast(),
    };
    args.iter().zip(words).map(pointer).collect()
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

/// Columns and rows of blocks, threads of each, bytes of shared memory of each.
type Size = ((u32, u32), u32, u32);

/// A grid as the driver takes it, if it is within CUDA's limits. The driver would say no more than "invalid value".
fn checked(kernel: &'static str, grid: Grid, most_shared: usize) -> Result<Size> {
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

/// An argument as the driver reads it: its bytes first. Tables are read where they are.
fn pack(arg: Arg) -> [u64; 2] {
    match arg {
        Arg::At(at) => [at, 0],
        Arg::View(View { at, dtype }) => [at, u64::from(dtype == DType::BF16)],
        Arg::U32(x) => [x as u64, 0],
        Arg::I32(x) => [u64::from(x as u32), 0],
        Arg::F32(x) => [u64::from(x.to_bits()), 0],
        Arg::F64(x) => [x.to_bits(), 0],
        Arg::Flag(x) => [u64::from(x), 0],
        Arg::Joins(_) => [0, 0],
    }
}
