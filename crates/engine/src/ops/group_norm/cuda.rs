//! Group-norms on a GPU: one pass over an image where a block, or a cluster of blocks, can keep it, otherwise sums over parts of it first.

use super::GroupNorm;
use crate::cuda::{Gpu, Grid, View, kernels};
use crate::memory::Block;
use crate::tape::Grad;
use crate::{DType, Result, Tape, Tensor};

/// A kernel for which a cluster of blocks keeps an image while it reads it once.
struct Keeper<Kernel> {
    kernel: Kernel,
    blocks: usize,
    threads: usize,
    /// How many times eight channels a thread keeps.
    kept: usize,
}

const fn keeper<Kernel: Copy>(kernel: Kernel, blocks: usize, threads: usize, kept: usize) -> Keeper<Kernel> {
    Keeper { kernel, blocks, threads, kept }
}

/// Out, statistics, x, gain, shift; pixels, channels, groups; epsilon, swish.
type Forward = fn(&Gpu, Grid, u64, u64, u64, u64, u64, usize, usize, usize, f32, bool) -> Result<()>;
/// dx, x, dy, statistics, gain, shift, shares, sums of dx over pixels; pixels, channels, groups; swish, add.
type Gradient =
    fn(&Gpu, Grid, u64, u64, u64, u64, u64, u64, u64, u64, usize, usize, usize, bool, bool) -> Result<()>;

/// From small to large images.
const KEEPERS: [Keeper<Forward>; 3] = [
    keeper(kernels::group_norm_128k, 4, 256, 8),
    keeper(kernels::group_norm_256k, 8, 256, 8),
    keeper(kernels::group_norm_512k, 8, 256, 16),
];

const GRADIENT_KEEPERS: [Keeper<Gradient>; 4] = [
    keeper(kernels::group_norm_gradient_32k, 1, 256, 8),
    keeper(kernels::group_norm_gradient_128k, 4, 256, 8),
    keeper(kernels::group_norm_gradient_256k, 8, 256, 8),
    keeper(kernels::group_norm_gradient_512k, 8, 512, 8),
];

impl Tape {
    /// Writes the result, and mean and inverse deviation of every channel as its group has them.
    pub(super) fn gpu_group_norm(
        &mut self,
        gpu: &Gpu,
        x: Tensor,
        [gain, shift]: [Tensor; 2],
        groups: usize,
        epsilon: f32,
        swish: bool,
        out: &Block,
        statistics: &Block,
    ) -> Result<()> {
        let sums = Sums::of(x, FORWARD_BLOCKS * gpu.processors());
        let Sums { pixels, channels, splits, .. } = sums;
        let (to, from) = (View::new(out.at(), self.float()), self.view(x));
        let (gain, shift, statistics) = (self.at(gain), self.at(shift), statistics.at());
        if sums.fits_one_block() {
            let grid = sums.whole_grid();
            return kernels::group_norm_whole(
                gpu, grid, to, statistics, from, gain, shift, pixels, channels, groups, epsilon, swish,
            );
        }
        if let Some((kernel, grid)) = keeper_for(gpu, &KEEPERS, &sums, &[x.dtype()], groups) {
            let (to, from) = (to.at, from.at);
            return kernel(
                gpu, grid, to, statistics, from, gain, shift, pixels, channels, groups, epsilon, swish,
            );
        }
        let parts = self.scratch(sums.len())?;
        let (part, grid) = (parts.at(), sums.grid());
        kernels::group_norm_sums(gpu, grid, from, part, pixels, channels, splits)?;
        let grid = Grid { shared: 20 * channels, ..grid };
        kernels::group_norm(
            gpu, grid, to, statistics, from, part, gain, shift, pixels, channels, splits, groups, epsilon,
            swish,
        )?;
        self.give_back(parts);
        Ok(())
    }
}

/// The first of these that can do it, and its grid: all tensors are in bf16, channels and groups powers of two.
fn keeper_for<Kernel: Copy>(
    gpu: &Gpu,
    keepers: &'static [Keeper<Kernel>],
    sums: &Sums,
    dtypes: &[DType],
    groups: usize,
) -> Option<(Kernel, Grid)> {
    let Sums { batch, pixels, channels, .. } = *sums;
    let fits = gpu.has_clusters()
        && dtypes.iter().all(|dtype| *dtype == DType::BF16)
        && takes_shapes(channels, groups);
    // Each of the blocks has its share of the pixels.
    let holds = |k: &&Keeper<Kernel>| pixels.div_ceil(k.blocks) * channels <= k.threads * k.kept * 8;
    let keeper = keepers.iter().filter(|_| fits).find(holds)?;
    let grid = Grid { blocks: (batch * keeper.blocks, 1), threads: keeper.threads, shared: 0 };
    Some((keeper.kernel, grid))
}

/// Whether clusters of blocks can keep images of this many channels.
pub(crate) fn takes_shapes(channels: usize, groups: usize) -> bool {
    channels.is_power_of_two() && (8..=128).contains(&channels) && groups.is_power_of_two()
}

