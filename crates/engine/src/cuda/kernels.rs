//! Every kernel of ours, declared once: its name, and the names and types of its arguments in the order of the CUDA source. A declaration
//! becomes a function, so that a launch with too few, too many or other arguments does not compile. That the declarations are those of
//! the sources is checked when kernels are loaded and, without a GPU, by a test that compiles them (`cuda::signatures`).

use super::joins::Table;
use super::{Arg, Gpu, Grid, View};
use crate::{Error, Result};

/// A kernel's name and what its arguments are.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub name: &'static str,
    pub arguments: &'static [Kind],
}

impl Kernel {
    /// Fails unless the parameters of the compiled kernel, as (offset, size), are those of the declaration.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub fn check_parameters(&self, found: &[(usize, usize)]) -> Result<()> {
        let mut end = 0;
        let layout = self.arguments.iter().map(|kind| {
            let offset = usize::next_multiple_of(end, kind.alignment());
            end = offset + kind.size();
            (offset, kind.size())
        });
        let declared: Vec<(usize, usize)> = layout.collect();
        match declared == found {
            true => Ok(()),
            false => {
                let reason = format!(
                    "it is declared with parameters at (offset, size) {declared:?}, but has been compiled with {found:?}"
                );
                Err(Error::Gpu { what: self.name, reason })
            }
        }
    }
}

/// What an argument is in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An address.
    Pointer,
    /// An address, and whether there are f32 or bf16 values at it.
    View,
    /// 32 bits: unsigned, signed, a float or a flag.
    Word,
    Double,
    /// The table of [`Joins`](super::Joins).
    Joins,
}

impl Kind {
    /// Bytes among a kernel's parameters.
    pub fn size(self) -> usize {
        match self {
            Kind::Word => 4,
            Kind::Pointer | Kind::Double => 8,
            Kind::View => 16,
            Kind::Joins => size_of::<Table>(),
        }
    }

    /// The alignment of its bytes.
    pub fn alignment(self) -> usize {
        self.size().min(8)
    }
}

/// A Rust type that stands for one of a kernel's parameter types.
trait Parameter {
    const KIND: Kind;
    fn arg<'a>(self) -> Arg<'a>
    where
        Self: 'a;
}

macro_rules! parameters {
    ($($type:ty => $kind:ident, $arg:expr;)*) => {
        $(impl Parameter for $type {
            const KIND: Kind = Kind::$kind;
            fn arg<'a>(self) -> Arg<'a>
            where
                Self: 'a,
            {
                $arg(self)
            }
        })*
    };
}

parameters! {
    u64 => Pointer, Arg::At;
    View => View, Arg::View;
    usize => Word, Arg::U32;
    i32 => Word, Arg::I32;
    f32 => Word, Arg::F32;
    f64 => Double, Arg::F64;
    bool => Word, Arg::Flag;
    &Table => Joins, Arg::Joins;
}

/// Launchers, and the list of all kernels; names with `|` between them share their arguments. Kernels under `chained` let the next one start early and
/// wait for the one before; those under `clustered` are launched in clusters of [`CLUSTER`](super::CLUSTER) blocks.
macro_rules! kernels {
    ($($how:ident { $($name:ident $(| $alike:ident)* ($($arguments:tt)*);)* })*) => {
        $($(kernels!(@launchers $how ($($arguments)*) $name $($alike)*);)*)*

        /// All kernels.
        #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
        pub(crate) fn all() -> impl Iterator<Item = &'static Kernel> {
            const ALIKE: &[&[Kernel]] = &[$($(kernels!(@kernels ($($arguments)*) $name $($alike)*)),*),*];
            ALIKE.iter().copied().flatten()
        }
    };
    (@launchers $how:ident $arguments:tt $($name:ident)+) => {
        $(kernels!(@launcher $how $name $arguments);)+
    };
    (@kernels $arguments:tt $($name:ident)+) => {
        &[$(kernels!(@kernel $name $arguments)),+]
    };
    (@launcher $how:ident $name:ident ($($argument:ident: $type:ty),* $(,)?)) => {
        pub(crate) fn $name(gpu: &Gpu, grid: Grid, $($argument: $type),*) -> Result<()> {
            static KERNEL: Kernel = kernels!(@kernel $name ($($argument: $type),*));
            kernels!(@run $how)(gpu, &KERNEL, grid, &[$(Parameter::arg($argument)),*])
        }
    };
    (@kernel $name:ident ($($argument:ident: $type:ty),* $(,)?)) => {
        Kernel { name: stringify!($name), arguments: &[$(<$type as Parameter>::KIND),*] }
    };
    (@run plain) => { Gpu::launch };
    (@run chained) => { Gpu::launch_chained };
    (@run clustered) => { Gpu::launch_clustered };
}

