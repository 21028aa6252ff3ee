//! One step of an LSTM: c' = f * c + i * g, h' = o * tanh(c').

use super::{Backward, launches};
use crate::backend::Backend;
use crate::cpu::{
    self, Layout, Mat, Start, column_sums, column_sums_scratch_len, gemm, gemm_scratch_len, math,
    multiversion,
};
use crate::cuda::{Gpu, Grid, Matrix, Product, View, kernels};
use crate::memory::Block;
use crate::{DType, Error, Result, Tape, Tensor};

/// The state of an LSTM: hidden and cell, [B, H] each.
#[derive(Clone, Copy, Debug)]
pub struct Lstm {
    /// The hidden state h, which is also the output, [B, H].
    pub hidden: Tensor,
    /// The cell state c, [B, H].
    pub cell: Tensor,
}

pub(crate) struct LstmCell {
    gates: Tensor,
    before: Lstm,
    weight: Tensor,
    bias: Tensor,
    /// Activated gates, [B, 4H].
    activated: Tensor,
    after: Lstm,
}

/// What a step computes: activated gates [B, 4H], hidden and cell state [B, H].
struct Results {
    activated: Block,
    hidden: Block,
    cell: Block,
}

const OP: &str = "lstm cell";

impl Tape {
    /// One step: gates [B, 4H] is the input's share, x W_ih^T + b_ih (for all steps at once it is one [`linear`](Tape::linear));
    /// weight [4H, H] and bias `[4H]` are the hidden state's. Gates in the order input, forget, cell, output:
    /// c' = f * c + i * g, h' = o * tanh(c').
    pub fn lstm_cell(&mut self, gates: Tensor, state: Lstm, weight: Tensor, bias: Tensor) -> Result<Lstm> {
        self.check_f32(OP, &[gates, state.hidden, state.cell, weight])?;
        self.check_exact(OP, &[bias])?;
        self.check_not_empty(OP, &[state.hidden])?;
        let &[batch, width] = state.hidden.dims() else {
            return Err(Error::BadShape { op: OP, shape: state.hidden.shape(), rule: "the state is [B, H]" });
        };
        let expected: [(Tensor, crate::Shape, &'static str); 4] = [
            (state.cell, [batch, width].into(), "hidden and cell state are both [B, H]"),
            (gates, [batch, 4 * width].into(), "the gates are [B, 4H] for a state [B, H]"),
            (weight, [4 * width, width].into(), "the weight is [4H, H] for a state [B, H]"),
            (bias, [4 * width].into(), "the bias is [4H] for a state [B, H]"),
        ];
        for (tensor, shape, rule) in expected {
            if tensor.shape() != shape {
                return Err(Error::ShapeMismatch {
                    op: OP,
                    lhs: state.hidden.shape(),
                    rhs: tensor.shape(),
                    rule,
                });
            }
        }
        let mut results = Results {
            activated: self.alloc(batch * 4 * width, DType::F32)?,
            hidden: self.alloc(batch * width, DType::F32)?,
            cell: self.alloc(batch * width, DType::F32)?,
        };
        match self.backend() {
            Backend::Cpu => self.cpu_lstm(gates, state, weight, bias, &mut results)?,
            Backend::Cuda(gpu) => self.gpu_lstm(&gpu, gates, state, weight, bias, &results)?,
        }
        let needs_grad = self.any_needs_grad(&[gates, state.hidden, state.cell, weight, bias]);
        let activated = self.push(results.activated, gates.shape(), DType::F32, false);
        let shape = state.hidden.shape();
        let after = Lstm {
            hidden: self.push(results.hidden, shape, DType::F32, needs_grad),
            cell: self.push(results.cell, shape, DType::F32, needs_grad),
        };
        if needs_grad {
            self.record(LstmCell { gates, before: state, weight, bias, activated, after });
        }
        Ok(after)
    }

    fn cpu_lstm(
        &mut self,
        gates: Tensor,
        state: Lstm,
        weight: Tensor,
        bias: Tensor,
        Results { activated, hidden, cell }: &mut Results,
    ) -> Result<()> {
        let (batch, width) = (state.hidden.dims()[0], state.hidden.dims()[1]);
        let mut scratch = self.scratch(gemm_scratch_len(batch, 4 * width, width, Layout::Rows))?;
        let (h, w) = (self.f32(state.hidden), self.f32(weight));
        let (a, b) = (Mat::rows(h, width), Mat::transposed(w, width));
        let start = Start::Bias(self.f32(bias));
        gemm(batch, 4 * width, width, a, b, activated.f32_mut(), 4 * width, start, scratch.f32_mut());
        self.give_back(scratch);
        let (gates, before) = (self.f32(gates), self.f32(state.cell));
        let rows = activated.f32_mut().chunks_exact_mut(4 * width);
        for (b, activated) in rows.enumerate() {
            let state = b * width..(b + 1) * width;
            step(
                &gates[b * 4 * width..(b + 1) * 4 * width],
                &before[state.clone()],
                activated,
                &mut hidden.f32_mut()[state.clone()],
                &mut cell.f32_mut()[state],
            );
        }
        Ok(())
    }

    fn gpu_lstm(
        &mut self,
        gpu: &Gpu,
        gates: Tensor,
        state: Lstm,
        weight: Tensor,
        bias: Tensor,
        Results { activated, hidden, cell }: &Results,
    ) -> Result<()> {
        let (dtype, batch, width) = (self.float(), state.hidden.dims()[0], state.hidden.dims()[1]);
        let h = self.gpu_operand(gpu, state.hidden, dtype)?;
        let w = self.gpu_operand(gpu, weight, dtype)?;
        gpu.product(&Product::new(
            (batch, 4 * width, width),
            Matrix::rows(h.at, dtype, width),
            Matrix::transposed(w.at, dtype, width),
            Matrix::rows(activated.at(), DType::F32, 4 * width),
        ))?;
        let n = batch * width;
        kernels::lstm_step(
            gpu,
            Grid::elements(gpu, n),
            self.view(gates),
            self.view(state.cell),
            activated.at(),
            self.at(bias),
            View::new(hidden.at(), DType::F32),
            View::new(cell.at(), DType::F32),
            width,
            n,
        )?;
        self.release(h);
        self.release(w);
        Ok(())
    }
}

impl Backward for LstmCell {
    fn backward(self, tape: &mut Tape) -> Result<()> {
        let (dh, dc) = (tape.take_grad(self.after.hidden), tape.take_grad(self.after.cell));
        if dh.is_none() && dc.is_none() {
            return Ok(());
        }
        match tape.backend() {
            Backend::Cpu => self.cpu_backward(tape, dh, dc),
            Backend::Cuda(gpu) => self.gpu_backward(tape, &gpu, dh, dc),
        }
    }
}

impl LstmCell {
    fn cpu_backward(&self, tape: &mut Tape, dh: Option<Block>, dc: Option<Block>) -> Result<()> {
        let (batch, width) = (self.before.hidden.dims()[0], self.before.hidden.dims()[1]);
        let mut zeros = tape.scratch(batch * width)?;
        zeros.f32_mut().fill(0.0);
        let mut d_gates = tape.scratch(batch * 4 * width)?;
        let mut d_cell = tape.scratch(batch * width)?;
        let (activated, before, after) =
            (tape.f32(self.activated), tape.f32(self.before.cell), tape.f32(self.after.cell));
        let (dh_v, dc_v) = (dh.as_ref().unwrap_or(&zeros).f32(), dc.as_ref().unwrap_or(&zeros).f32());
        cpu::chunks2_mut((d_gates.f32_mut(), 4 * width), (d_cell.f32_mut(), width), |b, d_gates, d_cell| {
            let state = b * width..(b + 1) * width;
            step_gradient(
                &activated[b * 4 * width..(b + 1) * 4 * width],
                &before[state.clone()],
                &after[state.clone()],
                &dh_v[state.clone()],
                &dc_v[state],
                d_gates,
                d_cell,
            );
        });
        for block in [Some(zeros), dh, dc].into_iter().flatten() {
            tape.give_back(block);
        }
        let room = gemm_scratch_len(batch, width, 4 * width, Layout::Rows)
            .max(gemm_scratch_len(4 * width, width, batch, Layout::Transposed))
            .max(column_sums_scratch_len(batch, 4 * width));
        let mut scratch = tape.scratch(room)?;
        let start = |accumulate| if accumulate { Start::C } else { Start::Zero };
        if let Some(mut grad) = tape.grad(self.before.hidden)? {
            let (a, b) = (Mat::rows(d_gates.f32(), 4 * width), Mat::rows(tape.f32(self.weight), width));
            let from = start(grad.accumulate);
            gemm(batch, width, 4 * width, a, b, grad.slice(), width, from, scratch.f32_mut());
            tape.put_grad(grad);
        }
        if let Some(mut grad) = tape.grad(self.weight)? {
            let a = Mat::transposed(d_gates.f32(), 4 * width);
            let b = Mat::rows(tape.f32(self.before.hidden), width);
            let from = start(grad.accumulate);
            gemm(4 * width, width, batch, a, b, grad.slice(), width, from, scratch.f32_mut());
            tape.put_grad(grad);
        }
        if let Some(mut grad) = tape.grad(self.bias)? {
            let accumulate = grad.accumulate;
            column_sums(d_gates.f32(), grad.slice(), accumulate, scratch.f32_mut());
            tape.put_grad(grad);
        }
        tape.give_back(scratch);
        tape.hand_grad(self.before.cell, d_cell, DType::F32)?;
        tape.hand_grad(self.gates, d_gates, DType::F32)
    }

