//! What ops on a GPU ask the tape for: addresses, types, copies.

use super::{Bound, Data, Tape};
use crate::cuda::{Gpu, Grid, View, kernels};
use crate::memory::Block;
use crate::{Buffer, DType, Result, Tensor};

/// A tensor's values in the type an op wants them in.
pub(crate) struct Operand {
    pub at: u64,
    temporary: Option<Block>,
}

impl Operand {
    /// Values that somebody else owns.
    pub fn at(at: u64) -> Operand {
        Operand { at, temporary: None }
    }

    pub fn temporary(block: Block) -> Operand {
        Operand { at: block.at(), temporary: Some(block) }
    }
}

impl Tape {
    /// How activations are stored.
    pub(crate) fn float(&self) -> DType {
        self.device.float()
    }

    /// How a result of these is stored: exactly if they all are.
    pub(crate) fn joint(&self, tensors: &[Tensor]) -> DType {
        match tensors.iter().all(|t| t.dtype == DType::F32) {
            true => DType::F32,
            false => self.float(),
        }
    }

    /// Where a tensor lies on the GPU.
    pub(crate) fn at(&self, tensor: Tensor) -> u64 {
        match &self.nodes[tensor.node as usize].data {
            Data::Owned(block) => block.at(),
            Data::Bound { bound, start } => {
                self.bound[*bound].block.at() + (start * tensor.dtype.size()) as u64
            }
        }
    }

    /// Whether it was there before the step: a parameter, or a buffer.
    pub(crate) fn is_bound(&self, tensor: Tensor) -> bool {
        matches!(self.nodes[tensor.node as usize].data, Data::Bound { .. })
    }

    pub(crate) fn view(&self, tensor: Tensor) -> View {
        View::new(self.at(tensor), tensor.dtype)
    }

    pub(crate) fn view_of(&self, tensor: Option<Tensor>) -> View {
        tensor.map_or(View::NOTHING, |t| self.view(t))
    }

    /// The key of the step's random numbers on the GPU.
    pub(crate) fn state(&self) -> u64 {
        self.state.as_ref().map_or(0, Block::at)
    }

    /// Where a buffer lies on the GPU.
    pub(crate) fn buffer_at(&mut self, buffer: &Buffer) -> Result<u64> {
        let bound = self.bind(buffer)?;
        Ok(self.bound[bound].block.at())
    }

    /// Where a tensor's values lie on the GPU as `dtype`, if they are stored like that: those of parameters are in both types.
    pub(crate) fn at_as(&self, tensor: Tensor, dtype: DType) -> Option<u64> {
        if tensor.dtype == dtype {
            return Some(self.at(tensor));
        }
        if dtype == DType::BF16
            && let Data::Bound { bound, start } = self.nodes[tensor.node as usize].data
            && let Some(params) = self.params.iter().find(|p| p.values == bound)
            && let Some(narrow) = params.narrow
        {
            return Some(self.bound[narrow].block.at() + 2 * start as u64);
        }
        None
    }

    /// A tensor's values on the GPU as `dtype`, copied if they are stored otherwise. Give it back with [`release`](Tape::release).
    pub(crate) fn gpu_operand(&mut self, gpu: &Gpu, tensor: Tensor, dtype: DType) -> Result<Operand> {
        if let Some(at) = self.at_as(tensor, dtype) {
            return Ok(Operand::at(at));
        }
        let copy = self.alloc(tensor.len(), dtype)?;
        let (n, to) = (tensor.len(), View::new(copy.at(), dtype));
        kernels::copy(gpu, Grid::elements(gpu, n), to, self.view(tensor), n, false)?;
        Ok(Operand::temporary(copy))
    }

    pub(crate) fn release(&mut self, operand: Operand) {
        if let Some(block) = operand.temporary {
            self.give_back(block);
        }
    }

    /// Elements of a tensor into a bound buffer, of any two types of numbers or of the same type.
    pub(super) fn gpu_store_rows(
        &self,
        gpu: &Gpu,
        bound: usize,
        start: usize,
        tensor: Tensor,
        from: usize,
        len: usize,
    ) -> Result<()> {
        let Bound { slot, block } = &self.bound[bound];
        let size = tensor.dtype.size();
        if slot.dtype == tensor.dtype {
            let (to, from) = (block.at() + (start * size) as u64, self.at(tensor) + (from * size) as u64);
            return gpu.copy(to, from, len * size);
        }
        let (grid, to) = (Grid::elements(gpu, len), View::new(block.at(), slot.dtype));
        kernels::copy_at(gpu, grid, to, start, self.view(tensor), from, len, false)
    }
}