/// How sums over the pixels of each image and channel are spread over a GPU.
struct Sums {
    batch: usize,
    pixels: usize,
    channels: usize,
    /// Blocks per image.
    splits: usize,
}

/// Resident blocks per multiprocessor: the second number of the kernels' launch bounds.
const FORWARD_BLOCKS: usize = 6;
const GRADIENT_BLOCKS: usize = 5;

impl Sums {
    /// Picks the split that wastes least of the last wave, given `at_once` resident blocks.
    fn of(x: Tensor, at_once: usize) -> Sums {
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
    fn fits_one_block(&self) -> bool {
        self.pixels <= 256 && self.channels.is_multiple_of(4) && self.channels <= 512
    }

    fn len(&self) -> usize {
        self.batch * self.splits * 2 * self.channels
    }

    fn grid(&self) -> Grid {
        // A thread keeps to its four channels, so the block is a whole number of pixels.
        let quads = self.channels.div_ceil(4);
        let threads = if quads <= 256 { 256 / quads * quads } else { 256 };
        Grid { blocks: (self.batch * self.splits, 1), threads, shared: 2 * threads * 16 }
    }

    /// For images that fit one block: where the channels divide a warp, whole warps, which add up their pixels before they share them.
    fn whole_grid(&self) -> Grid {
        let quads = self.channels / 4;
        let unit = if 32 % quads == 0 { 32 } else { quads };
        let threads = (self.pixels * quads).next_multiple_of(unit).min(1024 / unit * unit);
        Grid { blocks: (self.batch, 1), threads, shared: 4 * self.channels * (2 * (threads / unit) + 5) }
    }
}

impl GroupNorm {
    pub(super) fn gpu_backward(&self, tape: &mut Tape, gpu: &Gpu, dy: &Block) -> Result<()> {
        let sums = Sums::of(self.x, GRADIENT_BLOCKS * gpu.processors());
        let (batch, channels) = (sums.batch, sums.channels);
        let shares = tape.scratch(batch * 2 * channels)?;
        let dx = tape.grad(self.x)?;
        let mut sums_of_dx = None;
        let to = dx.as_ref().map_or(DType::BF16, |dx| dx.dtype());
        let dtypes = [self.x.dtype(), self.out.dtype(), to];
        if let Some((kernel, grid)) = keeper_for(gpu, &GRADIENT_KEEPERS, &sums, &dtypes, self.groups) {
            let (to, add) = dx.as_ref().map_or((0, false), |dx| (dx.at(), dx.accumulate));
            if tape.wants_sums(self.x) {
                sums_of_dx = Some((tape.scratch(grid.blocks.0 * channels)?, grid.blocks.0));
            }
            kernel(
                gpu,
                grid,
                to,
                tape.at(self.x),
                dy.at(),
                tape.at(self.statistics),
                tape.at(self.gain),
                tape.at(self.shift),
                shares.at(),
                sums_of_dx.as_ref().map_or(0, |(parts, _)| parts.at()),
                sums.pixels,
                channels,
                self.groups,
                self.swish,
                add,
            )?;
        } else {
            self.gpu_backward_in_parts(tape, gpu, &sums, dy, dx.as_ref(), &shares)?;
        }
        dx.into_iter().for_each(|dx| tape.put_grad(dx));
        if let Some((parts, count)) = sums_of_dx {
            tape.leave_sums(self.x, parts, count);
        }
        tape.add_sums(gpu, shares, batch, &[self.shift, self.gain])
    }

    /// Sums over parts of the images, then everything else: whatever their size and type.
    fn gpu_backward_in_parts(
        &self,
        tape: &mut Tape,
        gpu: &Gpu,
        sums: &Sums,
        dy: &Block,
        dx: Option<&Grad>,
        shares: &Block,
    ) -> Result<()> {
        let (batch, channels) = (sums.batch, sums.channels);
        let parts = tape.scratch(sums.len())?;
        let factors = tape.scratch(batch * 3 * channels)?;
        let (x, d) = (tape.view(self.x), View::new(dy.at(), self.out.dtype()));
        let (statistics, gain, shift) = (tape.at(self.statistics), tape.at(self.gain), tape.at(self.shift));
        let (pixels, splits, groups, swish) = (sums.pixels, sums.splits, self.groups, self.swish);
        let (sum, factor, grid) = (parts.at(), factors.at(), sums.grid());
        kernels::group_norm_gradient_sums(
            gpu, grid, x, d, statistics, gain, shift, sum, pixels, channels, splits, swish,
        )?;
        let n = batch * groups;
        kernels::group_norm_factors(
            gpu,
            Grid::blocks(n.div_ceil(256)),
            sum,
            statistics,
            gain,
            factor,
            shares.at(),
            pixels,
            channels,
            splits,
            groups,
            n,
        )?;
        if let Some(dx) = dx {
            let (to, add) = (dx.view(), dx.accumulate);
            kernels::group_norm_gradient(
                gpu, grid, to, x, d, statistics, gain, shift, factor, pixels, channels, splits, swish, add,
            )?;
        }
        tape.give_back(parts);
        tape.give_back(factors);
        Ok(())
    }
}
