//! Embeddings: rows of a table by index, and rows of a position table added along time.

use super::{Backward, launches};
use crate::backend::Backend;
use crate::cuda::{Gpu, Grid, View, kernels};
use crate::memory::Block;
use crate::tape::{Grad, add_or_set};
use crate::{DType, Error, Result, Tape, Tensor};

/// Rows of a table.
pub(crate) struct Embedding {
    table: Tensor,
    indices: Tensor,
    out: Tensor,
}

/// Rows of a position table added along time.
pub(crate) struct AddPositions {
    x: Tensor,
    table: Tensor,
    start: usize,
    out: Tensor,
}

const EMBEDDING: &str = "embedding";

pub(super) fn check_indices(op: &'static str, indices: &[i32], limit: usize) -> Result<()> {
    match indices.iter().position(|&i| i < 0 || i as usize >= limit) {
        None => Ok(()),
        Some(position) => {
            Err(Error::IndexOutOfRange { op, index: i64::from(indices[position]), position, limit })
        }
    }
}

impl Tape {
    /// `table[index]`: table [V, D], indices i32 [..] -> [.., D]
    pub fn embedding(&mut self, table: Tensor, indices: Tensor) -> Result<Tensor> {
        self.check_f32(EMBEDDING, &[table])?;
        self.check_not_empty(EMBEDDING, &[table])?;
        self.check(EMBEDDING, indices, DType::I32)?;
        let &[_, width] = table.dims() else {
            return Err(Error::BadShape { op: EMBEDDING, shape: table.shape(), rule: "a table is [V, D]" });
        };
        let shape = indices.shape().appended(width)?;
        let dtype = self.float();
        let mut out = self.alloc(shape.len(), dtype)?;
        match self.backend() {
            Backend::Cpu => self.cpu_embedding(table, indices, &mut out)?,
            Backend::Cuda(gpu) => self.gpu_embedding(&gpu, table, indices, &out)?,
        }
        let needs_grad = self.needs_grad(table);
        let out = self.push(out, shape, dtype, needs_grad);
        if needs_grad {
            self.record(Embedding { table, indices, out });
        }
        Ok(out)
    }

    fn cpu_embedding(&self, table: Tensor, indices: Tensor, out: &mut Block) -> Result<()> {
        let (rows, width) = (table.dims()[0], table.dims()[1]);
        let (table, indices) = (self.f32(table), self.i32(indices));
        check_indices(EMBEDDING, indices, rows)?;
        for (out, &index) in out.f32_mut().chunks_exact_mut(width).zip(indices) {
            out.copy_from_slice(&table[index as usize * width..][..width]);
        }
        Ok(())
    }

    fn gpu_embedding(&self, gpu: &Gpu, table: Tensor, indices: Tensor, out: &Block) -> Result<()> {
        let (rows, width) = (table.dims()[0], table.dims()[1]);
        let (n, to) = (indices.len() * width, View::new(out.at(), self.float()));
        let (grid, table, at) = (Grid::elements(gpu, n), self.view(table), self.at(indices));
        kernels::look_up(gpu, grid, to, table, at, width, rows, n, gpu.op(EMBEDDING), gpu.fault())
    }

    /// `table[index]` + positions[start + t]: table [V, D], indices i32 [B, T], positions [P, D] -> [B, T, D]
    pub fn embedding_at(
        &mut self,
        table: Tensor,
        indices: Tensor,
        positions: Tensor,
        start: usize,
    ) -> Result<Tensor> {
        match self.backend() {
            Backend::Cuda(gpu) if self.fuses_embedding(table, indices, positions, start) => {
                self.fused_embedding(&gpu, table, indices, positions, start)
            }
            // Invalid input takes this path too: the single ops report the error.
            _ => {
                let x = self.embedding(table, indices)?;
                self.add_positions(x, positions, start)
            }
        }
    }

    /// Whether one kernel can do both: valid input in f32, no gradient, and rows of whole quads.
    fn fuses_embedding(&self, table: Tensor, indices: Tensor, positions: Tensor, start: usize) -> bool {
        let fits = match (table.dims(), indices.dims(), positions.dims()) {
            (&[_, width], &[_, time], &[limit, p]) => {
                width == p && width % 4 == 0 && start.saturating_add(time) <= limit
            }
            _ => false,
        };
        fits && self.check_exact(EMBEDDING, &[table, positions]).is_ok()
            && self.check(EMBEDDING, indices, DType::I32).is_ok()
            && table.len() > 0
            && indices.len() > 0
            && !self.any_needs_grad(&[table, positions])
    }

