//! Labels of sequences, made on the device: padding ignored, shifted by one position.

use crate::backend::Backend;
use crate::cuda::{Gpu, Grid, kernels};
use crate::memory::Block;
use crate::{DType, Error, Result, Tape, Tensor};

/// A label that no loss counts.
const IGNORED: i32 = -1;

impl Tape {
    /// The labels of padded steps set to "ignore": labels i32 [.., K] or [..] and mask i32 [..], 0 for padding.
    pub fn mask_labels(&mut self, labels: Tensor, mask: Tensor) -> Result<Tensor> {
        const OP: &str = "mask labels";
        self.check(OP, labels, DType::I32)?;
        self.check(OP, mask, DType::I32)?;
        if labels.shape() != mask.shape() && labels.shape().without_last() != mask.shape() {
            let rule = "labels are [.., K] or [..] for a mask [..]";
            return Err(Error::ShapeMismatch { op: OP, lhs: labels.shape(), rhs: mask.shape(), rule });
        }
        let mut out = self.alloc(labels.len(), DType::I32)?;
        match self.backend() {
            Backend::Cpu => self.cpu_mask_labels(labels, mask, &mut out),
            Backend::Cuda(gpu) => self.gpu_mask_labels(&gpu, labels, mask, &out)?,
        }
        Ok(self.push(out, labels.shape(), DType::I32, false))
    }

    fn cpu_mask_labels(&self, labels: Tensor, mask: Tensor, out: &mut Block) {
        let each = labels.len() / mask.len().max(1);
        let (labels, mask) = (self.i32(labels), self.i32(mask));
        for (i, (out, label)) in out.all_mut::<i32>().iter_mut().zip(labels).enumerate() {
            *out = if mask[i / each] != 0 { *label } else { IGNORED };
        }
    }

    fn gpu_mask_labels(&self, gpu: &Gpu, labels: Tensor, mask: Tensor, out: &Block) -> Result<()> {
        let (n, each) = (labels.len(), labels.len() / mask.len().max(1));
        let (grid, labels, mask) = (Grid::elements(gpu, n), self.at(labels), self.at(mask));
        kernels::mask_labels(gpu, grid, out.at(), labels, mask, each, n)
    }

    /// Labels for predicting the next element of each row: element t becomes element t + 1, the last "ignore". i32 [.., T] -> [.., T]
    pub fn shift_labels(&mut self, labels: Tensor) -> Result<Tensor> {
        const OP: &str = "shift labels";
        self.check(OP, labels, DType::I32)?;
        let time = labels.shape().last();
        if labels.shape().rank() == 0 || time == 0 {
            return Err(Error::BadShape { op: OP, shape: labels.shape(), rule: "labels are [.., T]" });
        }
        let mut out = self.alloc(labels.len(), DType::I32)?;
        match self.backend() {
            Backend::Cpu => {
                let labels = self.i32(labels).chunks_exact(time);
                for (out, row) in out.all_mut::<i32>().chunks_exact_mut(time).zip(labels) {
                    out[..time - 1].copy_from_slice(&row[1..]);
                    out[time - 1] = IGNORED;
                }
            }
            Backend::Cuda(gpu) => {
                let n = labels.len();
                kernels::shift_labels(&gpu, Grid::elements(&gpu, n), out.at(), self.at(labels), time, n)?;
            }
        }
        Ok(self.push(out, labels.shape(), DType::I32, false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::integers;
    use crate::{Device, Key, Stepper};

    #[test]
    fn padding_is_ignored_and_the_next_label_predicted() -> Result<()> {
        let device = Device::under_test(1)?;
        Stepper::new(&device, Key::new(0, 0)).run(|tape| {
            let labels = integers(tape, &[1, 2, 3, 4, 5, 6]);
            let labels = tape.reshape(labels, [3, 2])?;
            let mask = integers(tape, &[1, 0, 1]);
            let masked = tape.mask_labels(labels, mask)?;
            assert_eq!(tape.read::<i32>(masked)?, [1, 2, -1, -1, 5, 6]);
            let masked = tape.mask_labels(mask, mask)?;
            assert_eq!(tape.read::<i32>(masked)?, [1, -1, 1]);
            let shifted = tape.shift_labels(labels)?;
            assert_eq!(tape.read::<i32>(shifted)?, [2, -1, 4, -1, 6, -1]);
            let error = tape.mask_labels(mask, labels).unwrap_err();
            assert!(error.to_string().starts_with("mask labels: shapes [3] and [3, 2] do not fit"));
            Ok(())
        })
    }
}
