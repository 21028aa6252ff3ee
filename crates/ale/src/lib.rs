//! The Arcade Learning Environment 0.12.1, compiled from its official source release behind a small C++ shim.
//!
//! ALE ends the whole program when it meets a ROM, an action or a setting it does not know. Here none of that can happen: only
//! the 26 ROMs in `CARTRIDGES` are loaded, after a look at their MD5, actions are an enum, and settings are fixed. Emulators are
//! independent of each other: they can be made, played and dropped on any number of threads at once.
//!
//! This crate is licensed under GPL-2.0, as ALE is. Without its feature `atari` it is empty.
#![cfg(feature = "atari")]

mod action;
mod cartridge;
mod emulator;

pub use action::Action;
pub use cartridge::{CARTRIDGES, Cartridge};
pub use emulator::{AleError, Emulator, Settings};

/// The folder with the sources this was compiled from, and with their ROMs.
pub const PREPARED: &str = env!("IRIS_ALE_PREPARED");
/// Where the ROMs are in that folder, or in any other unpacked source release.
pub const ROMS: &str = "src/ale/python/roms";
