//! Slices and concatenation along one dimension, and storing one step of a sequence.

use super::Backward;
use crate::backend::Backend;
use crate::cuda::{Gpu, Grid, View, kernels};
use crate::memory::Block;
use crate::tape::Grad;
use crate::{Buffer, DType, Error, Result, Shape, Tape, Tensor};

/// A range along one dimension.
pub(crate) struct Slice {
    x: Tensor,
    axis: usize,
    start: usize,
    out: Tensor,
}

/// Several tensors behind each other along one dimension.
pub(crate) struct Concat {
    axis: usize,
    /// The inputs, as a range of the tape's lists.
    inputs: (usize, usize),
    out: Tensor,
}

/// (product of the dimensions before `axis`, product of those after it)
fn around(shape: Shape, axis: usize) -> (usize, usize) {
    (shape.dims()[..axis].iter().product(), shape.dims()[axis + 1..].iter().product())
}

/// Equal parts of memory on a GPU, `stride` elements apart from element `start` on.
pub(super) struct Blocks {
    pub at: u64,
    pub dtype: DType,
    pub start: usize,
    pub stride: usize,
}

/// `count` parts of `part` elements (+)= others.
pub(super) fn copy_blocks(
    gpu: &Gpu,
    to: Blocks,
    from: Blocks,
    part: usize,
    count: usize,
    add: bool,
) -> Result<()> {
    let n = part * count;
    let (grid, start, stride) = (Grid::elements(gpu, n), to.start, to.stride);
    let copy = match to.dtype {
        DType::F32 | DType::BF16 => {
            let (to, x) = (View::new(to.at, to.dtype), View::new(from.at, from.dtype));
            return kernels::copy_blocks(
                gpu,
                grid,
                to,
                start,
                stride,
                x,
                from.start,
                from.stride,
                part,
                n,
                add,
            );
        }
        DType::I32 => kernels::copy_blocks_words,
        DType::U8 => kernels::copy_blocks_bytes,
    };
    copy(gpu, grid, to.at, start, stride, from.at, from.start, from.stride, part, n)
}

impl Tape {
    /// x[.., start..end, ..] along `axis`, of any element type.
    pub fn slice(&mut self, x: Tensor, axis: usize, start: usize, end: usize) -> Result<Tensor> {
        const OP: &str = "slice";
        self.check(OP, x, x.dtype())?;
        if axis >= x.shape().rank() {
            return Err(Error::BadShape {
                op: OP,
                shape: x.shape(),
                rule: "the axis is one of its dimensions",
            });
        }
        let limit = x.dims()[axis];
        if start > end || end > limit {
            return Err(Error::RangeOutOfBounds { op: OP, start, end, limit });
        }
        let shape = x.shape().with_dim(axis, end - start);
        let mut out = self.alloc(shape.len(), x.dtype())?;
        match self.backend() {
            Backend::Cpu => self.cpu_slice(x, axis, start, end, &mut out),
            Backend::Cuda(gpu) => self.gpu_slice(&gpu, x, axis, start, end, &out)?,
        }
        let needs_grad = self.needs_grad(x);
        let out = self.push(out, shape, x.dtype(), needs_grad);
        if needs_grad {
            self.record(Slice { x, axis, start, out });
        }
        Ok(out)
    }

    fn cpu_slice(&self, x: Tensor, axis: usize, start: usize, end: usize, out: &mut Block) {
        let (outer, inner) = around(x.shape(), axis);
        let (limit, inner) = (x.dims()[axis], inner * x.dtype().size());
        let (source, target) = (self.bytes(x), out.all_mut::<u8>());
        let part = (end - start) * inner;
        for o in 0..outer {
            let from = (o * limit + start) * inner;
            target[o * part..(o + 1) * part].copy_from_slice(&source[from..from + part]);
        }
    }

