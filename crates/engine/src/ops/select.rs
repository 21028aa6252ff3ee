//! Choosing between rows of two tensors by a mask.

use crate::backend::Backend;
use crate::cuda::{Gpu, Grid, View, kernels};
use crate::memory::Block;
use crate::{DType, Error, Result, Tape, Tensor};

const OP: &str = "select rows";

impl Tape {
    /// Row b of `yes` where the mask is not zero, of `no` elsewhere, without gradient: mask i32 `[B]`, yes, no [B, ..] -> [B, ..]
    pub fn select_rows(&mut self, mask: Tensor, yes: Tensor, no: Tensor) -> Result<Tensor> {
        self.check(OP, mask, DType::I32)?;
        self.check_f32(OP, &[yes, no])?;
        if yes.shape() != no.shape() {
            let rule = "both choices have the same shape";
            return Err(Error::ShapeMismatch { op: OP, lhs: yes.shape(), rhs: no.shape(), rule });
        }
        if mask.shape().rank() != 1 || yes.dims().first() != mask.dims().first() {
            let rule = "the mask is [B] for choices [B, ..]";
            return Err(Error::ShapeMismatch { op: OP, lhs: mask.shape(), rhs: yes.shape(), rule });
        }
        let dtype = self.joint(&[yes, no]);
        let mut out = self.alloc(yes.len(), dtype)?;
        match self.backend() {
            Backend::Cpu => self.cpu_select_rows(mask, yes, no, &mut out),
            Backend::Cuda(gpu) => self.gpu_select_rows(&gpu, mask, yes, no, &out)?,
        }
        Ok(self.push(out, yes.shape(), dtype, false))
    }

    fn cpu_select_rows(&self, mask: Tensor, yes: Tensor, no: Tensor, out: &mut Block) {
        let row = yes.len() / mask.len().max(1);
        for (b, &flag) in self.i32(mask).iter().enumerate() {
            let range = b * row..(b + 1) * row;
            let source = if flag != 0 { yes } else { no };
            out.f32_mut()[range.clone()].copy_from_slice(&self.f32(source)[range]);
        }
    }

    fn gpu_select_rows(&self, gpu: &Gpu, mask: Tensor, yes: Tensor, no: Tensor, out: &Block) -> Result<()> {
        let (n, row) = (yes.len(), yes.len() / mask.len().max(1));
        let (grid, to) = (Grid::elements(gpu, n), View::new(out.at(), self.joint(&[yes, no])));
        kernels::select_rows(gpu, grid, to, self.at(mask), self.view(yes), self.view(no), row, n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{integers, on_tape, values};

    #[test]
    fn picks_whole_rows() -> Result<()> {
        let out = on_tape(&[&[3, 2], &[3, 2]], |tape, x| {
            let mask = integers(tape, &[1, 0, 1]);
            tape.select_rows(mask, x[0], x[1])
        })?;
        let (yes, no) = (values(6, 0), values(6, 1));
        assert_eq!(out, [&yes[..2], &no[2..4], &yes[4..]].concat());
        let error = on_tape(&[&[3, 2], &[3, 2]], |tape, x| {
            let mask = integers(tape, &[1, 0]);
            tape.select_rows(mask, x[0], x[1])
        });
        assert!(error.unwrap_err().to_string().contains("the mask is [B] for choices [B, ..]"));
        Ok(())
    }
}
