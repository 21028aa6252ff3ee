//! 3x3 convolutions by cuDNN.

use std::collections::HashMap;
use std::ffi::c_void;

use cudarc::cudnn::{result, sys};
use cudarc::driver::sys::CUstream;

use super::{Convolution, Direction, Tail};
use crate::{DType, Error, Result};

pub(super) struct Convolutions {
    handle: sys::cudnnHandle_t,
    plans: HashMap<Convolution, Plan>,
    /// `None` where no algorithm fits into the workspace: the batch is computed in halves.
    chosen: HashMap<(Convolution, Direction), Option<Algorithm>>,
    /// Whether cuDNN does convolution, bias, residual and activation in one.
    fuses: HashMap<(Convolution, bool, bool), bool>,
    identity: sys::cudnnActivationDescriptor_t,
    relu: sys::cudnnActivationDescriptor_t,
}

// SAFETY: the handle may be used from any thread, one at a time.
unsafe impl Send for Convolutions {}

/// The descriptors of one convolution.
struct Plan {
    x: sys::cudnnTensorDescriptor_t,
    y: sys::cudnnTensorDescriptor_t,
    weight: sys::cudnnFilterDescriptor_t,
    bias: sys::cudnnTensorDescriptor_t,
    how: sys::cudnnConvolutionDescriptor_t,
}

#[derive(Clone, Copy)]
enum Algorithm {
    Forward(sys::cudnnConvolutionFwdAlgo_t),
    InputGradient(sys::cudnnConvolutionBwdDataAlgo_t),
    WeightGradient(sys::cudnnConvolutionBwdFilterAlgo_t),
}

fn failed(e: result::CudnnError) -> Error {
    Error::Gpu { what: "a convolution", reason: e.to_string() }
}

/// The first of the suggested algorithms that works, gives the same bits every time and fits into the workspace, if there is one.
macro_rules! suggested {
    ($query:path, $perf:ty, $handle:expr, $a:expr, $b:expr, $c:expr, $d:expr, $room:expr) => {{
        let mut count = 0;
        // SAFETY: plain numbers, filled by the library up to `count`.
        let mut results: [$perf; 10] = unsafe { std::mem::zeroed() };
        // SAFETY: all descriptors are alive.
        unsafe { $query($handle, $a, $b, $c, $d, 10, &mut count, results.as_mut_ptr()) }.map_err(failed)?;
        let usable = |r: &&$perf| {
            r.status == sys::cudnnStatus_t::CUDNN_STATUS_SUCCESS
                && r.determinism == sys::cudnnDeterminism_t::CUDNN_DETERMINISTIC
                && r.memory <= $room
        };
        results[..count as usize].iter().find(usable).map(|r| r.algo)
    }};
}

impl Convolutions {
    pub fn new(stream: CUstream) -> Result<Convolutions> {
        let handle = result::create_handle().map_err(failed)?;
        // SAFETY: the stream outlives the handle.
        unsafe { result::set_stream(handle, stream.cast()) }.map_err(failed)?;
        let activation = |mode| -> Result<sys::cudnnActivationDescriptor_t> {
            let descriptor = result::create_activation_descriptor().map_err(failed)?;
            let propagate = sys::cudnnNanPropagation_t::CUDNN_PROPAGATE_NAN;
            // SAFETY: just created.
            unsafe { result::set_activation_descriptor(descriptor, mode, propagate, 0.0) }.map_err(failed)?;
            Ok(descriptor)
        };
        Ok(Convolutions {
            handle,
            plans: HashMap::new(),
            chosen: HashMap::new(),
            fuses: HashMap::new(),
            identity: activation(sys::cudnnActivationMode_t::CUDNN_ACTIVATION_IDENTITY)?,
            relu: activation(sys::cudnnActivationMode_t::CUDNN_ACTIVATION_RELU)?,
        })
    }