    fn gpu_slice(
        &self,
        gpu: &Gpu,
        x: Tensor,
        axis: usize,
        start: usize,
        end: usize,
        out: &Block,
    ) -> Result<()> {
        let (outer, inner) = around(x.shape(), axis);
        let part = (end - start) * inner;
        let to = Blocks { at: out.at(), dtype: x.dtype(), start: 0, stride: part };
        let (start, stride) = (start * inner, x.dims()[axis] * inner);
        let from = Blocks { at: self.at(x), dtype: x.dtype(), start, stride };
        copy_blocks(gpu, to, from, part, outer, false)
    }

    /// The inputs behind each other along `axis`; their other dimensions and element types agree.
    pub fn concat(&mut self, inputs: &[Tensor], axis: usize) -> Result<Tensor> {
        const OP: &str = "concat";
        let Some(&first) = inputs.first() else {
            return Err(Error::BadShape {
                op: OP,
                shape: Shape::SCALAR,
                rule: "there is at least one input",
            });
        };
        if axis >= first.shape().rank() {
            return Err(Error::BadShape {
                op: OP,
                shape: first.shape(),
                rule: "the axis is one of its dimensions",
            });
        }
        let mut total = 0;
        for &input in inputs {
            self.check(OP, input, first.dtype())?;
            let fits = input.shape().rank() == first.shape().rank()
                && input.shape().with_dim(axis, 0) == first.shape().with_dim(axis, 0);
            if !fits {
                let rule = "all dimensions but the joined one agree";
                return Err(Error::ShapeMismatch { op: OP, lhs: first.shape(), rhs: input.shape(), rule });
            }
            total += input.dims()[axis];
        }
        let shape = first.shape().with_dim(axis, total);
        let dtype = if first.dtype().is_float() { self.joint(inputs) } else { first.dtype() };
        let mut out = self.alloc(shape.len(), dtype)?;
        match self.backend() {
            Backend::Cpu => self.cpu_concat(inputs, axis, total, (&mut out, dtype)),
            Backend::Cuda(gpu) => self.gpu_concat(&gpu, inputs, axis, total, (&out, dtype))?,
        }
        let needs_grad = self.any_needs_grad(inputs);
        let out = self.push(out, shape, dtype, needs_grad);
        if needs_grad {
            let inputs = self.keep_list(inputs);
            self.record(Concat { axis, inputs, out });
        }
        Ok(out)
    }

    fn cpu_concat(&self, inputs: &[Tensor], axis: usize, total: usize, (out, dtype): (&mut Block, DType)) {
        let target = out.all_mut::<u8>();
        let mut at = 0;
        for &input in inputs {
            let (outer, inner) = around(input.shape(), axis);
            let inner = inner * dtype.size();
            let (source, part) = (self.bytes(input), input.dims()[axis] * inner);
            for o in 0..outer {
                let to = o * total * inner + at;
                target[to..to + part].copy_from_slice(&source[o * part..(o + 1) * part]);
            }
            at += part;
        }
    }

    fn gpu_concat(
        &self,
        gpu: &Gpu,
        inputs: &[Tensor],
        axis: usize,
        total: usize,
        (out, dtype): (&Block, DType),
    ) -> Result<()> {
        let mut at = 0;
        for &input in inputs {
            let (outer, inner) = around(input.shape(), axis);
            let part = input.dims()[axis] * inner;
            let to = Blocks { at: out.at(), dtype, start: at, stride: total * inner };
            let from = Blocks { at: self.at(input), dtype: input.dtype(), start: 0, stride: part };
            copy_blocks(gpu, to, from, part, outer, false)?;
            at += part;
        }
        Ok(())
    }

