//! Launches that several ops share.

use crate::cuda::{Gpu, Grid, Join, Joins, View, kernels};
use crate::memory::Block;
use crate::{DType, Result, Tape, Tensor};

/// Sums over the rows of x in parts [count, columns]. Returns them and their number.
pub(super) fn column_parts(
    tape: &mut Tape,
    gpu: &Gpu,
    x: View,
    rows: usize,
    columns: usize,
) -> Result<(Block, usize)> {
    // Elements of 16 bytes. Where a row is no whole number of them, several rows side by side are; else threads read single elements.
    let unit = 16 / x.dtype.size();
    let folded = unit / unit.min(1 << columns.trailing_zeros());
    let (folded, unit) = if rows.is_multiple_of(folded) { (folded, unit) } else { (1, 1) };
    let (rows, columns) = (rows / folded, columns * folded);
    // Threads keep to their unit; the rows are dealt out to the rest of the block and to the blocks.
    let units = columns / unit;
    let lanes = (256 / units).max(1);
    let across = units.div_ceil(256);
    // Four blocks on each multiprocessor have enough loads under way; each has two rounds of them at least.
    let most = (4 * gpu.processors() / across).max(1);
    let blocks = rows.div_ceil(8 * lanes).clamp(1, most);
    let parts = tape.scratch(blocks * columns)?;
    let threads = if units < 256 { lanes * units } else { 256 };
    let grid = Grid { blocks: (blocks, across), threads, shared: 0 };
    kernels::column_sums(gpu, grid, x, parts.at(), rows, columns)?;
    Ok((parts, blocks * folded))
}

/// The gradient of a bias [columns], which was added to every row: the sums over the rows of dy, the gradient of `out` unless an activation has
/// changed it.
pub(super) fn bias_gradient(
    tape: &mut Tape,
    gpu: &Gpu,
    (dy, out): (View, Option<Tensor>),
    rows: usize,
    bias: Tensor,
) -> Result<()> {
    if !tape.needs_grad(bias) {
        return Ok(());
    }
    let (parts, count) = match out.and_then(|out| tape.take_sums(out)) {
        Some(left) => left,
        None => column_parts(tape, gpu, dy, rows, bias.len())?,
    };
    tape.add_sums(gpu, parts, count, &[bias])
}

/// out [columns] (+)= the sum of the rows of `parts` [count, columns], at once.
pub(super) fn join(
    gpu: &Gpu,
    to: View,
    parts: &Block,
    count: usize,
    columns: usize,
    accumulate: bool,
) -> Result<()> {
    let mut joins = Joins::default();
    joins.push(&Join { to, from: parts.at(), count, stride: columns, columns, accumulate });
    joins.launch(gpu)
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
    // A block reads all indices of its part, one after the other: a small table has no other blocks that could share the work.
    let splits = rows.div_ceil(128).clamp(1, 16);
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
