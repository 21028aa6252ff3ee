//! Launches that several ops share.

use crate::cuda::{Gpu, Grid, View, kernels};
use crate::memory::Block;
use crate::{DType, Result, Tape, Tensor};

/// out [columns] (+)= the sums over the rows of x.
pub(super) fn column_sums(
    tape: &mut Tape,
    gpu: &Gpu,
    x: View,
    rows: usize,
    columns: usize,
    out: View,
    accumulate: bool,
) -> Result<()> {
    let (parts, count) = column_parts(tape, gpu, x, rows, columns)?;
    join_columns(gpu, out, &parts, 0, count, columns, columns, accumulate)?;
    tape.give_back(parts);
    Ok(())
}

/// Sums over the rows of x in parts [count, columns]. Returns them and their number.
pub(super) fn column_parts(
    tape: &mut Tape,
    gpu: &Gpu,
    x: View,
    rows: usize,
    columns: usize,
) -> Result<(Block, usize)> {
    // Threads keep to their four columns; the rows are dealt out to the rest of the block and to the blocks.
    let quads = columns.div_ceil(4);
    let lanes = (256 / quads).max(1);
    let across = quads.div_ceil(256);
    // As many as a card holds at once: eight of 256 threads on each multiprocessor.
    let most = 8 * gpu.processors() / across;
    let blocks = rows.div_ceil(16 * lanes).clamp(1, most.max(1));
    let parts = tape.scratch(blocks * columns)?;
    let threads = if quads < 256 { lanes * quads } else { 256 };
    let grid = Grid { blocks: (blocks, across), threads, shared: 0 };
    kernels::column_sums(gpu, grid, x, parts.at(), rows, columns)?;
    Ok((parts, blocks))
}

/// out [columns] (+)= the sum of `count` rows of `parts`, `stride` apart, from element `first` on.
pub(super) fn join_columns(
    gpu: &Gpu,
    out: View,
    parts: &Block,
    first: usize,
    count: usize,
    stride: usize,
    columns: usize,
    accumulate: bool,
) -> Result<()> {
    let (grid, from) = (Grid::blocks(columns.div_ceil(32)), parts.at() + 4 * first as u64);
    kernels::join_columns(gpu, grid, out, from, count, stride, columns, accumulate)
}

/// Reports indices outside `low..limit` when the host next reads.
pub(super) fn check_indices(
    tape: &Tape,
    gpu: &Gpu,
    op: &'static str,
    indices: Tensor,
    low: i32,
    limit: usize,
) -> Result<()> {
    let (n, limit) = (indices.len(), limit as i32);
    let grid = Grid::elements(gpu, n);
    kernels::check_indices(gpu, grid, tape.at(indices), n, low, limit, gpu.op(op), gpu.fault())
}

/// Shares of the sum of the rows of `dy` by index: [splits, entries, width]. Returns them and the number of splits.
pub(super) fn scatter(
    tape: &mut Tape,
    gpu: &Gpu,
    dy: View,
    indices: Tensor,
    entries: usize,
    width: usize,
) -> Result<(Block, usize)> {
    let rows = indices.len();
    let splits = rows.div_ceil(2048).clamp(1, 16);
    let parts = tape.scratch(splits * entries * width)?;
    let grid = Grid { blocks: (entries, splits), ..Grid::blocks(1) };
    kernels::scatter(gpu, grid, dy, tape.at(indices), parts.at(), rows, width)?;
    Ok((parts, splits))
}

/// The logarithm of each row's softmax denominator: logits [.., C] -> [rows].
pub(super) fn row_normalisers(tape: &mut Tape, gpu: &Gpu, logits: Tensor) -> Result<Tensor> {
    let (rows, classes) = (logits.shape().rows(), logits.shape().last());
    let out = tape.alloc(rows, DType::F32)?;
    let grid = Grid::warps(gpu, rows);
    kernels::row_normalisers(gpu, grid, tape.view(logits), out.at(), rows, classes)?;
    Ok(tape.push(out, [rows], DType::F32, false))
}

/// Whether fused kernels may take these: activations in bf16, without gradient, with nothing wrong. They may start to read parameters while what
/// comes before them still runs, so those must not come out of the step.
pub(super) fn fuses(tape: &Tape, x: Tensor, params: &[Tensor]) -> bool {
    let all = [params, &[x]].concat();
    tape.float() == DType::BF16
        && tape.check_f32("fused kernels", &all).is_ok()
        && !tape.any_needs_grad(&all)
        && params.iter().all(|tensor| tape.is_bound(*tensor))
}
