//! Matrix products by cuBLASLt.

use std::collections::HashMap;
use std::ffi::c_void;

use cudarc::cublaslt::{result, sys};
use cudarc::driver::sys::CUstream;

use super::{Matrix, Product};
use crate::{DType, Error, Result};

pub(super) struct Products {
    handle: sys::cublasLtHandle_t,
    chosen: HashMap<Kind, sys::cublasLtMatmulAlgo_t>,
}

// SAFETY: the handle may be used from any thread, one at a time.
unsafe impl Send for Products {}

/// Everything the choice of an algorithm depends on.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Kind {
    sizes: (usize, usize, usize, usize),
    matrices: [(DType, bool, usize, usize, u32); 3],
    /// Alignments, where they are there.
    start: Option<u32>,
    bias: Option<u32>,
    relu: bool,
}

fn failed(e: result::CublasError) -> Error {
    Error::Gpu { what: "a matrix product", reason: e.to_string() }
}

/// The same with what was asked for.
fn failed_for(p: &Product) -> impl Fn(result::CublasError) -> Error {
    move |e| Error::Gpu { what: "a matrix product", reason: format!("{e}: {p:?}") }
}

/// The largest power of two, up to 256, that an address is a multiple of.
fn alignment(at: u64) -> u32 {
    1 << at.trailing_zeros().min(8)
}

impl Products {
    pub fn new() -> Result<Products> {
        Ok(Products { handle: result::create_handle().map_err(failed)?, chosen: HashMap::new() })
    }

    pub fn run(&mut self, p: &Product, stream: CUstream, workspace: u64, room: usize) -> Result<()> {
        let describe = |m: &Matrix| (m.dtype, m.transposed, m.stride, m.batch_stride, alignment(m.at));
        let kind = Kind {
            sizes: (p.m, p.n, p.k, p.batch),
            matrices: [describe(&p.a), describe(&p.b), describe(&p.out)],
            start: p.start.map(alignment),
            bias: p.bias.map(alignment),
            relu: p.relu,
        };
        // cuBLAS thinks in columns: our rows are its columns, so it computes out^T = b^T a^T.
        let call = Call::new(p)?;
        let algorithm = match self.chosen.get(&kind) {
            Some(&algorithm) => algorithm,
            None => {
                let algorithm = call.choose(self.handle, p, room)?;
                self.chosen.insert(kind, algorithm);
                algorithm
            }
        };
        let (one, beta) = (1.0f32, if p.start.is_some() { 1.0f32 } else { 0.0 });
        // SAFETY: descriptors are alive; addresses and sizes are those of the caller's blocks.
        unsafe {
            result::matmul(
                self.handle,
                call.desc,
                std::ptr::from_ref(&one).cast(),
                std::ptr::from_ref(&beta).cast(),
                p.b.at as *const c_void,
                call.b,
                p.a.at as *const c_void,
                call.a,
                p.start.unwrap_or(p.out.at) as *const c_void,
                call.out,
                p.out.at as *mut c_void,
                call.out,
                &algorithm,
                workspace as *mut c_void,
                room,
                stream.cast(),
            )
        }
        .map_err(failed_for(p))
    }
}

impl Drop for Products {
    fn drop(&mut self) {
        // SAFETY: created in `new`.
        unsafe {
            let _ = result::destroy_handle(self.handle);
        }
    }
}

/// The descriptors of one product.
struct Call {
    desc: sys::cublasLtMatmulDesc_t,
    a: sys::cublasLtMatrixLayout_t,
    b: sys::cublasLtMatrixLayout_t,
    out: sys::cublasLtMatrixLayout_t,
}

fn data_type(dtype: DType) -> sys::cudaDataType_t {
    match dtype {
        DType::BF16 => sys::cudaDataType_t::CUDA_R_16BF,
        _ => sys::cudaDataType_t::CUDA_R_32F,
    }
}

/// A matrix [rows, columns] in our terms, as cuBLAS sees its memory.
fn layout(m: &Matrix, rows: usize, columns: usize, batch: usize) -> Result<sys::cublasLtMatrixLayout_t> {
    let (rows, columns) = if m.transposed { (columns, rows) } else { (rows, columns) };
    let layout =
        result::create_matrix_layout(data_type(m.dtype), columns as u64, rows as u64, m.stride as i64)
            .map_err(failed)?;
    if batch > 1 {
        use sys::cublasLtMatrixLayoutAttribute_t as Attribute;
        let (count, stride) = (batch as i32, m.batch_stride as i64);
        // SAFETY: attributes of the types the library expects.
        unsafe {
            let set = |which, value: *const c_void, size| {
                result::set_matrix_layout_attribute(layout, which, value, size)
            };
            set(Attribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, std::ptr::from_ref(&count).cast(), 4)
                .map_err(failed)?;
            set(
                Attribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                std::ptr::from_ref(&stride).cast(),
                8,
            )
            .map_err(failed)?;
        }
    }
    Ok(layout)
}

impl Call {
    fn new(p: &Product) -> Result<Call> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let desc = result::create_matmul_desc(compute, sys::cudaDataType_t::CUDA_R_32F).map_err(failed)?;
        let call = Call {
            desc,
            a: layout(&p.a, p.m, p.k, p.batch)?,
            b: layout(&p.b, p.k, p.n, p.batch)?,
            out: layout(&p.out, p.m, p.n, p.batch)?,
        };
        let set = |which, value: *const c_void, size| {
            // SAFETY: callers pass attributes of the types the library expects.
            unsafe { result::set_matmul_desc_attribute(desc, which, value, size) }.map_err(failed)
        };
        let turned = |m: &Matrix| i32::from(m.transposed);
        let (first, second) = (turned(&p.b), turned(&p.a));
        set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, std::ptr::from_ref(&first).cast(), 4)?;
        set(Attribute::CUBLASLT_MATMUL_DESC_TRANSB, std::ptr::from_ref(&second).cast(), 4)?;
        if let Some(bias) = p.bias {
            let epilogue = match p.relu {
                true => sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_RELU_BIAS,
                false => sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS,
            };
            set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, std::ptr::from_ref(&epilogue).cast(), 4)?;
            set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, std::ptr::from_ref(&bias).cast(), 8)?;
        }
        Ok(call)
    }

    fn choose(
        &self,
        handle: sys::cublasLtHandle_t,
        p: &Product,
        room: usize,
    ) -> Result<sys::cublasLtMatmulAlgo_t> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
        let preference = result::create_matmul_pref().map_err(failed)?;
        let set = |which, value: *const c_void, size| {
            // SAFETY: callers pass attributes of the types the library expects.
            unsafe { result::set_matmul_pref_attribute(preference, which, value, size) }.map_err(failed)
        };
        set(Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::ptr::from_ref(&room).cast(), 8)?;
        let start = p.start.unwrap_or(p.out.at);
        for (which, at) in [
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, p.b.at),
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, p.a.at),
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, start),
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, p.out.at),
        ] {
            let bytes = alignment(at);
            set(which, std::ptr::from_ref(&bytes).cast(), 4)?;
        }
        // SAFETY: all descriptors are alive.
        let found = unsafe {
            let found = result::get_matmul_algo_heuristic(
                handle, self.desc, self.b, self.a, self.out, self.out, preference,
            );
            let _ = result::destroy_matmul_pref(preference);
            found
        };
        Ok(found.map_err(failed_for(p))?.algo)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        // SAFETY: created in `new`.
        unsafe {
            for layout in [self.a, self.b, self.out] {
                let _ = result::destroy_matrix_layout(layout);
            }
            let _ = result::destroy_matmul_desc(self.desc);
        }
    }
}