    /// Writes step `t` of a sequence: tensor [B, ..] into buffer [B, T, ..].
    pub fn store_step(&mut self, buffer: &Buffer, t: usize, tensor: Tensor) -> Result<()> {
        const OP: &str = "store step";
        self.check(OP, tensor, buffer.dtype())?;
        let fits = buffer.shape().rank() >= 2
            && tensor.dims().first() == buffer.shape().dims().first()
            && tensor.shape().len() * buffer.shape().dims()[1] == buffer.shape().len();
        if !fits {
            let rule = "the tensor is [B, ..] for a buffer [B, T, ..]";
            return Err(Error::ShapeMismatch { op: OP, lhs: tensor.shape(), rhs: buffer.shape(), rule });
        }
        let (batch, time) = (buffer.shape().dims()[0], buffer.shape().dims()[1]);
        if t >= time {
            return Err(Error::IndexOutOfRange { op: OP, index: t as i64, position: 0, limit: time });
        }
        let row = tensor.shape().len() / batch.max(1);
        match self.backend() {
            Backend::Cpu => (0..batch)
                .try_for_each(|b| self.store_rows(buffer, (b * time + t) * row, tensor, b * row, row)),
            Backend::Cuda(gpu) => {
                self.writable(buffer, tensor)?;
                let at = self.buffer_at(buffer)?;
                let to = Blocks { at, dtype: buffer.dtype(), start: t * row, stride: time * row };
                let from = Blocks { at: self.at(tensor), dtype: tensor.dtype(), start: 0, stride: row };
                copy_blocks(&gpu, to, from, row, batch, false)
            }
        }
    }
}

impl Backward for Slice {
    fn backward(self, tape: &mut Tape) -> Result<()> {
        tape.pass_gradient(
            (self.out, self.x),
            |_, dy, grad| self.cpu_gradient(dy, grad),
            |_, gpu, dy, grad| self.gpu_gradient(gpu, dy, grad),
        )
    }
}

impl Slice {
    fn cpu_gradient(&self, dy: &Block, grad: &mut Grad) {
        let (outer, inner) = around(self.x.shape(), self.axis);
        let (limit, part) = (self.x.dims()[self.axis], self.out.dims()[self.axis] * inner);
        let accumulate = grad.accumulate;
        let dx = grad.slice();
        if !accumulate {
            dx.fill(0.0);
        }
        for o in 0..outer {
            let to = (o * limit + self.start) * inner;
            let target = dx[to..to + part].iter_mut();
            target.zip(&dy.f32()[o * part..]).for_each(|(d, g)| *d += g);
        }
    }

    fn gpu_gradient(&self, gpu: &Gpu, dy: &Block, grad: &Grad) -> Result<()> {
        let (outer, inner) = around(self.x.shape(), self.axis);
        let (limit, part) = (self.x.dims()[self.axis], self.out.dims()[self.axis] * inner);
        if !grad.accumulate {
            gpu.fill_bytes(grad.at(), 0, self.x.len() * grad.dtype().size())?;
        }
        let (start, stride) = (self.start * inner, limit * inner);
        let to = Blocks { at: grad.at(), dtype: grad.dtype(), start, stride };
        let from = Blocks { at: dy.at(), dtype: self.out.dtype(), start: 0, stride: part };
        copy_blocks(gpu, to, from, part, outer, true)
    }
}

impl Backward for Concat {
    fn backward(self, tape: &mut Tape) -> Result<()> {
        let Some(dy) = tape.take_grad(self.out) else { return Ok(()) };
        let backend = tape.backend();
        let (_, inner) = around(self.out.shape(), self.axis);
        let mut at = 0;
        for index in self.inputs.0..self.inputs.1 {
            let input = tape.kept(index);
            let part = input.dims()[self.axis] * inner;
            if input.dtype().is_float()
                && let Some(mut grad) = tape.grad(input)?
            {
                match &backend {
                    Backend::Cpu => self.cpu_gradient(&dy, at, part, &mut grad),
                    Backend::Cuda(gpu) => self.gpu_gradient(gpu, &dy, at, part, &grad)?,
                }
                tape.put_grad(grad);
            }
            at += part;
        }
        tape.give_back(dy);
        Ok(())
    }
}

impl Concat {
    /// The gradient of an input of `part` elements a piece, from element `at` of each piece of `dy` on.
    fn cpu_gradient(&self, dy: &Block, at: usize, part: usize, grad: &mut Grad) {
        let (outer, inner) = around(self.out.shape(), self.axis);
        let (total, accumulate) = (self.out.dims()[self.axis], grad.accumulate);
        let dx = grad.slice();
        for o in 0..outer {
            let from = o * total * inner + at;
            for (d, g) in dx[o * part..(o + 1) * part].iter_mut().zip(&dy.f32()[from..]) {
                *d = if accumulate { *d + g } else { *g };
            }
        }
    }

