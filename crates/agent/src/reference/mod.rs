//! The reference release's checkpoints: how its parameters lie in memory, how to read them and how to write them.

mod layout;

pub use layout::Layout;