    /// Convolution and what follows it in one pass; false if cuDNN cannot.
    pub fn run_fused(
        &mut self,
        shape: &Convolution,
        (x, weight, y): (u64, u64, u64),
        tail: Tail,
        (workspace, room): (u64, usize),
    ) -> Result<bool> {
        let kind = (*shape, tail.residual.is_some(), tail.relu);
        if self.fuses.get(&kind) == Some(&false) || shape.is_too_large() {
            return Ok(false);
        }
        if !self.plans.contains_key(shape) {
            self.plans.insert(*shape, Plan::new(shape)?);
        }
        let plan = &self.plans[shape];
        let (one, other) = (1.0f32, if tail.residual.is_some() { 1.0f32 } else { 0.0 });
        let algorithm = sys::cudnnConvolutionFwdAlgo_t::CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
        // SAFETY: descriptors are alive and describe the caller's blocks.
        let done = unsafe {
            let space = result::get_convolution_forward_workspace_size(
                self.handle,
                plan.x,
                plan.weight,
                plan.how,
                plan.y,
                algorithm,
            );
            space.and_then(|space| {
                if space > room {
                    return Err(result::CudnnError(sys::cudnnStatus_t::CUDNN_STATUS_NOT_SUPPORTED));
                }
                result::convolution_bias_activation_forward(
                    self.handle,
                    std::ptr::from_ref(&one).cast(),
                    plan.x,
                    x as *const c_void,
                    plan.weight,
                    weight as *const c_void,
                    plan.how,
                    algorithm,
                    workspace as *mut c_void,
                    room,
                    std::ptr::from_ref(&other).cast(),
                    plan.y,
                    tail.residual.unwrap_or(y) as *const c_void,
                    plan.bias,
                    tail.bias as *const c_void,
                    if tail.relu { self.relu } else { self.identity },
                    plan.y,
                    y as *mut c_void,
                )
            })
        };
        // It refuses before it does anything.
        self.fuses.insert(kind, done.is_ok());
        Ok(done.is_ok())
    }

    pub fn run(
        &mut self,
        shape: &Convolution,
        direction: Direction,
        (x, weight, y): (u64, u64, u64),
        accumulate: bool,
        (workspace, room): (u64, usize),
    ) -> Result<()> {
        if shape.is_too_large() {
            let reason = "its images have more than two billion elements; use smaller batches".into();
            return Err(Error::Gpu { what: "a convolution", reason });
        }
        if !self.plans.contains_key(shape) {
            self.plans.insert(*shape, Plan::new(shape)?);
        }
        let plan = &self.plans[shape];
        let algorithm = match self.chosen.get(&(*shape, direction)) {
            Some(&algorithm) => algorithm,
            None => {
                let algorithm = plan.choose(self.handle, direction, room)?;
                self.chosen.insert((*shape, direction), algorithm);
                algorithm
            }
        };
        let Some(algorithm) = algorithm else {
            return self.run_in_halves(shape, direction, (x, weight, y), accumulate, (workspace, room));
        };
        let (one, beta) = (1.0f32, if accumulate { 1.0f32 } else { 0.0 });
        let (one, beta): (*const c_void, *const c_void) =
            (std::ptr::from_ref(&one).cast(), std::ptr::from_ref(&beta).cast());
        let (x, w, y, space) =
            (x as *mut c_void, weight as *mut c_void, y as *mut c_void, workspace as *mut c_void);
        // SAFETY: descriptors are alive and describe the caller's blocks.
        unsafe {
            match algorithm {
                Algorithm::Forward(algorithm) => result::convolution_forward(
                    self.handle,
                    one,
                    plan.x,
                    x,
                    plan.weight,
                    w,
                    plan.how,
                    algorithm,
                    space,
                    room,
                    beta,
                    plan.y,
                    y,
                ),
                Algorithm::InputGradient(algorithm) => result::convolution_backward_data(
                    self.handle,
                    one,
                    plan.weight,
                    w,
                    plan.y,
                    y,
                    plan.how,
                    algorithm,
                    space,
                    room,
                    beta,
                    plan.x,
                    x,
                ),
                Algorithm::WeightGradient(algorithm) => result::convolution_backward_filter(
                    self.handle,
                    one,
                    plan.x,
                    x,
                    plan.y,
                    y,
                    plan.how,
                    algorithm,
                    space,
                    room,
                    beta,
                    plan.weight,
                    w,
                ),
            }
        }
        .map_err(failed)
    }
}

impl Convolutions {
    /// Both halves of the batch, one after the other: f32 algorithms want copies of all images in the workspace.
    fn run_in_halves(
        &mut self,
        shape: &Convolution,
        direction: Direction,
        (x, weight, y): (u64, u64, u64),
        accumulate: bool,
        workspace: (u64, usize),
    ) -> Result<()> {
        if shape.batch < 2 {
            let reason = "cuDNN knows no algorithm for it that fits into its working memory".into();
            return Err(Error::Gpu { what: "a convolution", reason });
        }
        let first = shape.batch / 2;
        let size = shape.dtype.size() as u64;
        let (height, width) = shape.out();
        let x_half = (first * shape.height * shape.width * shape.inputs) as u64 * size;
        let y_half = (first * height * width * shape.outputs) as u64 * size;
        let half = Convolution { batch: first, ..*shape };
        self.run(&half, direction, (x, weight, y), accumulate, workspace)?;
        let half = Convolution { batch: shape.batch - first, ..*shape };
        // The gradient of the weights is the sum over all images.
        let accumulate = accumulate || direction == Direction::WeightGradient;
        self.run(&half, direction, (x + x_half, weight, y + y_half), accumulate, workspace)
    }
}