    fn gpu_gradient(&self, gpu: &Gpu, dy: &Block, at: usize, part: usize, grad: &Grad) -> Result<()> {
        let (outer, inner) = around(self.out.shape(), self.axis);
        let to = Blocks { at: grad.at(), dtype: grad.dtype(), start: 0, stride: part };
        let stride = self.out.dims()[self.axis] * inner;
        let from = Blocks { at: dy.at(), dtype: self.out.dtype(), start: at, stride };
        copy_blocks(gpu, to, from, part, outer, grad.accumulate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{check_gradients, integers, on_tape, values};

    #[test]
    fn gradients() {
        for axis in 0..3 {
            check_gradients(&[&[3, 4, 5]], |tape, x| tape.slice(x[0], axis, 1, 3));
            let mut other = [3, 4, 5];
            other[axis] = 2;
            check_gradients(&[&[3, 4, 5], &other], |tape, x| tape.concat(&[x[0], x[1], x[0]], axis));
        }
        // Overlapping slices of one tensor.
        check_gradients(&[&[2, 4]], |tape, x| {
            let (a, b) = (tape.slice(x[0], 1, 0, 3)?, tape.slice(x[0], 1, 1, 4)?);
            tape.mul(a, b)
        });
    }

    #[test]
    fn slices_undo_concat() -> Result<()> {
        for axis in 0..3 {
            let out = on_tape(&[&[3, 4, 5], &[3, 4, 5]], |tape, x| {
                let joined = tape.concat(&[x[0], x[1]], axis)?;
                let size = x[0].dims()[axis];
                tape.slice(joined, axis, size, 2 * size)
            })?;
            assert_eq!(out, values(60, 1));
        }
        on_tape(&[&[1]], |tape, x| {
            let (a, b) = (integers(tape, &[1, 2]), integers(tape, &[3]));
            let joined = tape.concat(&[a, b], 0)?;
            assert_eq!(tape.read::<i32>(joined)?, vec![1, 2, 3]);
            Ok(x[0])
        })?;
        Ok(())
    }

    #[test]
    fn steps_of_a_sequence_are_stored_apart() -> Result<()> {
        let device = crate::Device::under_test(1)?;
        let sequence = device.buffer::<i32>("sequence", [2, 3, 2])?;
        crate::Stepper::new(&device, crate::Key::new(0, 0)).run(|tape| -> Result<()> {
            let x = integers(tape, &[1, 2, 3, 4]);
            let x = tape.reshape(x, [2, 2])?;
            tape.store_step(&sequence, 1, x)?;
            assert!(matches!(tape.store_step(&sequence, 3, x), Err(Error::IndexOutOfRange { limit: 3, .. })));
            let wide = tape.reshape(x, [4])?;
            assert!(matches!(tape.store_step(&sequence, 0, wide), Err(Error::ShapeMismatch { .. })));
            Ok(())
        })?;
        assert_eq!(sequence.read::<i32>()?, [0, 0, 1, 2, 0, 0, 0, 0, 3, 4, 0, 0]);
        Ok(())
    }

    #[test]
    fn bad_ranges_and_shapes_are_errors() {
        let error = on_tape(&[&[3, 4]], |tape, x| tape.slice(x[0], 1, 2, 5)).unwrap_err();
        assert_eq!(error.to_string(), "slice: range 2..5 is outside 0..4");
        assert!(on_tape(&[&[3, 4]], |tape, x| tape.slice(x[0], 2, 0, 1)).is_err());
        let error = on_tape(&[&[3, 4], &[2, 5]], |tape, x| tape.concat(x, 0)).unwrap_err();
        assert!(error.to_string().contains("all dimensions but the joined one agree"));
        assert!(on_tape(&[&[3]], |tape, _| tape.concat(&[], 0)).is_err());
    }
}
