//! The reference release's checkpoints, and the files of its perceptual network: how its parameters lie in memory, how to read them and how to write them.

mod archive;
mod export;
mod exported;
#[doc(hidden)]
pub mod fuzzing;
mod import;
mod layout;
mod legacy;
mod perceptual;
mod pickle;
mod storage;
mod tensors;

pub use crate::layers::Layout;
pub use export::export;
pub use import::import;
pub use perceptual::import_perceptual;