    fn fused_embedding(
        &mut self,
        gpu: &Gpu,
        table: Tensor,
        indices: Tensor,
        positions: Tensor,
        start: usize,
    ) -> Result<Tensor> {
        let (dtype, width) = (self.float(), table.shape().last());
        let shape = indices.shape().appended(width)?;
        let out = self.alloc(shape.len(), dtype)?;
        kernels::decode_embed(
            gpu,
            Grid { threads: 128, ..Grid::blocks((shape.len() / 4).div_ceil(128)) },
            View::new(out.at(), dtype),
            self.at(table),
            self.at(indices),
            self.at(positions) + (4 * start * width) as u64,
            width,
            table.dims()[0],
            indices.shape().last() * width,
            shape.len(),
            gpu.op(EMBEDDING),
            gpu.fault(),
        )?;
        Ok(self.push(out, shape, dtype, false))
    }

    /// x[b, t] + table[start + t]: x [B, T, D], table [P, D] -> [B, T, D]
    pub fn add_positions(&mut self, x: Tensor, table: Tensor, start: usize) -> Result<Tensor> {
        const OP: &str = "position embedding";
        self.check_f32(OP, &[x, table])?;
        let (&[_, time, width], &[limit, table_width]) = (x.dims(), table.dims()) else {
            let rule = "x is [B, T, D] and the table [P, D]";
            return Err(Error::ShapeMismatch { op: OP, lhs: x.shape(), rhs: table.shape(), rule });
        };
        if width != table_width {
            let rule = "x is [B, T, D] and the table [P, D]";
            return Err(Error::ShapeMismatch { op: OP, lhs: x.shape(), rhs: table.shape(), rule });
        }
        let end = start.saturating_add(time);
        if end > limit {
            return Err(Error::RangeOutOfBounds { op: OP, start, end, limit });
        }
        let dtype = self.float();
        let mut out = self.alloc(x.len(), dtype)?;
        match self.backend() {
            Backend::Cpu => self.cpu_add_positions(x, table, start, &mut out),
            Backend::Cuda(gpu) => self.gpu_add_positions(&gpu, x, table, start, &out)?,
        }
        let needs_grad = self.any_needs_grad(&[x, table]);
        let out = self.push(out, x.shape(), dtype, needs_grad);
        if needs_grad {
            self.record(AddPositions { x, table, start, out });
        }
        Ok(out)
    }

    fn cpu_add_positions(&self, x: Tensor, table: Tensor, start: usize, out: &mut Block) {
        let (time, width) = (x.dims()[1], x.dims()[2]);
        out.f32_mut().copy_from_slice(self.f32(x));
        let positions = &self.f32(table)[start * width..(start + time) * width];
        for line in out.f32_mut().chunks_exact_mut((time * width).max(1)) {
            line.iter_mut().zip(positions).for_each(|(o, p)| *o += p);
        }
    }

    fn gpu_add_positions(
        &self,
        gpu: &Gpu,
        x: Tensor,
        table: Tensor,
        start: usize,
        out: &Block,
    ) -> Result<()> {
        let (n, time, width) = (x.len(), x.dims()[1], x.dims()[2]);
        let (to, from, table) = (View::new(out.at(), self.float()), self.view(x), self.view(table));
        let grid = Grid::elements(gpu, n);
        kernels::add_positions(gpu, grid, to, from, table, start * width, time * width, n)
    }
}

impl Backward for Embedding {
    fn backward(self, tape: &mut Tape) -> Result<()> {
        tape.pass_gradients(
            (self.out, None),
            |tape, dy| self.cpu_backward(tape, dy),
            |tape, gpu, dy| self.gpu_backward(tape, gpu, dy),
        )
    }
}

impl Embedding {
    fn cpu_backward(&self, tape: &mut Tape, dy: &Block) -> Result<()> {
        let width = self.table.shape().last();
        if let Some(mut grad) = tape.grad(self.table)? {
            let accumulate = grad.accumulate;
            let indices = tape.i32(self.indices);
            let table = grad.slice();
            if !accumulate {
                table.fill(0.0);
            }
            // In order: an index may occur many times.
            for (dy, &index) in dy.f32().chunks_exact(width).zip(indices) {
                let row = &mut table[index as usize * width..][..width];
                row.iter_mut().zip(dy).for_each(|(r, d)| *r += d);
            }
            tape.put_grad(grad);
        }
        Ok(())
    }

    fn gpu_backward(&self, tape: &mut Tape, gpu: &Gpu, dy: &Block) -> Result<()> {
        let (entries, width) = (self.table.dims()[0], self.table.dims()[1]);
        let d = View::new(dy.at(), self.out.dtype());
        let (parts, splits) = launches::scatter(tape, gpu, d, self.indices, entries, width)?;
        if let Some(grad) = tape.grad(self.table)? {
            launches::join(gpu, grad.view(), &parts, splits, entries * width, grad.accumulate)?;
            tape.put_grad(grad);
        }
        tape.give_back(parts);
        Ok(())
    }
}

