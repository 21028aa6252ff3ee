//! Attention on a GPU with its scores in registers: heads of 64 in bf16.

use super::{Attention, Setup};
use crate::cuda::{Gpu, Grid, kernels};
use crate::memory::Block;
use crate::{DType, Result, Tape, Tensor};

/// Head width that the kernels are written for.
pub(crate) const FLASH_HEAD: usize = 64;

/// Rows of a tile, of queries as of keys.
const SIDE: usize = 64;

/// Where queries, keys and values lie, or their gradients: rows of `stride` elements in bf16.
#[derive(Clone, Copy)]
pub(super) struct Inputs {
    pub q: u64,
    pub k: u64,
    pub v: u64,
    pub stride: usize,
}

/// What the forward pass leaves for the gradients.
#[derive(Clone, Copy)]
pub(super) struct Saved {
    /// The logarithm to base 2 of each row's softmax denominator, [B, heads, T].
    pub normaliser: Tensor,
    /// Which weights dropout kept, a bit each; absent without dropout.
    pub kept: Option<Tensor>,
    pub out: Tensor,
}

impl Setup {
    /// Whether the kernels can do it.
    pub(super) fn is_flash(&self, dtype: DType) -> bool {
        dtype == DType::BF16 && self.head_width() == FLASH_HEAD
    }

    /// A block for each head and 64 of its rows.
    fn flash_grid(&self) -> Grid {
        Grid { blocks: (self.batch * self.heads, self.time.div_ceil(SIDE)), threads: 128, shared: 0 }
    }

    /// Words of the dropout masks that the forward kernel keeps: 64 x 64 bits for each head, 64 queries and 64 keys.
    pub(super) fn mask_words(&self) -> usize {
        self.batch * self.heads * self.time.div_ceil(SIDE).pow(2) * (SIDE * SIDE / 32)
    }

    /// Returns the dropout masks, if there are any.
    pub(super) fn flash_forward(
        &self,
        tape: &mut Tape,
        gpu: &Gpu,
        inputs: Inputs,
        out: &Block,
        normaliser: &Block,
    ) -> Result<Option<Block>> {
        let kept = (self.dropout > 0.0).then(|| tape.alloc(self.mask_words(), DType::I32)).transpose()?;
        kernels::flash_forward(
            gpu,
            self.flash_grid(),
            out.at(),
            normaliser.at(),
            kept.as_ref().map_or(0, Block::at),
            inputs.q,
            inputs.k,
            inputs.v,
            self.time,
            self.heads,
            inputs.stride,
            self.block,
            self.scale(),
            self.dropout,
            tape.state(),
            self.site.number() as usize,
        )?;
        Ok(kept)
    }

    /// Overwrites the gradients of all three inputs, which lie as the inputs do.
    pub(super) fn flash_gradients(
        &self,
        tape: &mut Tape,
        gpu: &Gpu,
        inputs: Inputs,
        gradients: Inputs,
        saved: Saved,
        d_out: &Block,
    ) -> Result<()> {
        let inner = tape.scratch(self.batch * self.heads * self.time)?;
        let (normaliser, kept) = (tape.at(saved.normaliser), saved.kept.map_or(0, |kept| tape.at(kept)));
        kernels::flash_gradient_queries(
            gpu,
            self.flash_grid(),
            gradients.q,
            inner.at(),
            inputs.q,
            inputs.k,
            inputs.v,
            tape.at(saved.out),
            d_out.at(),
            normaliser,
            kept,
            self.time,
            self.heads,
            inputs.stride,
            self.block,
            self.scale(),
            self.dropout,
        )?;
        kernels::flash_gradient_keys(
            gpu,
            self.flash_grid(),
            gradients.k,
            gradients.v,
            inputs.q,
            inputs.k,
            inputs.v,
            d_out.at(),
            normaliser,
            inner.at(),
            kept,
            self.time,
            self.heads,
            inputs.stride,
            self.block,
            self.scale(),
            self.dropout,
        )?;
        tape.give_back(inner);
        Ok(())
    }
}

impl Tape {
    pub(super) fn gpu_flash(
        &mut self,
        gpu: &Gpu,
        setup: &Setup,
        inputs: [Tensor; 3],
        out: &Block,
        normaliser: &Block,
    ) -> Result<Option<Block>> {
        let [q, k, v] = inputs.map(|x| self.gpu_operand(gpu, x, DType::BF16));
        let (q, k, v) = (q?, k?, v?);
        let at = Inputs { q: q.at, k: k.at, v: v.at, stride: setup.width };
        let kept = setup.flash_forward(self, gpu, at, out, normaliser)?;
        [q, k, v].into_iter().for_each(|operand| self.release(operand));
        Ok(kept)
    }
}

impl Attention {
    pub(super) fn flash_backward(&self, tape: &mut Tape, gpu: &Gpu, d_out: &Block) -> Result<()> {
        let [q, k, v] = [self.q, self.k, self.v].map(|x| tape.gpu_operand(gpu, x, DType::BF16));
        let (q, k, v) = (q?, k?, v?);
        // Into blocks of their own: one tensor may be several of the inputs.
        let [dq, dk, dv] = [(); 3].map(|()| tape.alloc(self.q.len(), DType::BF16));
        let (dq, dk, dv) = (dq?, dk?, dv?);
        let stride = self.setup.width;
        let inputs = Inputs { q: q.at, k: k.at, v: v.at, stride };
        let gradients = Inputs { q: dq.at(), k: dk.at(), v: dv.at(), stride };
        let saved = Saved { normaliser: self.normaliser, kept: self.kept, out: self.out };
        self.setup.flash_gradients(tape, gpu, inputs, gradients, saved, d_out)?;
        for (input, gradient) in [(self.q, dq), (self.k, dk), (self.v, dv)] {
            tape.hand_grad(input, gradient, DType::BF16)?;
        }
        [q, k, v].into_iter().for_each(|operand| tape.release(operand));
        Ok(())
    }
}
