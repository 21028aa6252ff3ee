//! The reference release's checkpoints: how its parameters lie in memory, how to read them and how to write them.

mod archive;
mod export;
mod exported;
#[doc(hidden)]
pub mod fuzzing;
mod import;
mod layout;
mod pickle;
mod storage;

pub use crate::layers::Layout;
pub use export::export;
pub use import::import;
