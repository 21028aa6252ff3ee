//! Labels of sequences, made where they are: padding out, one position on.

use crate::cuda::{Grid, kernels};
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
        let each = labels.len() / mask.len().max(1);
        let mut out = self.alloc(labels.len(), DType::I32)?;
        if let Some(gpu) = self.gpu() {
            let n = labels.len();
            let (grid, labels, mask) = (Grid::elements(gpu, n), self.at(labels), self.at(mask));
            kernels::mask_labels(gpu, grid, out.at(), labels, mask, each, n)?;
        } else {
            let (labels_v, mask_v) = (self.i32(labels), self.i32(mask));
            for (i, (out, label)) in out.all_mut::<i32>().iter_mut().zip(labels_v).enumerate() {
                *out = if mask_v[i / each] != 0 { *label } else { IGNORED };
            }
        }
        Ok(self.push(out, labels.shape(), DType::I32, false))
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
        if let Some(gpu) = self.gpu() {
            let n = labels.len();
            kernels::shift_labels(gpu, Grid::elements(gpu, n), out.at(), self.at(labels), time, n)?;
        } else {
            let rows = out.all_mut::<i32>().chunks_exact_mut(time).zip(self.i32(labels).chunks_exact(time));
            for (out, row) in rows {
                out[..time - 1].copy_from_slice(&row[1..]);
                out[time - 1] = IGNORED;
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
