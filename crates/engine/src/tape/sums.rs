//! Gradients of parameters that are sums over rows. On a GPU ops leave partial sums, and one kernel per backward pass joins those of all parameters.

use super::Tape;
use crate::backend::Backend;
use crate::cuda::{Gpu, Join, Joins, View};
use crate::memory::Block;
use crate::{DType, Result, Tensor};

/// Partial sums that are not in their gradients yet.
#[derive(Default)]
pub(super) struct Pending {
    joins: Joins,
    /// What they lie in.
    blocks: Vec<Block>,
    /// The parameters they belong to.
    nodes: Vec<u32>,
}

impl Tape {
    /// Adds up partial gradients `parts` [count, P, C] of P parameters `[C]` on a GPU: at the end of the backward pass, where a network has them.
    pub(crate) fn add_sums(
        &mut self,
        gpu: &Gpu,
        parts: Block,
        count: usize,
        parameters: &[Tensor],
    ) -> Result<()> {
        for (part, &parameter) in parameters.iter().enumerate() {
            let columns = parameter.len();
            let (from, stride) = (parts.at() + 4 * (part * columns) as u64, parameters.len() * columns);
            let join = |to, accumulate| Join { to, from, count, stride, columns, accumulate };
            match self.nodes[parameter.node as usize].grad_home {
                Some(home) => self.add_later(parameter, home, join)?,
                // Of a tensor of the step: whoever made it asks for its gradient before the pass ends.
                None => {
                    if let Some(grad) = self.grad(parameter)? {
                        let mut joins = Joins::default();
                        joins.push(&join(grad.view(), grad.accumulate));
                        joins.launch(gpu)?;
                        self.put_grad(grad);
                    }
                }
            }
        }
        match self.pending.joins.is_empty() {
            true => self.give_back(parts),
            false => self.pending.blocks.push(parts),
        }
        Ok(())
    }

    /// Tells those who write the gradient of `out` that its sums over rows are the gradient of `bias`.
    pub(crate) fn ask_for_sums(&mut self, out: Tensor, bias: Tensor) {
        self.nodes[out.node as usize].wants_sums = self.needs_grad(bias);
    }

    /// Whether the sums over rows of a tensor's gradient are worth computing beside it.
    pub(crate) fn wants_sums(&self, tensor: Tensor) -> bool {
        self.nodes[tensor.node as usize].wants_sums
    }

    /// Leaves the sums over rows of the gradient that was just written, in parts [count, C]. They count until somebody changes that gradient.
    pub(crate) fn leave_sums(&mut self, tensor: Tensor, parts: Block, count: usize) {
        self.nodes[tensor.node as usize].sums = Some((parts, count, tensor.shape().last()));
    }

    /// What was left of the sums over rows of a tensor's gradient, if they are of rows of the same length.
    pub(crate) fn take_sums(&mut self, tensor: Tensor) -> Option<(Block, usize)> {
        let (parts, count, columns) = self.nodes[tensor.node as usize].sums.take()?;
        if columns == tensor.shape().last() {
            return Some((parts, count));
        }
        self.give_back(parts);
        None
    }

    fn add_later(
        &mut self,
        parameter: Tensor,
        (bound, start): (usize, usize),
        join: impl Fn(View, bool) -> Join,
    ) -> Result<()> {
        if self.pending.joins.is_full() {
            self.settle()?;
        }
        let node = &mut self.nodes[parameter.node as usize];
        let to = View::new(self.bound[bound].block.at() + 4 * start as u64, DType::F32);
        self.pending.joins.push(&join(to, node.grad_written));
        self.pending.nodes.push(parameter.node);
        node.grad_written = true;
        node.grad_pending = true;
        Ok(())
    }

    /// Adds what is pending to the gradients: at the end of a backward pass, and before somebody else writes one of them.
    pub(super) fn settle(&mut self) -> Result<()> {
        if let Backend::Cuda(gpu) = self.backend() {
            self.pending.joins.launch(&gpu)?;
        }
        self.forget_pending();
        Ok(())
    }

    pub(super) fn forget_pending(&mut self) {
        self.pending.joins.clear();
        for node in self.pending.nodes.drain(..) {
            if let Some(node) = self.nodes.get_mut(node as usize) {
                node.grad_pending = false;
            }
        }
        for block in self.pending.blocks.drain(..) {
            self.arena.give_back(block);
        }
    }
}