kernels! {
    plain {
        // elementwise.cu
        copy(out: View, x: View, n: usize, add: bool);
        copy_at(out: View, to: usize, x: View, from: usize, n: usize, add: bool);
        add | mul(out: View, x: View, y: View, n: usize);
        mul_gradient(d: View, dy: View, other: View, n: usize, add: bool);
        affine | clamp_values | relu_values | gelu_values(out: View, x: View, n: usize, p: f32, q: f32);
        relu_gradient | gelu_gradient(dy: View, saved: View, n: usize);
        finish_rows(x: View, bias: u64, residual: View, n: usize, columns: usize, with_relu: bool);
        deviation(out: View, x: View, rows: usize, n: usize);
        from_bytes | from_integers(out: View, x: u64, n: usize, scale: f32, shift: f32);
        dropout(out: View, x: View, residual: View, n: usize, rate: f32, state: u64, site: usize, add: bool);
        copy_blocks(
            out: View, to: usize, out_stride: usize, x: View, from: usize, x_stride: usize, part: usize, n: usize,
            add: bool,
        );
        copy_blocks_bytes | copy_blocks_words(
            out: u64, to: usize, out_stride: usize, x: u64, from: usize, x_stride: usize, part: usize, n: usize,
        );
        gather(out: View, table: View, indices: u64, row: usize, rows: usize, n: usize);
        look_up(out: View, table: View, indices: u64, row: usize, rows: usize, n: usize, op: i32, fault: u64);
        gather_bytes | gather_words(out: u64, table: u64, indices: u64, row: usize, rows: usize, n: usize);
        add_positions(out: View, x: View, table: View, start: usize, period: usize, n: usize);
        fsq(levels: View, tokens: u64, y: View, count: usize, channels: usize, rows: usize);
        fsq_levels(levels: View, tokens: u64, count: usize, channels: usize, rows: usize);
        fsq_gradient(dy: View, d_levels: View, y: View, n: usize, add: bool);
        select_rows(out: View, mask: u64, yes: View, no: View, row: usize, n: usize);
        mask_labels(out: u64, labels: u64, mask: u64, each: usize, n: usize);
        shift_labels(out: u64, labels: u64, time: usize, n: usize);
        lambda_returns(
            out: u64, rewards: View, ends: u64, values: View, time: usize, rows: usize, gamma: f32, lambda: f32,
        );
        alive(out: u64, ends: u64, time: usize, rows: usize);
        lstm_step(
            gates: View, before: View, activated: u64, bias: u64, hidden: View, cell: View, width: usize, n: usize,
        );
        lstm_gradient(
            activated: u64, before: View, after: View, dh: View, dc: View, d_gates: View, d_cell: View, width:
            usize, n: usize,
        );
        scatter_rows(table: View, x: View, indices: u64, row: usize, rows: usize, n: usize);
        scatter_rows_words | scatter_rows_bytes(table: u64, x: u64, indices: u64, row: usize, rows: usize, n: usize);
        check_indices(x: u64, n: usize, low: i32, limit: i32, op: i32, fault: u64);
        check_finite(x: u64, op: i32, fault: u64);

        // raster.cu
        earlier(out: View, x: View, tokens: usize, side: usize, width: usize, n: usize);
        earlier_gradient(dx: View, dy: View, tokens: usize, side: usize, width: usize, n: usize, add: bool);
        draw_frame(
            out: u64, logits: View, alone: View, told: View, table: View, weight: View, tokens: usize, side: usize,
            patch: usize, width: usize, entries: usize, state: u64, site: usize,
        );

        // image.cu
        max_pool(out: View, taken: u64, x: View, half_width: usize, channels: usize, n: usize);
        max_pool_gradient(dx: View, dy: View, taken: u64, width: usize, channels: usize, n: usize, add: bool);
        upsample(out: View, x: View, width: usize, channels: usize, n: usize);
        upsample_gradient(dx: View, dy: View, width: usize, channels: usize, n: usize, add: bool);
        pad(out: View, x: View, height: usize, width: usize, channels: usize, n: usize);
        crop(
            out: View, x: View, height: usize, width: usize, channels: usize, x_width: usize, x_height: usize, n:
            usize, add: bool,
        );
        turn_weights(out: u64, weight: u64, outputs: usize, inputs: usize, n: usize);
        widen_pixels(out: u64, x: View, channels: usize, pixels: usize);

        // group_norm.cu
        group_norm_sums(x: View, parts: u64, pixels: usize, channels: usize, splits: usize);
        group_norm(
            out: View, statistics: u64, x: View, parts: u64, gain: u64, shift: u64, pixels: usize, channels: usize,
            splits: usize, groups: usize, epsilon: f32, swish: bool,
        );
        group_norm_whole(
            out: View, statistics: u64, x: View, gain: u64, shift: u64, pixels: usize, channels: usize, groups:
            usize, epsilon: f32, swish: bool,
        );
        group_norm_gradient_sums(
            x: View, dy: View, statistics: u64, gain: u64, shift: u64, parts: u64, pixels: usize, channels: usize,
            splits: usize, swish: bool,
        );
        group_norm_factors(
            parts: u64, statistics: u64, gain: u64, factors: u64, shares: u64, pixels: usize, channels: usize,
            splits: usize, groups: usize, n: usize,
        );
        group_norm_gradient(
            dx: View, x: View, dy: View, statistics: u64, gain: u64, shift: u64, factors: u64, pixels: usize,
            channels: usize, splits: usize, swish: bool, add: bool,
        );

        // group_norm_kept.cu
        group_norm_128k | group_norm_256k | group_norm_512k(
            out: u64, statistics: u64, x: u64, gain: u64, shift: u64, pixels: usize, channels: usize, groups: usize,
            epsilon: f32, swish: bool,
        );
        group_norm_gradient_32k | group_norm_gradient_128k | group_norm_gradient_256k | group_norm_gradient_512k(
            dx: u64, x: u64, dy: u64, statistics: u64, gain: u64, shift: u64, shares: u64, column_parts: u64,
            pixels: usize, channels: usize, groups: usize, swish: bool, add: bool,
        );

        // perceptual.cu
        perceptual(
            a: View, b: View, weights: u64, parts: u64, pixels: usize, channels: usize, rate: f32, state: u64, site:
            usize,
        );
        perceptual_gradient(
            dx: View, x: View, y: View, weights: u64, dy: u64, pixels: usize, channels: usize, rate: f32, state:
            u64, site: usize, add: bool,
        );

        // attention.cu
        swap_heads(out: View, x: View, time: usize, heads: usize, d: usize, n: usize, joining: bool, add: bool);
        attention_softmax(
            scores: u64, p: View, normaliser: u64, rows: usize, time: usize, stride: usize, block: usize, scale:
            f32, rate: f32, state: u64, site: usize,
        );
        attention_gradient(
            scores: u64, dp: u64, p: View, ds: View, normaliser: u64, out: View, d_out: View, rows: usize, time:
            usize, stride: usize, heads: usize, head_width: usize, block: usize, scale: f32, rate: f32, state: u64,
            site: usize,
        );
        cache_append(
            keys: View, values: View, k: View, v: View, tokens: usize, heads: usize, d: usize, capacity: usize,
            past: usize, n: usize,
        );
        cache_attention(
            out: View, q: View, keys: View, values: View, tokens: usize, heads: usize, d: usize, capacity: usize,
            past: usize, block: usize, scale: f32,
        );
        block_attention(
            out: u64, q: u64, k: u64, v: u64, keys: u64, values: u64, tokens: usize, heads: usize, stride: usize,
            capacity: usize, past: usize, block: usize, scale: f32,
        );

        // rows.cu
        layer_norm(out: View, statistics: u64, x: View, gain: u64, shift: u64, rows: usize, width: usize, epsilon: f32);
        layer_norm_gradient(
            dx: View, x: View, dy: View, statistics: u64, gain: u64, rows: usize, width: usize, add: bool,
        );
        layer_norm_gradients_256 | layer_norm_gradients_512(
            dx: View, x: View, dy: View, statistics: u64, gain: u64, parts: u64, rows: usize, width: usize, add: bool,
        );
        layer_norm_shares(x: View, dy: View, statistics: u64, parts: u64, rows: usize, width: usize);
        column_sums(x: View, parts: u64, rows: usize, columns: usize);
        join(joins: &Table);
        scatter(dy: View, indices: u64, parts: u64, rows: usize, width: usize);
        row_normalisers(logits: View, normaliser: u64, rows: usize, classes: usize);
        cross_entropy(logits: View, labels: u64, normaliser: u64, parts: u64, rows: usize, classes: usize);
        cross_entropy_gradient(
            d: View, logits: View, labels: u64, normaliser: u64, counted: u64, dy: u64, classes: usize, n: usize,
            add: bool,
        );
        log_prob(out: u64, logits: View, choices: u64, normaliser: u64, actions: usize, rows: usize);
        log_prob_gradient(
            d: View, logits: View, choices: u64, normaliser: u64, dy: View, actions: usize, n: usize, add: bool,
        );
        symlog_place(
            low: u64, high: u64, low_share: u64, high_share: u64, x: View, values: usize, n: usize, limit: f32,
        );
        over_range(
            out: u64, state: u64, x: View, of: View, alive: u64, n: usize, size: usize, low: f32, high: f32, decay:
            f32,
        );
        symexp_mean(out: u64, logits: View, normaliser: u64, values: usize, rows: usize, limit: f32);
        entropy(out: u64, logits: View, normaliser: u64, actions: usize, rows: usize);
        entropy_gradient(
            d: View, logits: View, normaliser: u64, entropy: u64, dy: View, actions: usize, n: usize, add: bool,
        );
        nearest(
            tokens: u64, products: u64, codebook: u64, lengths: u64, rows: usize, entries: usize, width: usize,
            phase: i32,
        );
        quantise(
            embedded: View, difference: u64, y: View, codebook: u64, tokens: u64, parts: u64, width: usize, n:
            usize,
        );
        quantise_gradient(dy: View, straight: View, commitment: u64, difference: u64, beta: f32, n: usize, add: bool);
        codebook_gradient(
            table: View, parts: u64, commitment: u64, elements: usize, splits: usize, n: usize, add: bool,
        );

        // reduce.cu
        sum(x: View, weights: View, parts: u64, n: usize);
        mean_of_parts(parts: u64, count: usize, out: u64, counted: u64);
        sum_of_parts(parts: u64, count: usize, scale: f64, out: u64);
        mean_gradient(dx: View, weights: View, dy: u64, total: u64, n: usize, add: bool);
        pixel_error(a: View, b: View, parts: u64, n: usize, squared: bool);
        pixel_error_gradient(dx: View, x: View, y: View, dy: u64, n: usize, squared: bool, add: bool);
        squares(g: u64, parts: u64, n: usize);
        adam_factors(
            parts: u64, count: usize, updates: u64, norm: u64, factors: u64, rate: u64, beta1: f32, beta2: f32,
            weight_decay: f32, max_norm: f32, op: i32, fault: u64,
        );
        adam(
            p: u64, copy: u64, g: u64, m: u64, v: u64, decayed: u64, factors: u64, beta1: f32, beta2: f32, epsilon:
            f32, n: usize,
        );

        // flash.cu
        pack_layers(
            out: u64, weight0: u64, weight1: u64, weight2: u64, bias0: u64, bias1: u64, bias2: u64, weight: usize, bias:
            usize,
        );
        flash_forward(
            out: u64, normaliser: u64, kept: u64, q: u64, k: u64, v: u64, time: usize, heads: usize, stride: usize,
            block: usize, scale: f32, rate: f32, state: u64, site: usize,
        );
        flash_gradient_queries(
            dq: u64, inner: u64, q: u64, k: u64, v: u64, out: u64, d_out: u64, normaliser: u64, kept: u64, time:
            usize, heads: usize, stride: usize, block: usize, scale: f32, rate: f32,
        );
        flash_gradient_keys(
            dk: u64, dv: u64, q: u64, k: u64, v: u64, d_out: u64, normaliser: u64, inner: u64, kept: u64, time:
            usize, heads: usize, stride: usize, block: usize, scale: f32, rate: f32,
        );
    }

    chained {
        // rows.cu
        sample(
            out: u64, copies: u64, stride: usize, logits: View, actions: usize, constant: f32, on_device: u64,
            state: u64, site: usize,
        );

        // decode.cu
        decode_embed(
            out: View, table: u64, indices: u64, positions: u64, width: usize, entries: usize, period: usize, n:
            usize, op: i32, fault: u64,
        );
        decode_qkv(
            q: u64, keys: u64, values: u64, x: View, gain: u64, shift: u64, q_weight: u64, k_weight: u64, v_weight:
            u64, q_bias: u64, k_bias: u64, v_bias: u64, batch: usize, width: usize, capacity: usize, past: usize,
            epsilon: f32,
        );
        decode_project | decode_contract(
            out: u64, start: View, x: u64, weight: u64, bias: u64, batch: usize, width: usize, inputs: usize,
        );
        decode_expand | decode_head(
            out: u64, x: View, gain: u64, shift: u64, weight: u64, bias: u64, batch: usize, width: usize, outputs:
            usize, epsilon: f32,
        );
        decode_attention(out: u64, q: u64, keys: u64, values: u64, capacity: usize, past: usize, scale: f32);

        // blocks.cu
        residual_block_16 | residual_block(
            out: u64, x: u64, gain1: u64, shift1: u64, weight1: u64, bias1: u64, gain2: u64, shift2: u64, weight2:
            u64, bias2: u64, height: usize, width: usize, groups: usize, epsilon: f32,
        );
        attention_block(
            out: u64, x: u64, gain: u64, shift: u64, query: u64, query_bias: u64, key: u64, key_bias: u64, value:
            u64, value_bias: u64, last: u64, last_bias: u64, pixels: usize, groups: usize, epsilon: f32, scale: f32,
        );
        narrow_conv(
            out: u64, x: u64, weight: u64, bias: u64, height: usize, width: usize, outputs: usize, rows: usize,
            columns: usize, activate: bool,
        );
    }

    clustered {
        // tokens.cu
        decode_tokens_8 | decode_tokens_10(
            tokens: u64, stride: usize, given: u64, start: View, out: u64, table: u64, entries: usize, positions: u64,
            keys: u64, values: u64, cache_stride: usize, query: u64, key: u64, value: u64, projection: u64, expand:
            u64, contract: u64, query_bias: u64, key_bias: u64, value_bias: u64, projection_bias: u64, expand_bias:
            u64, contract_bias: u64, gain1: u64, shift1: u64, gain2: u64, shift2: u64, parameter_stride: usize,
            head_gain: u64, head_shift: u64, hidden: u64, last: u64, hidden_bias: u64, last_bias: u64, layers: usize,
            passes: usize, batch: usize, each: usize, capacity: usize, past: usize, room: usize, epsilon: f32,
            head_epsilon: f32, state: u64, site: usize, op: i32, fault: u64,
        );
    }
}
