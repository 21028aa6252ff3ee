//! Tables and figures of the Atari 100k benchmark from score files, after "Deep RL at the Edge of the Statistical Precipice".
//!
//! [`gather`] finds the agents, [`Report::new`] computes, [`write()`] makes the files. Nothing here knows what an agent is made of.

mod agents;
mod bootstrap;
mod draw;
mod error;
mod figures;
mod files;
#[doc(hidden)]
pub mod fuzzing;
mod gains;
mod games;
mod html;
mod improvement;
mod input;
mod metrics;
mod mt19937;
mod report;
mod resample;
mod runs;
mod scores;
mod table;
mod text;
mod variants;

pub use error::ReportError;
pub use files::write;
pub use input::{Gathered, Request, gather};
pub use report::{Estimate, Report, Settings};
pub use resample::{Rng, Watcher};
pub use text::terminal;
pub use variants::{VariantTable, variant_tables};
