//! The way back: gradients, where they live and how they are added up.

use std::ops::Range;
use std::sync::Arc;

use super::Tape;
use crate::backend::Backend;
use crate::cuda::{Gpu, Grid, View, kernels};
use crate::memory::Block;
use crate::{DType, Error, Params, Result, Tensor};

/// A gradient taken out for writing.
pub(crate) struct Grad {
    block: Block,
    start: usize,
    len: usize,
    node: u32,
    /// Add to what is there; otherwise overwrite it.
    pub accumulate: bool,
    dtype: DType,
}

impl Grad {
    pub fn at(&self) -> u64 {
        self.block.at() + (self.start * self.dtype.size()) as u64
    }

    pub fn dtype(&self) -> DType {
        self.dtype
    }

    pub fn view(&self) -> View {
        View::new(self.at(), self.dtype)
    }

    pub fn slice(&mut self) -> &mut [f32] {
        &mut self.block.f32_mut()[self.start..self.start + self.len]
    }
}

impl Tape {
    /// Computes the gradient of a scalar loss for every parameter it depends on. It uses up the record of everything before it: a second loss in
    /// the same step must be computed after this call.
    pub fn backward(&mut self, loss: Tensor) -> Result<()> {
        self.backward_onto(loss, None)
    }

    /// [`backward`](Tape::backward) that adds to the gradients of `params` that the step before left, instead of replacing them: how the gradient of
    /// several batches is summed up.
    pub fn backward_adding(&mut self, loss: Tensor, params: &Params) -> Result<()> {
        self.backward_onto(loss, Some(params))
    }

    fn backward_onto(&mut self, loss: Tensor, kept: Option<&Params>) -> Result<()> {
        const OP: &str = "backward";
        self.check_exact(OP, &[loss])?;
        if loss.len() != 1 {
            return Err(Error::BadShape { op: OP, shape: loss.shape, rule: "a loss is a single number" });
        }
        if !self.needs_grad(loss) || (loss.node as usize) < self.walked {
            return Err(Error::NoGradient { op: OP });
        }
        let mut one = self.alloc(1, DType::F32)?;
        match self.backend() {
            Backend::Cpu => {
                let value = self.f32(loss)[0];
                if !value.is_finite() {
                    return Err(Error::NotFinite { what: "the loss", value });
                }
                one.f32_mut()[0] = 1.0;
            }
            Backend::Cuda(gpu) => {
                let grid = Grid { threads: 1, ..Grid::blocks(1) };
                kernels::check_finite(&gpu, grid, self.at(loss), gpu.op("the loss"), gpu.fault())?;
                gpu.fill_words(one.at(), 1f32.to_bits(), 1)?;
            }
        }
        let kept = kept.and_then(|params| self.nodes_of(params));
        self.backward_from(loss, one, DType::F32, kept)
    }

    /// Where the nodes of a network's parameters are, if the step uses it.
    fn nodes_of(&self, params: &Params) -> Option<Range<usize>> {
        let bound = self.bound.iter().position(|b| Arc::ptr_eq(&b.slot, &params.values.slot))?;
        let found = self.params.iter().find(|p| p.values == bound)?;
        let first = found.first_node as usize;
        Some(first..first + found.count)
    }

    /// Runs the records backwards from a gradient of `tensor`. Gradients of the nodes in `kept` are added to what is there.
    pub(crate) fn backward_from(
        &mut self,
        tensor: Tensor,
        gradient: Block,
        dtype: DType,
        kept: Option<Range<usize>>,
    ) -> Result<()> {
        // Gradients of an earlier backward pass in this step do not count any more.
        for node in &mut self.nodes {
            node.grad_written = false;
        }
        for node in &mut self.nodes[kept.unwrap_or(0..0)] {
            node.grad_written = node.grad_home.is_some();
        }
        self.hand_grad(tensor, gradient, dtype)?;
        while let Some(record) = self.records.pop() {
            record.backward(self)?;
        }
        self.settle()?;
        // In a network that the loss depends on, the parameters it does not depend on have a zero gradient.
        for params in &mut self.params {
            let first = params.first_node as usize;
            let nodes = &self.nodes[first..first + params.count];
            if nodes.iter().any(|node| node.grad_written) {
                params.has_gradients = true;
                for node in nodes.iter().filter(|node| !node.grad_written) {
                    if let Some((bound, start)) = node.grad_home {
                        let block = &mut self.bound[bound].block;
                        match self.device.backend() {
                            Backend::Cpu => block.f32_mut()[start..start + node.len].fill(0.0),
                            Backend::Cuda(gpu) => {
                                gpu.fill_words(block.at() + 4 * start as u64, 0, node.len)?
                            }
                        }
                    }
                }
            }
        }
        self.walked = self.nodes.len();
        Ok(())
    }

    /// Whether this step has gradients of `params` that no update has used; they count as used from now on.
    pub(crate) fn use_gradients(&mut self, params: &Params) -> bool {
        let bound = self.bound.iter().position(|b| Arc::ptr_eq(&b.slot, &params.values.slot));
        let found = self.params.iter_mut().find(|p| Some(p.values) == bound);
        found.is_some_and(|p| std::mem::take(&mut p.has_gradients))
    }

    /// Takes the finished gradient of an op's result; `None` when nothing depended on it.
    pub(crate) fn take_grad(&mut self, tensor: Tensor) -> Option<Block> {
        self.nodes[tensor.node as usize].grad.take()
    }

