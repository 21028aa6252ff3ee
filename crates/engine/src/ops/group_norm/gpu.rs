//! Group-norms on a GPU: one pass over an image where a block, or a cluster of blocks, can keep it, otherwise sums over parts of it first.

use super::GroupNorm;
use crate::cuda::{Arg, Grid};
use crate::memory::Block;
use crate::tape::Grad;
use crate::{DType, Result, Tape, Tensor};

/// A kernel for which a cluster of blocks keeps an image while it reads it once.
pub(super) struct Keeper {
    kernel: &'static str,
    blocks: usize,
    threads: usize,
    /// How many times eight channels a thread keeps.
    kept: usize,
}

const fn keeper(kernel: &'static str, blocks: usize, threads: usize, kept: usize) -> Keeper {
    Keeper { kernel, blocks, threads, kept }
}

/// From small to large images.
pub(super) const KEEPERS: [Keeper; 3] = [
    keeper("group_norm_128k", 4, 256, 8),
    keeper("group_norm_256k", 8, 256, 8),
    keeper("group_norm_512k", 8, 256, 16),
];

const GRADIENT_KEEPERS: [Keeper; 4] = [
    keeper("group_norm_gradient_32k", 1, 256, 8),
    keeper("group_norm_gradient_128k", 4, 256, 8),
    keeper("group_norm_gradient_256k", 8, 256, 8),
    keeper("group_norm_gradient_512k", 8, 512, 8),
];

impl Tape {
    /// The first of these that can do it, and its grid: all tensors are in bf16, channels and groups powers of two.
    pub(super) fn keeper_for(
        &self,
        keepers: &'static [Keeper],
        sums: &Sums,
        dtypes: &[DType],
        groups: usize,
    ) -> Option<(&'static str, Grid)> {
        let Sums { batch, pixels, channels, .. } = *sums;
        let fits = self.gpu()?.has_clusters()
            && dtypes.iter().all(|dtype| *dtype == DType::BF16)
            && channels.is_power_of_two()
            && (8..=128).contains(&channels)
            && groups.is_power_of_two();
        // Each of the blocks has its share of the pixels.
        let holds = |k: &&Keeper| pixels.div_ceil(k.blocks) * channels <= k.threads * k.kept * 8;
        let keeper = keepers.iter().filter(|_| fits).find(holds)?;
        let grid = Grid { blocks: (batch * keeper.blocks, 1), threads: keeper.threads, shared: 0 };
        Some((keeper.kernel, grid))
    }
}

/// How sums over the pixels of each image and channel are spread over a GPU.
pub(super) struct Sums {
    batch: usize,
    pub(super) pixels: usize,
    channels: usize,
    /// Blocks per image.
    pub(super) splits: usize,
}

/// Blocks that run at once on 132 processors, of the kernels of the forward pass and of those of the gradient.
pub(super) const FORWARD_BLOCKS: usize = 132 * 6;
const GRADIENT_BLOCKS: usize = 132 * 5;

impl Sums {
    /// In so many blocks that the last of them, `at_once` running at a time, leave the least of the GPU idle.
    pub(super) fn of(x: Tensor, at_once: usize) -> Sums {
        let dims = x.dims();
        let (batch, pixels, channels) = (dims[0], dims[1] * dims[2], dims[3]);
        let most = (2 * at_once).div_ceil(batch).min(pixels.div_ceil(64));
        let idle = |splits: &usize| {
            let blocks = batch * splits;
            let rounds = blocks.div_ceil(at_once);
            // Of the time of all rounds, in parts of a thousand.
            1000 - 1000 * blocks / (rounds * at_once)
        };
        Sums { batch, pixels, channels, splits: (1..=most).min_by_key(idle).unwrap_or(1) }
    }

    /// Small enough that three launches would take longer than one block per image.
    pub(super) fn fits_one_block(&self) -> bool {
        self.pixels <= 256 && self.channels.is_multiple_of(4) && self.channels <= 512
    }

    pub(super) fn len(&self) -> usize {
        self.batch * self.splits * 2 * self.channels
    }

    pub(super) fn grid(&self) -> Grid {
        // A thread keeps to its four channels, so the block is a whole number of pixels.
        let quads = self.channels.div_ceil(4);
        let threads = if quads <= 256 { 256 / quads * quads } else { 256 };
        Grid { blocks: (self.batch * self.splits, 1), threads, shared: 2 * threads * 16 }
    }

