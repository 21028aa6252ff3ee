//! The GPU room: what ops ask of an NVIDIA GPU, and nothing that knows of ops. Kernels are written in CUDA C++ under `kernels` and compiled on the
//! machine they run on; matrix products come from cuBLASLt, convolutions from cuDNN. Without the feature `cuda` there is no GPU, and everything
//! here is uninhabited.

#[cfg(not(feature = "cuda"))]
mod absent;
#[cfg(feature = "cuda")]
mod conv;
#[cfg(feature = "cuda")]
mod core;
#[cfg(feature = "cuda")]
mod gemm;
#[cfg(feature = "cuda")]
mod gpu;
#[cfg(feature = "cuda")]
mod graph;
mod joins;
pub(crate) mod kernels;
#[cfg(feature = "cuda")]
mod launch;
#[cfg(feature = "cuda")]
mod library;
#[cfg(feature = "cuda")]
mod module;
#[cfg(feature = "cuda")]
mod report;
#[cfg(test)]
#[cfg(feature = "cuda")]
mod signatures;
#[cfg(feature = "cuda")]
mod staging;
#[cfg(feature = "cuda")]
mod trace;

#[cfg(not(feature = "cuda"))]
pub(crate) use absent::{DeviceMemory, Gpu, Graph};
#[cfg(feature = "cuda")]
pub(crate) use core::DeviceMemory;
#[cfg(feature = "cuda")]
pub(crate) use gpu::Gpu;
#[cfg(feature = "cuda")]
pub(crate) use graph::Graph;
pub(crate) use joins::{Join, Joins};
#[cfg(feature = "cuda")]
pub use library::{Library, libraries, library_folders};
#[cfg(feature = "cuda")]
pub use report::{GpuReport, gpu_report};

use crate::DType;

/// Numbers on the GPU that are f32 or bf16, as kernels that take either get them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    pub at: u64,
    pub dtype: DType,
}

impl View {
    /// An optional view that is not there.
    pub const NOTHING: View = View { at: 0, dtype: DType::F32 };

    pub fn new(at: u64, dtype: DType) -> View {
        View { at, dtype }
    }
}

/// One argument of a kernel.
#[derive(Clone, Copy, Debug)]
enum Arg<'a> {
    /// An address.
    At(u64),
    View(View),
    U32(usize),
    I32(i32),
    F32(f32),
    F64(f64),
    /// 0 or 1.
    Flag(bool),
    Joins(&'a joins::Table),
}

/// How a kernel is spread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub blocks: (usize, usize),
    pub threads: usize,
    /// Bytes of shared memory.
    pub shared: usize,
}

/// Blocks of a cluster, where kernels do not say it themselves.
pub(crate) const CLUSTER: usize = 16;

const THREADS: usize = 256;
/// Blocks per multiprocessor, of which eight are resident: two waves. Kernels walk on from there.
const BLOCKS: usize = 16;

impl Grid {
    /// For kernels that handle `n` elements, four at a time where they can.
    pub fn elements(gpu: &Gpu, n: usize) -> Grid {
        let each = if n.is_multiple_of(4) { 4 } else { 1 };
        Grid::blocks(n.div_ceil(each * THREADS).clamp(1, BLOCKS * gpu.processors()))
    }

    /// For kernels with a warp per row.
    pub fn warps(gpu: &Gpu, rows: usize) -> Grid {
        Grid::blocks(rows.div_ceil(THREADS / 32).clamp(1, BLOCKS * gpu.processors()))
    }

    /// For kernels with a warp per row and so much work in a row that none needs a second.
    pub fn rows(rows: usize) -> Grid {
        Grid::blocks(rows.div_ceil(THREADS / 32).max(1))
    }

    /// Blocks of a sum over `n` elements, two per multiprocessor at most: each leaves a part that a second kernel joins.
    pub fn parts(gpu: &Gpu, n: usize) -> usize {
        const ELEMENTS: usize = 2048;
        n.div_ceil(ELEMENTS).clamp(1, 2 * gpu.processors())
    }

    pub fn blocks(blocks: usize) -> Grid {
        Grid { blocks: (blocks, 1), threads: THREADS, shared: 0 }
    }
}

/// A matrix in row-major memory, or a batch of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix {
    pub at: u64,
    pub dtype: DType,
    /// Stored the other way round.
    pub transposed: bool,
    /// Elements from one stored row to the next.
    pub stride: usize,
    /// Elements from one matrix of the batch to the next.
    pub batch_stride: usize,
}

impl Matrix {
    pub fn rows(at: u64, dtype: DType, stride: usize) -> Matrix {
        Matrix { at, dtype, transposed: false, stride, batch_stride: 0 }
    }

    pub fn transposed(at: u64, dtype: DType, stride: usize) -> Matrix {
        Matrix { transposed: true, ..Matrix::rows(at, dtype, stride) }
    }

    pub fn every(self, batch_stride: usize) -> Matrix {
        Matrix { batch_stride, ..self }
    }
}

/// out [m, n] = a [m, k] b [k, n] + start + bias
#[derive(Clone, Copy, Debug)]
pub(crate) struct Product {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub a: Matrix,
    pub b: Matrix,
    pub out: Matrix,
    /// Added to the product: another matrix laid out like `out`, or `out` itself.
    pub start: Option<u64>,
    /// [n], of the type of `out`.
    pub bias: Option<u64>,
    /// With a bias: negative values and NaN become zero.
    pub relu: bool,
    pub batch: usize,
}

impl Product {
    /// a b, and nothing else.
    pub fn new((m, n, k): (usize, usize, usize), a: Matrix, b: Matrix, out: Matrix) -> Product {
        Product { m, n, k, a, b, out, start: None, bias: None, relu: false, batch: 1 }
    }
}

/// A 3x3 convolution over NHWC images: x [B, H, W, I], weight [O, 3, 3, I], y [B, H', W', O].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Convolution {
    pub batch: usize,
    pub height: usize,
    pub width: usize,
    pub inputs: usize,
    pub outputs: usize,
    /// 1 with one pixel of padding, or 2 with none.
    pub stride: usize,
    pub dtype: DType,
}

impl Convolution {
    /// Height and width of the result.
    pub fn out(&self) -> (usize, usize) {
        let padding = if self.stride == 1 { 2 } else { 0 };
        let out = |size: usize| (size + padding - 3) / self.stride + 1;
        (out(self.height), out(self.width))
    }

    /// Whether it has images of more elements than 32 bits can count.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub fn is_too_large(&self) -> bool {
        let (height, width) = self.out();
        let x = self.height * self.width * self.inputs;
        let y = height * width * self.outputs;
        x.max(y).saturating_mul(self.batch) > i32::MAX as usize
    }
}

/// What follows a convolution in the same pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tail {
    /// [O], of the type of the images.
    pub bias: u64,
    /// Added to the result.
    pub residual: Option<u64>,
    pub relu: bool,
}

/// Which of the three tensors of a convolution is computed from the other two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Direction {
    Forward,
    InputGradient,
    WeightGradient,
}