    /// Takes the gradient of an op's input out to be written or added to; `None` when it needs none. Give it back with
    /// [`put_grad`](Tape::put_grad) before taking another one.
    pub(crate) fn grad(&mut self, tensor: Tensor) -> Result<Option<Grad>> {
        let index = tensor.node as usize;
        if self.nodes[index].grad_pending {
            self.settle()?;
        }
        let node = &mut self.nodes[index];
        if !node.needs_grad {
            return Ok(None);
        }
        if let Some((stale, ..)) = node.sums.take() {
            self.arena.give_back(stale);
        }
        let (len, dtype) = (node.len, node.dtype);
        let accumulate = node.grad_written || node.grad.is_some();
        let (block, start) = match node.grad_home {
            Some((bound, start)) => (std::mem::take(&mut self.bound[bound].block), start),
            None => match node.grad.take() {
                Some(block) => (block, 0),
                None => (self.arena.take(len * dtype.size(), self.device.backend())?, 0),
            },
        };
        Ok(Some(Grad { block, start, len, node: tensor.node, accumulate, dtype }))
    }

    /// The way back of an op with one input: turns the gradient of `out` into that of `input`, if both are asked for.
    pub(crate) fn pass_gradient(
        &mut self,
        (out, input): (Tensor, Tensor),
        cpu: impl FnOnce(&Tape, &Block, &mut Grad),
        cuda: impl FnOnce(&Tape, &Gpu, &Block, &Grad) -> Result<()>,
    ) -> Result<()> {
        let Some(dy) = self.take_grad(out) else { return Ok(()) };
        if let Some(mut grad) = self.grad(input)? {
            match self.backend() {
                Backend::Cpu => cpu(self, &dy, &mut grad),
                Backend::Cuda(gpu) => cuda(self, &gpu, &dy, &grad)?,
            }
            self.put_grad(grad);
        }
        self.give_back(dy);
        Ok(())
    }

    /// The way back of an op with several inputs: `cpu` or `cuda` turns the gradient of `out` into those of its inputs, and what is left of it goes to
    /// the residual input, if there is one.
    pub(crate) fn pass_gradients(
        &mut self,
        (out, residual): (Tensor, Option<Tensor>),
        cpu: impl FnOnce(&mut Tape, &mut Block) -> Result<()>,
        cuda: impl FnOnce(&mut Tape, &Gpu, &Block) -> Result<()>,
    ) -> Result<()> {
        let Some(mut dy) = self.take_grad(out) else { return Ok(()) };
        match self.backend() {
            Backend::Cpu => cpu(self, &mut dy)?,
            Backend::Cuda(gpu) => cuda(self, &gpu, &dy)?,
        }
        self.pass_on(residual, dy, out.dtype())
    }

    /// Adds up partial gradients of two parameters [C], `parts` [n, 2, C], on the CPU.
    pub(crate) fn add_parts(&mut self, parts: &[f32], parameters: [Tensor; 2]) -> Result<()> {
        for (part, parameter) in parameters.into_iter().enumerate() {
            if let Some(mut grad) = self.grad(parameter)? {
                let accumulate = grad.accumulate;
                let sum = grad.slice();
                if !accumulate {
                    sum.fill(0.0);
                }
                for line in parts.chunks_exact(2 * sum.len()) {
                    let line = &line[part * sum.len()..][..sum.len()];
                    sum.iter_mut().zip(line).for_each(|(g, p)| *g += p);
                }
                self.put_grad(grad);
            }
        }
        Ok(())
    }

    pub(crate) fn put_grad(&mut self, grad: Grad) {
        let node = &mut self.nodes[grad.node as usize];
        match node.grad_home {
            Some((bound, _)) => {
                node.grad_written = true;
                self.bound[bound].block = grad.block;
            }
            None => node.grad = Some(grad.block),
        }
    }

    /// Adds a finished gradient, stored as `dtype`, to that of `tensor`, without a copy when it is the first.
    pub(crate) fn hand_grad(&mut self, tensor: Tensor, block: Block, dtype: DType) -> Result<()> {
        let node = &mut self.nodes[tensor.node as usize];
        if node.needs_grad && node.grad.is_none() && node.grad_home.is_none() && node.dtype == dtype {
            node.grad = Some(block);
            return Ok(());
        }
        if let Some(mut grad) = self.grad(tensor)? {
            self.add_or_set(&mut grad, &block, dtype)?;
            self.put_grad(grad);
        }
        self.give_back(block);
        Ok(())
    }

    /// Gives a finished gradient to a residual input, if there is one.
    pub(crate) fn pass_on(&mut self, residual: Option<Tensor>, block: Block, dtype: DType) -> Result<()> {
        match residual {
            Some(residual) => self.hand_grad(residual, block, dtype),
            None => {
                self.give_back(block);
                Ok(())
            }
        }
    }

    /// grad (+)= source, stored as `dtype`
    pub(crate) fn add_or_set(&self, grad: &mut Grad, source: &Block, dtype: DType) -> Result<()> {
        let accumulate = grad.accumulate;
        match self.backend() {
            Backend::Cpu => {
                add_or_set(grad.slice(), source.f32(), accumulate);
                Ok(())
            }
            Backend::Cuda(gpu) => {
                let (n, source) = (grad.len, View::new(source.at(), dtype));
                kernels::copy(&gpu, Grid::elements(&gpu, n), grad.view(), source, n, accumulate)
            }
        }
    }
}

/// target (+)= source
pub(crate) fn add_or_set(target: &mut [f32], source: &[f32], accumulate: bool) {
    const CHUNK: usize = 1 << 14;
    crate::cpu::chunks_mut(target, CHUNK, |i, target| {
        let source = &source[i * CHUNK..i * CHUNK + target.len()];
        match accumulate {
            true => target.iter_mut().zip(source).for_each(|(t, s)| *t += s),
            false => target.copy_from_slice(source),
        }
    });
}
