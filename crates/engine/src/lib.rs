//! Tensors, ops with gradients, optimisers and randomness: exactly as much as world models need, and nothing that knows of them.
//!
//! A [`Stepper`] runs a step: a closure over a [`Tape`] whose methods are the ops. They run at once on [`Tensor`]s that live until the
//! step ends, and record what [`Tape::backward`] needs. What outlives a step lives in [`Buffer`]s and [`Params`]. All memory comes from
//! an arena that hands out the same blocks step after step; all randomness is a function of (seed, stream, step).
//!
//! ```
//! use engine::{Adam, Activation, Device, Init, Key, ParamsBuilder, Stepper};
//!
//! # fn main() -> engine::Result<()> {
//! let device = Device::cpu(None)?;
//! let mut builder = ParamsBuilder::new();
//! let weight = builder.add("weight", [1, 2], Init::Uniform(0.5));
//! let bias = builder.add("bias", [1], Init::Constant(0.0));
//! let params = builder.build(&device, "line", 0)?;
//!
//! let points = device.buffer::<f32>("points", [3, 2])?;
//! let heights = device.buffer::<f32>("heights", [3, 1])?;
//! let loss = device.buffer::<f32>("loss", [1])?;
//! points.write(&[0.0f32, 1.0, 1.0, 0.0, 1.0, 1.0])?;
//! heights.write(&[2.0f32, -1.0, 1.0])?;
//!
//! let rate = device.scalar("learning rate", 0.05)?;
//! let mut stepper = Stepper::new(&device, Key::new(0, 0));
//! for _ in 0..500 {
//!     stepper.run(|tape| {
//!         let (x, y) = (tape.buffer(&points)?, tape.buffer(&heights)?);
//!         let (w, b) = (tape.param(&params, weight)?, tape.param(&params, bias)?);
//!         let guess = tape.linear(x, w, Some(b), Activation::None)?;
//!         let error = tape.squared_error(guess, y)?;
//!         tape.backward(error)?;
//!         tape.adam(&params, &rate, &Adam::default())?;
//!         tape.store(&loss, 0, error)
//!     })?;
//! }
//! assert!(loss.read::<f32>()?[0] < 1e-3);
//! # Ok(())
//! # }
//! ```

// Without `cuda`, `Gpu` is uninhabited and every branch on it is dead code.
#![cfg_attr(not(feature = "cuda"), allow(dead_code, unreachable_code))]
#![warn(missing_docs)]

mod backend;
mod buffer;
mod cpu;
mod cuda;
mod device;
mod dtype;
mod error;
mod fast_paths;
mod memory;
mod ops;
mod optim;
mod params;
mod rng;
mod shape;
mod stepper;
mod tape;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
#[cfg(any(test, feature = "testing"))]
mod under_test;

pub use buffer::Buffer;
pub use cpu::instructions;
#[cfg(feature = "cuda")]
pub use cuda::{GpuReport, Library, gpu_report, libraries, library_folders};
pub use device::{Device, DeviceKind};
pub use dtype::{DType, Element, Precision};
pub use error::{Error, Result};
pub use fast_paths::NetworkShapes;
pub use ops::{
    Activation, DecodeBlock, DecodeHead, Decoder, FrameDraw, ImageAttention, ImageResidual, KvCache,
    Levelled, Lstm, MOST_RANGED, Quantised, RunningRange, Stride, SymlogPlace, Temperature, place_in_patches,
};
pub use optim::Adam;
pub use params::{Init, Param, ParamSpec, Params, ParamsBuilder};
pub use rng::{Key, Rng};
pub use shape::Shape;
pub use stepper::{Bits, StepId, Stepper};
pub use tape::{Tape, Tensor};
