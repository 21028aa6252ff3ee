//! The CPU kernel room: vector instructions, matrix products and the loops that spread over threads. Nearly everything
//! `unsafe` in the engine lives here; the rest is the memory beneath it.

use std::sync::LazyLock;

use crate::{Error, Result};

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

/// The instruction sets kernels are compiled for. The best one the machine has is chosen at run time, unless `IRIS_ISA` names another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Isa {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// Whatever the target guarantees: SSE2 on x86-64, NEON on 64-bit ARM.
    Baseline,
}

impl Isa {
    /// What this machine has, best first.
    pub fn available() -> &'static [Isa] {
        #[cfg(target_arch = "x86_64")]
        {
            // The detection macro caches its answer.
            if !is_x86_feature_detected!("avx2") || !is_x86_feature_detected!("fma") {
                return &[Isa::Baseline];
            }
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
            {
                return &[Isa::Avx512, Isa::Avx2, Isa::Baseline];
            }
            &[Isa::Avx2, Isa::Baseline]
        }
        #[cfg(not(target_arch = "x86_64"))]
        &[Isa::Baseline]
    }

    /// As `IRIS_ISA` names it.
    pub fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => "avx2",
            Isa::Baseline => "baseline",
        }
    }

    /// The instruction set that `wanted`, the value of `IRIS_ISA`, asks for.
    fn choose(wanted: Option<&str>) -> Result<Isa> {
        let available = Isa::available();
        let Some(wanted) = wanted else { return Ok(available[0]) };
        available.iter().copied().find(|isa| isa.name() == wanted).ok_or_else(|| {
            let names: Vec<_> = available.iter().map(|isa| isa.name()).collect();
            let reason = format!(
                "IRIS_ISA is `{wanted}`, but kernels can run with {} on this machine; unset it to use the first",
                names.join(", ")
            );
            Error::BadConfig { reason }
        })
    }
}

/// The choice, made once per process.
static CHOSEN: LazyLock<Result<Isa>> = LazyLock::new(|| match std::env::var_os("IRIS_ISA") {
    Some(wanted) => Isa::choose(Some(&wanted.to_string_lossy())),
    None => Isa::choose(None),
});

/// Fails if `IRIS_ISA` asks for what there is not.
pub(crate) fn check_isa() -> Result<()> {
    CHOSEN.as_ref().map(|_| ()).map_err(Error::clone)
}

/// The instruction set that kernels use; always one that this machine has.
pub(crate) fn isa() -> Isa {
    #[cfg(test)]
    if let Some(isa) = FORCED.get() {
        return isa;
    }
    // No device is made where the choice failed, so no kernel runs.
    CHOSEN.as_ref().copied().unwrap_or(Isa::Baseline)
}

#[cfg(test)]
thread_local! {
    static FORCED: std::cell::Cell<Option<Isa>> = const { std::cell::Cell::new(None) };
}

/// Makes kernels that are called from this thread use one of the [`Isa::available`], so that one process can compare them.
#[cfg(test)]
pub(crate) fn force_isa(isa: Isa) {
    assert!(Isa::available().contains(&isa));
    FORCED.set(Some(isa));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_machine_has_can_be_chosen() {
        assert_eq!(Isa::choose(None), Ok(Isa::available()[0]));
        for &isa in Isa::available() {
            assert_eq!(Isa::choose(Some(isa.name())), Ok(isa));
        }
        for wrong in ["avx3", "AVX2", "avx512 ", ""] {
            let error = Isa::choose(Some(wrong)).unwrap_err().to_string();
            assert!(
                error.contains(&format!("IRIS_ISA is `{wrong}`")) && error.contains("baseline"),
                "{error}"
            );
        }
    }
}
