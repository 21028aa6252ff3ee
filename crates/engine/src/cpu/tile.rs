//! The innermost loop of every matrix product and convolution: a tile of C kept in registers while it runs over K.
//!
//! C[r][j] (+)= sum over segments s, over p of a[s][r][p * a_step] * b[s][p * b_step + j]
//!
//! A is read in place and broadcast, B is read in rows of whole vectors. Segments make one kernel serve both: a matrix product has
//! one, a convolution one per filter tap (with rows that point wherever the tap falls, or at zeros outside the image), so the
//! accumulators are loaded and stored once for all of K and no im2col copy is made.

use super::{Isa, isa};

/// Rows of a tile.
pub(super) const MR: usize = 6;

/// The widest row of B any instruction set asks for; packed panels are at most this wide.
pub(super) const MAX_NR: usize = 64;

/// One stretch of K.
#[derive(Clone, Copy)]
pub(super) struct Panel {
    pub a: [*const f32; MR],
    pub b: *const f32,
}

/// What a tile starts from.
#[derive(Clone, Copy)]
pub(super) enum From {
    Zero,
    /// One value per column, `MAX_NR` readable.
    Bias(*const f32),
    /// What C already holds.
    C,
}

pub(super) struct Tile<'a> {
    pub segments: &'a [Panel],
    pub k: usize,
    pub a_step: usize,
    pub b_step: usize,
    pub from: From,
    pub c: [*mut f32; MR],
    /// 1..=MR
    pub rows: usize,
    /// 1..=panel width
    pub cols: usize,
}

/// Columns of a tile, the width of packed panels.
pub(super) fn panel_width() -> usize {
    match isa() {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => 64,
        _ => 16,
    }
}

/// Lanes of a vector: rows of B must be readable in whole vectors.
pub(super) fn lanes() -> usize {
    match isa() {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => 16,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => 8,
        Isa::Baseline => 4,
    }
}

