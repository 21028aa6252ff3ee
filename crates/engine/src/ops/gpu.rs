//! Pieces that several ops share on a GPU.

use crate::cuda::{Grid, View, kernels};
use crate::memory::Block;
use crate::{DType, Result, Tape, Tensor};

impl Tape {
    /// out [columns] (+)= the sums over the rows of x.
    pub(super) fn gpu_column_sums(
        &mut self,
        x: View,
        rows: usize,
        columns: usize,
        out: View,
        accumulate: bool,
    ) -> Result<()> {
        // Threads keep to their four columns; the rows are dealt out to the rest of the block and to the blocks.
        let quads = columns.div_ceil(4);
        let lanes = (256 / quads).max(1);
        let across = quads.div_ceil(256);
        // As many as a card holds at once: eight of 256 threads on each multiprocessor.
        let most = self.gpu().map_or(1, |gpu| 8 * gpu.processors() / across);
        let blocks = rows.div_ceil(16 * lanes).clamp(1, most.max(1));
        let parts = self.scratch(blocks * columns)?;
        if let Some(gpu) = self.gpu() {
            let threads = if quads < 256 { lanes * quads } else { 256 };
            let grid = Grid { blocks: (blocks, across), threads, shared: 0 };
            kernels::column_sums(gpu, grid, x, parts.at(), rows, columns)?;
        }
        self.gpu_join_columns(out, &parts, 0, blocks, columns, columns, accumulate)?;
        self.give_back(parts);
        Ok(())
    }

    /// out [columns] (+)= the sum of `count` rows of `parts`, `stride` apart, from element `first` on.
    pub(super) fn gpu_join_columns(
        &self,
        out: View,
        parts: &Block,
        first: usize,
        count: usize,
        stride: usize,
        columns: usize,
        accumulate: bool,
    ) -> Result<()> {
        let Some(gpu) = self.gpu() else { return Ok(()) };
        let (grid, from) = (Grid::blocks(columns.div_ceil(32)), parts.at() + 4 * first as u64);
        kernels::join_columns(gpu, grid, out, from, count, stride, columns, accumulate)
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
        let (n, limit) = (indices.len(), limit as i32);
        let grid = Grid::elements(gpu, n);
        kernels::check_indices(gpu, grid, self.at(indices), n, low, limit, gpu.op(op), gpu.fault())
    }

    /// Shares of the sum of the rows of `dy` by index: [splits, entries, width]. Returns them and the number of splits.
    pub(super) fn gpu_scatter(
        &mut self,
        dy: View,
        indices: Tensor,
        entries: usize,
        width: usize,
    ) -> Result<(Block, usize)> {
        let rows = indices.len();
        let splits = rows.div_ceil(2048).clamp(1, 16);
        let parts = self.scratch(splits * entries * width)?;
        if let Some(gpu) = self.gpu() {
            let grid = Grid { blocks: (entries, splits), ..Grid::blocks(1) };
            kernels::scatter(gpu, grid, dy, self.at(indices), parts.at(), rows, width)?;
        }
        Ok((parts, splits))
    }

    /// The logarithm of each row's softmax denominator.
    pub(super) fn gpu_row_normalisers(&mut self, logits: Tensor) -> Result<Tensor> {
        let (rows, classes) = (logits.shape().rows(), logits.shape().last());
        let out = self.alloc(rows, DType::F32)?;
        if let Some(gpu) = self.gpu() {
            kernels::row_normalisers(
                gpu,
                Grid::warps(gpu, rows),
                self.view(logits),
                out.at(),
                rows,
                classes,
            )?;
        }
        Ok(self.push(out, [rows], DType::F32, false))
    }
}
