//! What can go wrong in the engine.

use crate::{DType, Shape};

/// Everything that can go wrong in the engine. Variants carry the values, so that a message names the op and both shapes.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    #[error("{op}: shapes {lhs} and {rhs} do not fit: {rule}")]
    ShapeMismatch { op: &'static str, lhs: Shape, rhs: Shape, rule: &'static str },

    #[error("{op}: cannot take a tensor of shape {shape}: {rule}")]
    BadShape { op: &'static str, shape: Shape, rule: &'static str },

    #[error("{op}: expected {expected} values, got {got}")]
    DTypeMismatch { op: &'static str, expected: DType, got: DType },

    #[error("{op}: index {index} at position {position} is outside 0..{limit}")]
    IndexOutOfRange { op: &'static str, index: i64, position: usize, limit: usize },

    #[error("{op}: range {start}..{end} is outside 0..{limit}")]
    RangeOutOfBounds { op: &'static str, start: usize, end: usize, limit: usize },

    #[error("{op}: {name} is {value}, but must be {rule}")]
    BadArgument { op: &'static str, name: &'static str, value: f64, rule: &'static str },

    #[error("{what} is {value}: the computation has diverged (a smaller learning rate usually helps)")]
    NotFinite { what: &'static str, value: f32 },

    #[error("{op}: this tensor belongs to another or an earlier step; tensors live until their step ends")]
    StaleTensor { op: &'static str },

    #[error("`{name}` is in use by another step; finish that one first")]
    InUse { name: String },

    #[error("`{name}` lies on another device than the step that uses it; make it with the step's device")]
    OtherDevice { name: String },

    #[error("`{name}` holds {expected} values, but {got} were given")]
    WrongLength { name: String, expected: usize, got: usize },

    #[error("no parameter is called `{name}`")]
    UnknownParameter { name: String },

    #[error("the parameters of `{name}` are frozen and cannot be optimised")]
    Frozen { name: String },

    #[error("a tensor of {rank} dimensions was asked for; the engine knows up to {limit}")]
    TooManyDimensions { rank: usize, limit: usize },

    #[error(
        "{op}: there is no gradient here: the loss depends on no parameter, its record was used up, or nothing was recorded"
    )]
    NoGradient { op: &'static str },

    #[error("`{name}` would have {count} parameters, but at most {limit} fit")]
    TooManyParameters { name: String, count: usize, limit: usize },

    #[error("bad config: {reason}")]
    BadConfig { reason: String },

    #[error("no GPU can be used: {reason}")]
    NoGpu { reason: String },

    #[error("{what} failed on the GPU: {reason}")]
    Gpu { what: &'static str, reason: String },

    #[error(
        "{place} has no memory for {what}: {} more were asked for; smaller batches, smaller networks or fewer steps need less",
        binary_size(*bytes)
    )]
    OutOfMemory { what: String, bytes: usize, place: &'static str },

    #[error("cannot start {threads} threads: {reason}")]
    Threads { threads: usize, reason: String },
}

impl Error {
    /// Whether it says that no GPU can be used here: none, no driver or library, or a build without support. Not that one failed.
    pub fn is_no_gpu(&self) -> bool {
        matches!(self, Error::NoGpu { .. })
    }
}

/// 1536 as "1.5 KiB".
fn binary_size(bytes: usize) -> String {
    let mut size = bytes as f64;
    let mut units = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"].into_iter();
    let mut unit = units.next().unwrap_or_default();
    for larger in units {
        if size < 1024.0 {
            break;
        }
        (size, unit) = (size / 1024.0, larger);
    }
    format!("{size:.*} {unit}", usize::from(unit != "bytes"))
}

pub type Result<T, E = Error> = std::result::Result<T, E>;
