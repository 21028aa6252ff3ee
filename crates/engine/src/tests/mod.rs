//! Tests of the engine as a whole. Those of each op stand beside it; all of them are one program, so that it can be carried to a GPU.

mod golden;
mod isa;
mod steps;
mod sums;
