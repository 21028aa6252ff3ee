//! What can go wrong in the engine.

use crate::{DType, Shape};

/// Everything that can go wrong in the engine. Variants carry the values, so that a message names the op and both shapes.
// The messages say what the fields are.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs)]
pub enum Error {
    /// Two shapes that an op cannot take together.
    #[error("{op}: shapes {lhs} and {rhs} do not fit: {rule}")]
    ShapeMismatch { op: &'static str, lhs: Shape, rhs: Shape, rule: &'static str },

    /// A shape that an op cannot take.
    #[error("{op}: cannot take a tensor of shape {shape}: {rule}")]
    BadShape { op: &'static str, shape: Shape, rule: &'static str },

    /// Elements of another type than an op or a buffer has.
    #[error("{op}: expected {expected} values, got {got}")]
    DTypeMismatch { op: &'static str, expected: DType, got: DType },

    /// An index outside of what it points into.
    #[error("{op}: index {index} at position {position} is outside 0..{limit}")]
    IndexOutOfRange { op: &'static str, index: i64, position: usize, limit: usize },

    /// A range outside of what it is taken from.
    #[error("{op}: range {start}..{end} is outside 0..{limit}")]
    RangeOutOfBounds { op: &'static str, start: usize, end: usize, limit: usize },

    /// A number that an op cannot take.
    #[error("{op}: {name} is {value}, but must be {rule}")]
    BadArgument { op: &'static str, name: &'static str, value: f64, rule: &'static str },

    /// A loss or a gradient that is NaN or infinite.
    #[error("{what} is {value}: the computation has diverged (a smaller learning rate usually helps)")]
    NotFinite { what: &'static str, value: f32 },

    /// A tensor of another step.
    #[error("{op}: this tensor belongs to another or an earlier step; tensors live until their step ends")]
    StaleTensor { op: &'static str },

    /// A buffer that a step has taken, or that its gradients still need.
    #[error("`{name}` is in use by another step; finish that one first")]
    InUse { name: String },

    /// A buffer of another device.
    #[error("`{name}` lies on another device than the step that uses it; make it with the step's device")]
    OtherDevice { name: String },

    /// As many values as a buffer or parameter does not hold.
    #[error("`{name}` holds {expected} values, but {got} were given")]
    WrongLength { name: String, expected: usize, got: usize },

    /// A name that no parameter has.
    #[error("no parameter is called `{name}`")]
    UnknownParameter { name: String },

    /// An update of parameters that are never trained.
    #[error("the parameters of `{name}` are frozen and cannot be optimised")]
    Frozen { name: String },

    /// A shape of more dimensions than a [`Shape`] has room for.
    #[error("a tensor of {rank} dimensions was asked for; the engine knows up to {limit}")]
    TooManyDimensions { rank: usize, limit: usize },

    /// A gradient of something that no parameter has a part in.
    #[error(
        "{op}: there is no gradient here: the loss depends on no parameter, its record was used up, or nothing was recorded"
    )]
    NoGradient { op: &'static str },

    /// A network too large for a checkpoint or an address.
    #[error("`{name}` would have {count} parameters, but at most {limit} fit")]
    TooManyParameters { name: String, count: usize, limit: usize },

    /// A setting that cannot be used.
    #[error("bad config: {reason}")]
    BadConfig { reason: String },

    /// No GPU that can be used: none, no driver or library, or a build without support.
    #[error("no GPU can be used: {reason}")]
    NoGpu { reason: String },

    /// Something that a GPU, its driver or a library refused to do.
    #[error("{what} failed on the GPU: {reason}")]
    Gpu { what: &'static str, reason: String },

    /// No room for a buffer or for the tensors of a step.
    #[error(
        "{place} has no memory for {what}: {} more were asked for; smaller batches, smaller networks or fewer steps need less",
        binary_size(*bytes)
    )]
    OutOfMemory { what: String, bytes: usize, place: &'static str },

    /// Worker threads that could not be started.
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

/// A result of the engine, or of whoever has an error of their own.
pub type Result<T, E = Error> = std::result::Result<T, E>;