impl Drop for Convolutions {
    fn drop(&mut self) {
        self.plans.clear();
        // SAFETY: created in `new`.
        unsafe {
            let _ = sys::cudnnDestroyActivationDescriptor(self.identity);
            let _ = sys::cudnnDestroyActivationDescriptor(self.relu);
            let _ = result::destroy_handle(self.handle);
        }
    }
}

impl Plan {
    fn new(s: &Convolution) -> Result<Plan> {
        let (dtype, math) = match s.dtype {
            DType::BF16 => {
                (sys::cudnnDataType_t::CUDNN_DATA_BFLOAT16, sys::cudnnMathType_t::CUDNN_TENSOR_OP_MATH)
            }
            _ => (sys::cudnnDataType_t::CUDNN_DATA_FLOAT, sys::cudnnMathType_t::CUDNN_FMA_MATH),
        };
        let nhwc = sys::cudnnTensorFormat_t::CUDNN_TENSOR_NHWC;
        let (padding, stride) = if s.stride == 1 { (1, 1) } else { (0, 2) };
        let (out_height, out_width) = s.out();
        let dims = |c: usize, h: usize, w: usize| [s.batch as i32, c as i32, h as i32, w as i32];
        let plan = Plan {
            x: result::create_tensor_descriptor().map_err(failed)?,
            y: result::create_tensor_descriptor().map_err(failed)?,
            weight: result::create_filter_descriptor().map_err(failed)?,
            bias: result::create_tensor_descriptor().map_err(failed)?,
            how: result::create_convolution_descriptor().map_err(failed)?,
        };
        // SAFETY: descriptors that were just created.
        unsafe {
            let x = dims(s.inputs, s.height, s.width);
            result::set_tensor4d_descriptor(plan.x, nhwc, dtype, x).map_err(failed)?;
            let y = dims(s.outputs, out_height, out_width);
            result::set_tensor4d_descriptor(plan.y, nhwc, dtype, y).map_err(failed)?;
            let bias = [1, s.outputs as i32, 1, 1];
            result::set_tensor4d_descriptor(plan.bias, nhwc, dtype, bias).map_err(failed)?;
            let weight = [s.outputs as i32, s.inputs as i32, 3, 3];
            result::set_filter4d_descriptor(plan.weight, dtype, nhwc, weight).map_err(failed)?;
            let (p, mode) = (padding, sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION);
            let compute = sys::cudnnDataType_t::CUDNN_DATA_FLOAT;
            result::set_convolution2d_descriptor(plan.how, p, p, stride, stride, 1, 1, mode, compute)
                .map_err(failed)?;
            result::set_convolution_math_type(plan.how, math).map_err(failed)?;
        }
        Ok(plan)
    }

    fn choose(
        &self,
        handle: sys::cudnnHandle_t,
        direction: Direction,
        room: usize,
    ) -> Result<Option<Algorithm>> {
        Ok(match direction {
            Direction::Forward => suggested!(
                result::get_convolution_forward_algorithm,
                sys::cudnnConvolutionFwdAlgoPerf_t,
                handle,
                self.x,
                self.weight,
                self.how,
                self.y,
                room
            )
            .map(Algorithm::Forward),
            Direction::InputGradient => suggested!(
                result::get_convolution_backward_data_algorithm,
                sys::cudnnConvolutionBwdDataAlgoPerf_t,
                handle,
                self.weight,
                self.y,
                self.how,
                self.x,
                room
            )
            .map(Algorithm::InputGradient),
            Direction::WeightGradient => suggested!(
                result::get_convolution_backward_filter_algorithm,
                sys::cudnnConvolutionBwdFilterAlgoPerf_t,
                handle,
                self.x,
                self.y,
                self.how,
                self.weight,
                room
            )
            .map(Algorithm::WeightGradient),
        })
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: created in `new`.
        unsafe {
            let _ = result::destroy_tensor_descriptor(self.x);
            let _ = result::destroy_tensor_descriptor(self.y);
            let _ = result::destroy_tensor_descriptor(self.bias);
            let _ = result::destroy_filter_descriptor(self.weight);
            let _ = result::destroy_convolution_descriptor(self.how);
        }
    }
}