impl Backward for AddPositions {
    fn backward(self, tape: &mut Tape) -> Result<()> {
        let Some(dy) = tape.take_grad(self.out) else { return Ok(()) };
        if let Some(mut grad) = tape.grad(self.table)? {
            match tape.backend() {
                Backend::Cpu => self.cpu_gradient(&dy, &mut grad),
                Backend::Cuda(gpu) => self.gpu_gradient(tape, &gpu, &dy, &grad)?,
            }
            tape.put_grad(grad);
        }
        tape.hand_grad(self.x, dy, self.out.dtype())
    }
}

impl AddPositions {
    fn cpu_gradient(&self, dy: &Block, grad: &mut Grad) {
        let (time, width, accumulate) = (self.x.dims()[1], self.x.dims()[2], grad.accumulate);
        let table = grad.slice();
        if !accumulate {
            table.fill(0.0);
        }
        let rows = &mut table[self.start * width..(self.start + time) * width];
        for line in dy.f32().chunks_exact((time * width).max(1)) {
            add_or_set(rows, line, true);
        }
    }

    fn gpu_gradient(&self, tape: &mut Tape, gpu: &Gpu, dy: &Block, grad: &Grad) -> Result<()> {
        let (time, width, size) = (self.x.dims()[1], self.x.dims()[2], grad.dtype().size());
        if !grad.accumulate {
            gpu.fill_bytes(grad.at(), 0, self.table.len() * size)?;
        }
        let rows = View::new(grad.at() + (self.start * width * size) as u64, grad.dtype());
        let d = View::new(dy.at(), self.out.dtype());
        let (parts, count) = launches::column_parts(tape, gpu, d, self.x.dims()[0], time * width)?;
        launches::join(gpu, rows, &parts, count, time * width, true)?;
        tape.give_back(parts);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{check_gradients, integers, on_tape, values};
    use crate::{Device, Init, Key, ParamsBuilder, Stepper};

    #[test]
    fn gradients() {
        check_gradients(&[&[4, 3]], |tape, x| {
            let at = integers(tape, &[2, 0, 2, 3, 2]);
            tape.embedding(x[0], at)
        });
        check_gradients(&[&[2, 3, 5], &[7, 5]], |tape, x| tape.add_positions(x[0], x[1], 2));
        check_gradients(&[&[1, 1, 1], &[1, 1]], |tape, x| tape.add_positions(x[0], x[1], 0));
    }

    #[test]
    fn looks_rows_up() -> Result<()> {
        let table = values(12, 0);
        let out = on_tape(&[&[4, 3]], |tape, x| {
            let at = integers(tape, &[3, 0]);
            tape.embedding(x[0], at)
        })?;
        assert_eq!(out, [&table[9..12], &table[0..3]].concat());
        Ok(())
    }

    /// Of every width, with gradient and without.
    #[test]
    fn rows_at_positions_are_the_sum() -> Result<()> {
        for width in [3, 4, 64] {
            let device = Device::under_test(1)?;
            let mut builder = ParamsBuilder::new();
            let [table, positions] =
                ["table", "positions"].map(|name| builder.add(name, [5, width], Init::Uniform(1.0)));
            let params = builder.build(&device, "tables", 1)?;
            let mut stepper = Stepper::new(&device, Key::new(0, 0));
            for (start, message) in [(2, None), (3, Some("position embedding: range 3..6 is outside 0..5"))] {
                let step = |tape: &mut Tape| -> Result<[Vec<f32>; 2]> {
                    let (table, positions) = (tape.param(&params, table)?, tape.param(&params, positions)?);
                    let at = integers(tape, &[4, 0, 1, 3, 3, 2]);
                    let at = tape.reshape(at, [2, 3])?;
                    let got = tape.embedding_at(table, at, positions, start)?;
                    let rows = tape.embedding(table, at)?;
                    let expected = tape.add_positions(rows, positions, start)?;
                    Ok([tape.read(got)?, tape.read(expected)?])
                };
                for result in [stepper.infer(step), stepper.run(step)] {
                    match message {
                        Some(message) => assert_eq!(result.unwrap_err().to_string(), message),
                        None => {
                            let [got, expected] = result?;
                            let rounding = if device.float() == DType::F32 { 0.0 } else { 1e-2 };
                            assert!(got.iter().zip(&expected).all(|(g, e)| (g - e).abs() <= rounding));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    #[test]
    fn bad_indices_and_positions_are_errors() {
        for (bad, message) in [(4, "index 4"), (-1, "index -1")] {
            let error = on_tape(&[&[4, 3]], |tape, x| {
                let at = integers(tape, &[0, bad]);
                tape.embedding(x[0], at)
            });
            let expected = format!("embedding: {message} at position 1 is outside 0..4");
            assert_eq!(error.unwrap_err().to_string(), expected);
        }
        let error = on_tape(&[&[2, 3, 5], &[4, 5]], |tape, x| tape.add_positions(x[0], x[1], 2));
        assert_eq!(error.unwrap_err().to_string(), "position embedding: range 2..5 is outside 0..4");
    }
}
