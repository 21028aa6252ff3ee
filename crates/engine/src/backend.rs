//! Which of an op's two implementations runs.

use std::sync::Arc;

use crate::cuda::Gpu;

/// What a step computes on. An op matches on it once and calls one of two functions with the same arguments. Without the feature `cuda` no
/// value of the second kind can be made, since `Gpu` is uninhabited.
#[derive(Clone)]
pub(crate) enum Backend {
    Cpu,
    Cuda(Arc<Gpu>),
}