/// Runs one tile.
///
/// # Safety
/// For every segment, `a[r] + p * a_step` must be readable for `r < rows`, `p < k`; `b + p * b_step` for `cols` rounded up to whole
/// vectors; `c[r]` must be valid for `cols` values that nothing else touches meanwhile.
pub(super) unsafe fn run(tile: &Tile) {
    match isa() {
        // SAFETY: the caller's promise, and the instruction set was detected.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { run_avx512(tile) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { run_avx2(tile) },
        // SAFETY: the caller's promise.
        Isa::Baseline => unsafe { by_size::<Baseline, 4>(tile) },
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
unsafe fn run_avx512(tile: &Tile) {
    // SAFETY: the caller's promise.
    unsafe { by_size::<Avx512, 4>(tile) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn run_avx2(tile: &Tile) {
    // SAFETY: the caller's promise.
    unsafe { by_size::<Avx2, 2>(tile) }
}

/// Picks the unrolled kernel of the tile's size: all rows of a full-height tile, one at a time otherwise.
#[inline(always)]
unsafe fn by_size<S: Simd, const MAX: usize>(tile: &Tile) {
    let vectors = tile.cols.div_ceil(S::LANES);
    // SAFETY: the caller's promise; `vectors` covers `cols`, `rows` is at most MR.
    unsafe {
        match vectors {
            1 => by_rows::<S, 1>(tile),
            2 => by_rows::<S, 2>(tile),
            3 if MAX >= 3 => by_rows::<S, 3>(tile),
            _ if MAX >= 4 => by_rows::<S, 4>(tile),
            _ => by_rows::<S, 2>(tile),
        }
    }
}

#[inline(always)]
unsafe fn by_rows<S: Simd, const NV: usize>(tile: &Tile) {
    // SAFETY: the caller's promise.
    unsafe {
        match tile.rows {
            1 => kernel::<S, 1, NV>(tile),
            2 => kernel::<S, 2, NV>(tile),
            3 => kernel::<S, 3, NV>(tile),
            4 => kernel::<S, 4, NV>(tile),
            5 => kernel::<S, 5, NV>(tile),
            _ => kernel::<S, 6, NV>(tile),
        }
    }
}

#[inline(always)]
unsafe fn kernel<S: Simd, const R: usize, const NV: usize>(tile: &Tile) {
    let whole = tile.cols == NV * S::LANES;
    // SAFETY: the caller of `run` promised the ranges; partial columns go through a local buffer.
    unsafe {
        let mut acc = [[S::splat(0.0); NV]; R];
        match tile.from {
            From::Zero => {}
            From::Bias(bias) => {
                for v in 0..NV {
                    let b = S::load(bias.add(v * S::LANES));
                    for row in &mut acc {
                        row[v] = b;
                    }
                }
            }
            From::C if whole => {
                for r in 0..R {
                    for v in 0..NV {
                        acc[r][v] = S::load(tile.c[r].add(v * S::LANES));
                    }
                }
            }
            From::C => {
                for r in 0..R {
                    let mut line = [0.0; MAX_NR];
                    std::ptr::copy_nonoverlapping(tile.c[r], line.as_mut_ptr(), tile.cols);
                    for v in 0..NV {
                        acc[r][v] = S::load(line.as_ptr().add(v * S::LANES));
                    }
                }
            }
        }
        for segment in tile.segments {
            let a = segment.a;
            let mut b = segment.b;
            let mut at = 0;
            for _ in 0..tile.k {
                let mut bv = [S::splat(0.0); NV];
                for v in 0..NV {
                    bv[v] = S::load(b.add(v * S::LANES));
                }
                for r in 0..R {
                    let x = S::splat(*a[r].add(at));
                    for v in 0..NV {
                        acc[r][v] = S::fma(x, bv[v], acc[r][v]);
                    }
                }
                at += tile.a_step;
                // Beyond the last row after the last step, where it is not read any more.
                b = b.wrapping_add(tile.b_step);
            }
        }
        for r in 0..R {
            if whole {
                for v in 0..NV {
                    S::store(tile.c[r].add(v * S::LANES), acc[r][v]);
                }
            } else {
                let mut line = [0.0; MAX_NR];
                for v in 0..NV {
                    S::store(line.as_mut_ptr().add(v * S::LANES), acc[r][v]);
                }
                std::ptr::copy_nonoverlapping(line.as_ptr(), tile.c[r], tile.cols);
            }
        }
    }
}

/// Rows of X that a product with few rows keeps in registers at once.
const FEW: usize = 8;

/// Few rows times a weight: C[r][o] = bias[o] + sum over p of x[r][p] * w[o][p].
#[derive(Clone, Copy)]
pub(super) struct FewRows<'a> {
    /// `rows` rows of `k`
    pub x: *const f32,
    pub rows: usize,
    pub k: usize,
    /// `outs` rows of `k`
    pub w: *const f32,
    pub outs: usize,
    pub bias: Option<&'a [f32]>,
    /// `rows` rows of `outs`, `c_stride` from one to the next
    pub c: *mut f32,
    pub c_stride: usize,
}

/// W is streamed once, in place, with vectors along K. Decoding one token per sequence is bound by this stream.
///
/// # Safety
/// `x` and `w` must be readable and `c` valid for what [`FewRows`] says they hold, and nothing else touches `c` meanwhile.
pub(super) unsafe fn few_rows(all: FewRows) {
    let mut first = 0;
    while first < all.rows {
        let rows = FEW.min(all.rows - first);
        // SAFETY: the caller's promise, for a part of the rows; the instruction set was detected.
        unsafe {
            let part =
                FewRows { x: all.x.add(first * all.k), rows, c: all.c.add(first * all.c_stride), ..all };
            match isa() {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => few_avx512(part),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => few_avx2(part),
                Isa::Baseline => few::<Baseline, 1>(part),
            }
        }
        first += rows;
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
unsafe fn few_avx512(few_rows: FewRows) {
    // SAFETY: the caller's promise.
    unsafe { few::<Avx512, 3>(few_rows) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn few_avx2(few_rows: FewRows) {
    // SAFETY: the caller's promise.
    unsafe { few::<Avx2, 1>(few_rows) }
}

#[inline(always)]
unsafe fn few<S: Simd, const OUTS: usize>(all: FewRows) {
    let mut o = 0;
    while o < all.outs {
        // SAFETY: `o` and the rows stay inside what the caller promised.
        unsafe {
            let bias = all.bias.map(|b| &b[o..]);
            let part = FewRows { w: all.w.add(o * all.k), bias, c: all.c.add(o), ..all };
            if o + OUTS <= all.outs {
                few_by_rows::<S, OUTS>(part);
                o += OUTS;
            } else {
                few_by_rows::<S, 1>(part);
                o += 1;
            }
        }
    }
}

#[inline(always)]
unsafe fn few_by_rows<S: Simd, const OUTS: usize>(few: FewRows) {
    // SAFETY: the caller's promise.
    unsafe {
        match few.rows {
            1 => dots::<S, 1, OUTS>(few),
            2 => dots::<S, 2, OUTS>(few),
            3 => dots::<S, 3, OUTS>(few),
            4 => dots::<S, 4, OUTS>(few),
            5 => dots::<S, 5, OUTS>(few),
            6 => dots::<S, 6, OUTS>(few),
            7 => dots::<S, 7, OUTS>(few),
            _ => dots::<S, 8, OUTS>(few),
        }
    }
}

/// Groups of rows of W that are asked for ahead of their use; the stream is too broken for the hardware to guess.
const AHEAD: usize = 2;

/// The first `OUTS` outputs of `R` rows.
#[inline(always)]
unsafe fn dots<S: Simd, const R: usize, const OUTS: usize>(few: FewRows) {
    let FewRows { x, k, w, bias, c, c_stride, .. } = few;
    let vectors = k / S::LANES;
    // SAFETY: reads stay below `k` in each row; writes are the promised C.
    unsafe {
        let mut acc = [[S::splat(0.0); OUTS]; R];
        for p in 0..vectors {
            let mut wv = [S::splat(0.0); OUTS];
            for o in 0..OUTS {
                let at = w.add(o * k + p * S::LANES);
                wv[o] = S::load(at);
                S::prefetch(at.wrapping_add(AHEAD * OUTS * k));
            }
            for r in 0..R {
                let xv = S::load(x.add(r * k + p * S::LANES));
                for o in 0..OUTS {
                    acc[r][o] = S::fma(xv, wv[o], acc[r][o]);
                }
            }
        }
        for r in 0..R {
            for o in 0..OUTS {
                let mut sum = S::sum(acc[r][o]);
                for p in vectors * S::LANES..k {
                    sum += *x.add(r * k + p) * *w.add(o * k + p);
                }
                *c.add(r * c_stride + o) = sum + bias.map_or(0.0, |b| b[o]);
            }
        }
    }
}

/// The vector operations the kernels need. Methods must be inlined into a function that enables the instruction set.
trait Simd {
    type V: Copy;
    const LANES: usize;
    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load(p: *const f32) -> Self::V;
    unsafe fn store(p: *mut f32, v: Self::V);
    /// a * b + c
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    unsafe fn sum(v: Self::V) -> f32;
    /// Brings a line into the cache; any address is allowed.
    #[inline(always)]
    fn prefetch(_p: *const f32) {}
}

/// [`Simd`] by intrinsics.
#[cfg(target_arch = "x86_64")]
macro_rules! simd {
    ($name:ident: $lanes:literal lanes of $vector:ident,
     $splat:ident, $load:ident, $store:ident, $fma:ident, |$v:ident| $sum:expr) => {
        struct $name;

        impl Simd for $name {
            type V = std::arch::x86_64::$vector;
            const LANES: usize = $lanes;
            #[inline(always)]
            unsafe fn splat(x: f32) -> Self::V {
                // SAFETY: called only where the instruction set is enabled.
                unsafe { std::arch::x86_64::$splat(x) }
            }
            #[inline(always)]
            unsafe fn load(p: *const f32) -> Self::V {
                // SAFETY: the caller's promise.
                unsafe { std::arch::x86_64::$load(p) }
            }
            #[inline(always)]
            unsafe fn store(p: *mut f32, v: Self::V) {
                // SAFETY: the caller's promise.
                unsafe { std::arch::x86_64::$store(p, v) }
            }
            #[inline(always)]
            unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
                // SAFETY: called only where the instruction set is enabled.
                unsafe { std::arch::x86_64::$fma(a, b, c) }
            }
            #[inline(always)]
            unsafe fn sum($v: Self::V) -> f32 {
                $sum
            }
            #[inline(always)]
            fn prefetch(p: *const f32) {
                use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                // SAFETY: a prefetch never faults.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
simd!(Avx512: 16 lanes of __m512, _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_fmadd_ps, |v| {
    // SAFETY: called only where AVX-512 is enabled.
    unsafe { std::arch::x86_64::_mm512_reduce_add_ps(v) }
});

#[cfg(target_arch = "x86_64")]
simd!(Avx2: 8 lanes of __m256, _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_fmadd_ps, |v| {
    let mut lanes = [0.0f32; 8];
    // SAFETY: the array holds eight values.
    unsafe { Self::store(lanes.as_mut_ptr(), v) };
    lanes.iter().sum()
});

/// Four lanes of plain Rust, which compilers turn into SSE2 or NEON.
struct Baseline;

impl Simd for Baseline {
    type V = [f32; 4];
    const LANES: usize = 4;
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::V {
        [x; 4]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<[f32; 4]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::V) {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<[f32; 4]>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        (v[0] + v[1]) + (v[2] + v[3])
    }
}
