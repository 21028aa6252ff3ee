//! The CPU kernel room: vector instructions, matrix products and the loops that spread over threads. Nearly everything
//! `unsafe` in the engine lives here; the rest is the memory beneath it.

mod conv;
mod gemm;
pub(crate) mod math;
mod parallel;
mod tile;
mod winograd;

pub(crate) use conv::{
    ConvShape, Epilogue, conv_forward, conv_input_gradient, conv_scratch_len, conv_weight_gradient,
    conv_weight_scratch_len,
};
pub(crate) use gemm::{
    Layout, Mat, Packed, Start, gemm, gemm_packed, gemm_scratch_len, gemm_serial, packed_len,
};
pub(crate) use parallel::{
    chunks_mut, chunks_mut_of, chunks2_mut, chunks2_mut_of, column_sums, column_sums_scratch_len,
};

/// The instruction sets kernels are compiled for. The best one the machine has is chosen at run time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Isa {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// Whatever the target guarantees: SSE2 on x86-64, NEON on 64-bit ARM.
    Baseline,
}

pub(crate) fn isa() -> Isa {
    #[cfg(target_arch = "x86_64")]
    {
        // The detection macro caches its answer.
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
        {
            return Isa::Avx512;
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            return Isa::Avx2;
        }
    }
    Isa::Baseline
}

/// The vector instructions that kernels use on this machine.
pub fn instructions() -> &'static str {
    match isa() {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => "AVX-512",
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => "AVX2",
        Isa::Baseline if cfg!(target_arch = "x86_64") => "SSE2",
        Isa::Baseline if cfg!(target_arch = "aarch64") => "NEON",
        Isa::Baseline => "no vector instructions",
    }
}

/// Compiles a function once per instruction set and calls the best copy. The body is plain Rust that the compiler vectorises.
macro_rules! multiversion {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        $vis fn $name($($arg: $type),*) $(-> $ret)? {
            #[inline(always)]
            fn body($($arg: $type),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
                fn avx512($($arg: $type),*) $(-> $ret)? {
                    body($($arg),*)
                }
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($arg: $type),*) $(-> $ret)? {
                    body($($arg),*)
                }
                match $crate::cpu::isa() {
                    // SAFETY: the instruction set was detected on this machine.
                    $crate::cpu::Isa::Avx512 => return unsafe { avx512($($arg),*) },
                    // SAFETY: as above.
                    $crate::cpu::Isa::Avx2 => return unsafe { avx2($($arg),*) },
                    $crate::cpu::Isa::Baseline => {}
                }
            }
            body($($arg),*)
        }
    };
}
pub(crate) use multiversion;