    /// For images that fit one block: where the channels divide a warp, whole warps, which add up their pixels before they share them.
    pub(super) fn whole_grid(&self) -> Grid {
        let quads = self.channels / 4;
        let unit = if 32 % quads == 0 { 32 } else { quads };
        let threads = (self.pixels * quads).next_multiple_of(unit).min(1024 / unit * unit);
        Grid { blocks: (self.batch, 1), threads, shared: 4 * self.channels * (2 * (threads / unit) + 5) }
    }
}

impl GroupNorm {
    pub(super) fn gpu_backward(self, tape: &mut Tape, dy: Block) -> Result<()> {
        let sums = Sums::of(self.x, GRADIENT_BLOCKS);
        let (batch, channels) = (sums.batch, sums.channels);
        let shares = tape.scratch(batch * 2 * channels);
        let dx = tape.grad(self.x);
        let to = dx.as_ref().map_or(DType::BF16, |dx| dx.dtype());
        let dtypes = [self.x.dtype(), self.out.dtype(), to];
        if let Some((kernel, grid)) = tape.keeper_for(&GRADIENT_KEEPERS, &sums, &dtypes, self.groups) {
            let (to, add) = dx.as_ref().map_or((0, false), |dx| (dx.at(), dx.accumulate));
            let inputs = [self.x, self.statistics, self.gain, self.shift].map(|tensor| tape.at(tensor));
            let [x, statistics, gain, shift] = inputs;
            let at = [to, x, dy.at(), statistics, gain, shift, shares.at()].map(Arg::At);
            let sizes = [sums.pixels, channels, self.groups].map(Arg::U32);
            let args = [&at[..], &sizes, &[Arg::Flag(self.swish), Arg::Flag(add)]].concat();
            tape.gpu().map_or(Ok(()), |gpu| gpu.launch(kernel, grid, &args))?;
        } else {
            self.gpu_backward_in_parts(tape, &sums, &dy, dx.as_ref(), &shares)?;
        }
        dx.into_iter().for_each(|dx| tape.put_grad(dx));
        for (part, parameter) in [(0, self.shift), (1, self.gain)] {
            if let Some(grad) = tape.grad(parameter) {
                let (first, stride) = (part * channels, 2 * channels);
                tape.gpu_join_columns(grad.view(), &shares, first, batch, stride, channels, grad.accumulate)?;
                tape.put_grad(grad);
            }
        }
        for block in [shares, dy] {
            tape.give_back(block);
        }
        Ok(())
    }

    /// Sums over parts of the images, then everything else: whatever their size and type.
    fn gpu_backward_in_parts(
        &self,
        tape: &mut Tape,
        sums: &Sums,
        dy: &Block,
        dx: Option<&Grad>,
        shares: &Block,
    ) -> Result<()> {
        let (batch, channels) = (sums.batch, sums.channels);
        let parts = tape.scratch(sums.len());
        let factors = tape.scratch(batch * 3 * channels);
        let d = Arg::View(dy.at(), self.out.dtype());
        let statistics = Arg::At(tape.at(self.statistics));
        let (gain, shift) = (Arg::At(tape.at(self.gain)), Arg::At(tape.at(self.shift)));
        let swish = Arg::Flag(self.swish);
        if let Some(gpu) = tape.gpu() {
            let sizes = [sums.pixels, channels, sums.splits].map(Arg::U32);
            let tensors = [tape.view(self.x), d, statistics, gain, shift, Arg::At(parts.at())];
            let args = [&tensors[..], &sizes, &[swish]].concat();
            gpu.launch("group_norm_gradient_sums", sums.grid(), &args)?;
            let tensors =
                [Arg::At(parts.at()), statistics, gain, Arg::At(factors.at()), Arg::At(shares.at())];
            let groups = [Arg::U32(self.groups), Arg::U32(batch * self.groups)];
            let args = [&tensors[..], &sizes, &groups].concat();
            gpu.launch("group_norm_factors", Grid::blocks((batch * self.groups).div_ceil(256)), &args)?;
            if let Some(dx) = dx {
                let tensors =
                    [dx.view(), tape.view(self.x), d, statistics, gain, shift, Arg::At(factors.at())];
                let args = [&tensors[..], &sizes, &[swish, Arg::Flag(dx.accumulate)]].concat();
                gpu.launch("group_norm_gradient", sums.grid(), &args)?;
            }
        }
        tape.give_back(parts);
        tape.give_back(factors);
        Ok(())
    }
}
