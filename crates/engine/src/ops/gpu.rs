//! Pieces that several ops share on a GPU.

use crate::cuda::{Arg, Grid};
use crate::memory::Block;
use crate::{DType, Result, Tape, Tensor};

impl Tape {
    /// out [columns] (+)= the sums over the rows of x.
    pub(super) fn gpu_column_sums(
        &mut self,
        x: Arg,
        rows: usize,
        columns: usize,
        out: Arg,
        accumulate: bool,
    ) -> Result<()> {
        // Threads keep to their four columns; the rows are dealt out to the rest of the block and to the blocks.
        let quads = columns.div_ceil(4);
        let lanes = (256 / quads).max(1);
        let across = quads.div_ceil(256);
        let blocks = rows.div_ceil(16 * lanes).clamp(1, (1056 / across).max(1));
        let parts = self.scratch(blocks * columns);
        if let Some(gpu) = self.gpu() {
            let threads = if quads < 256 { lanes * quads } else { 256 };
            let args = [x, Arg::At(parts.at()), Arg::U32(rows), Arg::U32(columns)];
            gpu.launch("column_sums", Grid { blocks: (blocks, across), threads, shared: 0 }, &args)?;
        }
        self.gpu_join_columns(out, &parts, 0, blocks, columns, columns, accumulate)?;
        self.give_back(parts);
        Ok(())
    }

    /// out [columns] (+)= the sum of `count` rows of `parts`, `stride` apart, from element `first` on.
    pub(super) fn gpu_join_columns(
        &self,
        out: Arg,
        parts: &Block,
        first: usize,
        count: usize,
        stride: usize,
        columns: usize,
        accumulate: bool,
    ) -> Result<()> {
        let Some(gpu) = self.gpu() else { return Ok(()) };
        let from = Arg::At(parts.at() + 4 * first as u64);
        let args = [out, from, Arg::U32(count), Arg::U32(stride), Arg::U32(columns), Arg::Flag(accumulate)];
        gpu.launch("join_columns", Grid::blocks(columns.div_ceil(32)), &args)
    }

    /// Reports indices outside `low..limit` when the host next reads.
    pub(super) fn gpu_check_indices(
        &self,
        op: &'static str,
        indices: Tensor,
        low: i32,
        limit: usize,
    ) -> Result<()> {
        let Some(gpu) = self.gpu() else { return Ok(()) };
        let (at, n) = (Arg::At(self.at(indices)), Arg::U32(indices.len()));
        let args = [at, n, Arg::I32(low), Arg::I32(limit as i32), Arg::I32(gpu.op(op)), Arg::At(gpu.fault())];
        gpu.launch("check_indices", Grid::elements(indices.len()), &args)
    }

    /// Shares of the sum of the rows of `dy` by index: [splits, entries, width]. Returns them and the number of splits.
    pub(super) fn gpu_scatter(
        &mut self,
        dy: Arg,
        indices: Tensor,
        entries: usize,
        width: usize,
    ) -> Result<(Block, usize)> {
        let rows = indices.len();
        let splits = rows.div_ceil(2048).clamp(1, 16);
        let parts = self.scratch(splits * entries * width);
        if let Some(gpu) = self.gpu() {
            let grid = Grid { blocks: (entries, splits), ..Grid::blocks(1) };
            let args = [dy, Arg::At(self.at(indices)), Arg::At(parts.at()), Arg::U32(rows), Arg::U32(width)];
            gpu.launch("scatter", grid, &args)?;
        }
        Ok((parts, splits))
    }

    /// The logarithm of each row's softmax denominator.
    pub(super) fn gpu_row_normalisers(&mut self, logits: Tensor) -> Result<Tensor> {
        let (rows, classes) = (logits.shape().rows(), logits.shape().last());
        let out = self.alloc(rows, DType::F32);
        if let Some(gpu) = self.gpu() {
            let args = [self.view(logits), Arg::At(out.at()), Arg::U32(rows), Arg::U32(classes)];
            gpu.launch("row_normalisers", Grid::warps(rows), &args)?;
        }
        Ok(self.push(out, [rows], DType::F32, false))
    }
}
