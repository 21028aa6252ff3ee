//! Which networks a GPU's fastest kernels are written for. Others compute the same with single ops, and take longer.

use crate::ops::{attention, decode, group_norm, image_blocks};
use crate::{DType, Device};

/// The shapes that decide.
#[derive(Clone, Copy, Debug)]
pub struct NetworkShapes {
    /// Channels of the residual blocks; 0 for a network without any.
    pub channels: usize,
    /// Groups of their norms.
    pub groups: usize,
    /// Width of the transformer.
    pub width: usize,
    /// Heads of its attention.
    pub heads: usize,
    /// Width of its hidden layers; 0 for one that imagines no single tokens.
    pub hidden: usize,
}

impl Device {
    /// Why networks of these shapes are not as fast here as they could be: a line per reason. Empty on the CPU.
    pub fn slow_paths(&self, shapes: &NetworkShapes) -> Vec<String> {
        match self.is_gpu() {
            true => reasons(shapes, self.float()),
            false => Vec::new(),
        }
    }
}

fn reasons(shapes: &NetworkShapes, dtype: DType) -> Vec<String> {
    if dtype == DType::F32 {
        return vec!["the fused kernels need bf16 activations; with f32 every op runs by itself".into()];
    }
    let &NetworkShapes { channels, groups, width, heads, hidden } = shapes;
    let (head_width, fused) = (width / heads.max(1), image_blocks::CHANNELS);
    let mut reasons = Vec::new();
    if head_width != attention::FLASH_HEAD {
        let best = attention::FLASH_HEAD;
        reasons
            .push(format!("attention with heads of {head_width} stores its scores; heads of {best} do not"));
    }
    let by_token = hidden > 0;
    if by_token && !decode::takes_shapes(width, head_width, hidden) {
        reasons.push(format!(
            "an imagined token of width {width} with heads of {head_width} runs op by op; the fused kernels take heads of 64 and widths up to 512"
        ));
    } else if by_token && !decode::takes_blocks(width, head_width, hidden) {
        reasons.push(format!(
            "an imagined token of width {width} takes several kernels; one kernel for whole frames takes width 256, heads of 64 and hidden layers of 1024"
        ));
    }
    if channels > 0 && channels != fused {
        reasons.push(format!(
            "blocks over small images of {channels} channels run op by op; the fused kernels take {fused}"
        ));
    }
    if channels > 0 && !group_norm::takes_shapes(channels, groups) {
        reasons.push(format!(
            "group-norms of {channels} channels in {groups} groups read their images twice; powers of two from 8 to 128 are read once"
        ));
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAPER: NetworkShapes =
        NetworkShapes { channels: 64, groups: 32, width: 256, heads: 4, hidden: 1024 };

    #[test]
    fn the_papers_networks_are_on_every_fast_path() {
        assert_eq!(reasons(&PAPER, DType::BF16), Vec::<String>::new());
        assert_eq!(reasons(&PAPER, DType::F32).len(), 1);
        assert!(Device::cpu(Some(1)).unwrap().slow_paths(&PAPER).is_empty());
    }

    #[test]
    fn whatever_leaves_one_is_named() {
        let wide = reasons(&NetworkShapes { channels: 96, ..PAPER }, DType::BF16);
        assert!(wide.len() == 2 && wide.iter().all(|reason| reason.contains("96 channels")), "{wide:?}");
        let small = reasons(&NetworkShapes { width: 128, heads: 2, hidden: 512, ..PAPER }, DType::BF16);
        assert!(small.len() == 1 && small[0].contains("width 128 takes several kernels"), "{small:?}");
        assert!(reasons(&NetworkShapes { channels: 0, groups: 8, ..PAPER }, DType::BF16).is_empty());
        assert!(reasons(&NetworkShapes { width: 384, heads: 6, hidden: 0, ..PAPER }, DType::BF16).is_empty());
        let heads = reasons(&NetworkShapes { heads: 8, ..PAPER }, DType::BF16);
        assert!(heads.len() == 2 && heads.iter().all(|reason| reason.contains("heads of 32")), "{heads:?}");
    }
}
