//! Writing to buffers inside a step.

use super::{Data, Node, Tape};
use crate::backend::Backend;
use crate::cuda::{Grid, View, kernels};
use crate::{Buffer, DType, Element, Error, Result, Tensor};

impl Tape {
    /// Copies a tensor into a buffer, from element `start` on.
    pub fn store(&mut self, buffer: &Buffer, start: usize, tensor: Tensor) -> Result<()> {
        const OP: &str = "store";
        self.check(OP, tensor, buffer.dtype())?;
        let (end, limit) = (start.saturating_add(tensor.len()), buffer.shape().len());
        if end > limit {
            return Err(Error::RangeOutOfBounds { op: OP, start, end, limit });
        }
        self.store_rows(buffer, start, tensor, 0, tensor.len())
    }

    /// Binds a buffer that a tensor is to be stored into.
    pub(crate) fn writable(&mut self, buffer: &Buffer, tensor: Tensor) -> Result<usize> {
        let bound = self.bind(buffer)?;
        let reads = |node: &Node| matches!(node.data, Data::Bound { bound: b, .. } if b == bound);
        // Gradients still need what recorded ops have read.
        let recorded = !self.records.is_empty() && self.nodes.iter().any(reads);
        match recorded || reads(&self.nodes[tensor.node as usize]) {
            true => Err(Error::InUse { name: buffer.slot.name.clone() }),
            false => Ok(bound),
        }
    }

    /// Copies elements `from..from + len` of a tensor to elements `start..` of a buffer.
    pub(crate) fn store_rows(
        &mut self,
        buffer: &Buffer,
        start: usize,
        tensor: Tensor,
        from: usize,
        len: usize,
    ) -> Result<()> {
        let bound = self.writable(buffer, tensor)?;
        match self.backend() {
            Backend::Cpu => {
                self.cpu_store_rows(bound, start, tensor, from, len);
                Ok(())
            }
            Backend::Cuda(gpu) => self.gpu_store_rows(&gpu, bound, start, tensor, from, len),
        }
    }

    fn cpu_store_rows(&mut self, bound: usize, start: usize, tensor: Tensor, from: usize, len: usize) {
        let mut block = std::mem::take(&mut self.bound[bound].block);
        let size = tensor.dtype.size();
        let source = &self.bytes(tensor)[from * size..(from + len) * size];
        block.all_mut::<u8>()[start * size..(start + len) * size].copy_from_slice(source);
        self.bound[bound].block = block;
    }

    /// Gives `f` a bound buffer to change in place, beside read access to the tape.
    pub(crate) fn with_buffer_mut<T: Element, R>(
        &mut self,
        buffer: &Buffer,
        f: impl FnOnce(&Tape, &mut [T]) -> R,
    ) -> Result<R> {
        let bound = self.bind(buffer)?;
        let mut block = std::mem::take(&mut self.bound[bound].block);
        let result = f(self, block.all_mut::<T>());
        self.bound[bound].block = block;
        Ok(result)
    }

    /// Adds a scalar to element `index` of a buffer: how losses are collected over many steps.
    pub fn accumulate(&mut self, buffer: &Buffer, index: usize, scalar: Tensor) -> Result<()> {
        const OP: &str = "accumulate";
        self.check_f32(OP, &[scalar])?;
        if buffer.dtype() != DType::F32 || scalar.len() != 1 || index >= buffer.shape().len() {
            let rule = "a scalar is added to one element of an f32 buffer";
            return Err(Error::ShapeMismatch { op: OP, lhs: buffer.shape(), rhs: scalar.shape, rule });
        }
        let bound = self.bind(buffer)?;
        match self.backend() {
            Backend::Cpu => {
                let value = self.f32(scalar)[0];
                self.bound[bound].block.f32_mut()[index] += value;
                Ok(())
            }
            Backend::Cuda(gpu) => {
                let to = View::new(self.bound[bound].block.at() + 4 * index as u64, DType::F32);
                kernels::copy(&gpu, Grid::blocks(1), to, self.view(scalar), 1, true)
            }
        }
    }
}