    fn gpu_backward(&self, tape: &mut Tape, gpu: &Gpu, dh: Option<Block>, dc: Option<Block>) -> Result<()> {
        let (batch, width) = (self.before.hidden.dims()[0], self.before.hidden.dims()[1]);
        // In the type of the products below, and in that of the gates.
        let (dtype, rows) = (tape.float(), 4 * width);
        let d_gates = tape.alloc(batch * rows, dtype)?;
        let d_cell = tape.alloc(batch * width, DType::F32)?;
        let d = View::new(d_gates.at(), dtype);
        let view = |block: &Option<Block>| {
            block.as_ref().map_or(View::NOTHING, |block| View::new(block.at(), DType::F32))
        };
        let n = batch * width;
        kernels::lstm_gradient(
            gpu,
            Grid::elements(gpu, n),
            tape.at(self.activated),
            tape.view(self.before.cell),
            tape.view(self.after.cell),
            view(&dh),
            view(&dc),
            d,
            View::new(d_cell.at(), DType::F32),
            width,
            n,
        )?;
        [dh, dc].into_iter().flatten().for_each(|block| tape.give_back(block));
        if let Some(grad) = tape.grad(self.before.hidden)? {
            let w = tape.gpu_operand(gpu, self.weight, dtype)?;
            let (a, b) = (Matrix::rows(d_gates.at(), dtype, rows), Matrix::rows(w.at, dtype, width));
            let (out, start) =
                (Matrix::rows(grad.at(), grad.dtype(), width), grad.accumulate.then(|| grad.at()));
            gpu.product(&Product { start, ..Product::new((batch, width, rows), a, b, out) })?;
            tape.release(w);
            tape.put_grad(grad);
        }
        if let Some(grad) = tape.grad(self.weight)? {
            let h = tape.gpu_operand(gpu, self.before.hidden, dtype)?;
            let (a, b) = (Matrix::transposed(d_gates.at(), dtype, rows), Matrix::rows(h.at, dtype, width));
            let (out, start) =
                (Matrix::rows(grad.at(), grad.dtype(), width), grad.accumulate.then(|| grad.at()));
            gpu.product(&Product { start, ..Product::new((rows, width, batch), a, b, out) })?;
            tape.release(h);
            tape.put_grad(grad);
        }
        launches::bias_gradient(tape, gpu, (d, None), batch, self.bias)?;
        tape.hand_grad(self.before.cell, d_cell, DType::F32)?;
        tape.hand_grad(self.gates, d_gates, dtype)
    }
}

multiversion! {
    /// `activated` comes in as the hidden state's share of the gates and leaves as the activated gates.
    fn step(gates: &[f32], before: &[f32], activated: &mut [f32], hidden: &mut [f32], cell: &mut [f32]) {
        let width = before.len();
        let (i, rest) = activated.split_at_mut(width);
        let (f, rest) = rest.split_at_mut(width);
        let (g, o) = rest.split_at_mut(width);
        for j in 0..width {
            i[j] = math::sigmoid(i[j] + gates[j]);
            f[j] = math::sigmoid(f[j] + gates[width + j]);
            g[j] = math::tanh(g[j] + gates[2 * width + j]);
            o[j] = math::sigmoid(o[j] + gates[3 * width + j]);
            cell[j] = f[j] * before[j] + i[j] * g[j];
            hidden[j] = o[j] * math::tanh(cell[j]);
        }
    }
}

multiversion! {
    fn step_gradient(
        activated: &[f32],
        before: &[f32],
        after: &[f32],
        dh: &[f32],
        dc: &[f32],
        d_gates: &mut [f32],
        d_cell: &mut [f32],
    ) {
        let width = before.len();
        let gate = |n: usize| &activated[n * width..(n + 1) * width];
        let (i, f, g, o) = (gate(0), gate(1), gate(2), gate(3));
        let (di, rest) = d_gates.split_at_mut(width);
        let (df, rest) = rest.split_at_mut(width);
        let (dg, d_o) = rest.split_at_mut(width);
        for j in 0..width {
            let t = math::tanh(after[j]);
            let d = dc[j] + dh[j] * o[j] * (1.0 - t * t);
            di[j] = d * g[j] * i[j] * (1.0 - i[j]);
            df[j] = d * before[j] * f[j] * (1.0 - f[j]);
            dg[j] = d * i[j] * (1.0 - g[j] * g[j]);
            d_o[j] = dh[j] * t * o[j] * (1.0 - o[j]);
            d_cell[j] = d * f[j];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{check_gradients, on_tape};

    #[test]
    fn gradients() {
        for (batch, width) in [(1, 1), (3, 5), (2, 33)] {
            let dims: [&[usize]; 5] =
                [&[batch, 4 * width], &[batch, width], &[batch, width], &[4 * width, width], &[4 * width]];
            check_gradients(&dims, |tape, x| {
                let state = Lstm { hidden: x[1], cell: x[2] };
                tape.lstm_cell(x[0], state, x[3], x[4]).map(|s| s.hidden)
            });
            // Through time: three steps, both parts of the final state used.
            check_gradients(&dims, |tape, x| {
                let mut state = Lstm { hidden: x[1], cell: x[2] };
                for _ in 0..3 {
                    state = tape.lstm_cell(x[0], state, x[3], x[4])?;
                }
                tape.concat(&[state.hidden, state.cell], 1)
            });
        }
    }

    #[test]
    fn wrong_shapes_are_named() {
        let error = on_tape(&[&[2, 8], &[2, 3], &[2, 3], &[12, 3], &[12]], |tape, x| {
            tape.lstm_cell(x[0], Lstm { hidden: x[1], cell: x[2] }, x[3], x[4]).map(|s| s.hidden)
        });
        assert_eq!(
            error.unwrap_err().to_string(),
            "lstm cell: shapes [2, 3] and [2, 8] do not fit: the gates are [B, 4H] for a state [B, H]"
        );
    }
}
