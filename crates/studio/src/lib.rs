//! The studio: a page in the browser that shows runs while they train, and what is inside their agents.
//!
//! [`Port::take`] takes a port, [`Server::run`] serves until the process is asked to end, [`Server::in_background`] serves beside a training run. Every area is a
//! module with its routes; the page is in `page/`, a module of JavaScript per screen.

mod about;
mod compare;
mod compute;
mod curves;
mod episodes;
mod files;
mod fresh;
mod guard;
mod index;
mod labels;
mod look;
mod metrics;
mod play;
mod problem;
mod replay;
mod runs;
mod server;
mod summary;
mod taught;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use engine::Device;

pub use server::{Background, Port, Server};

use compute::Compute;
use episodes::Replays;
use fresh::Fresh;
use guard::Token;
use index::{Index, RunEntry};
use metrics::Metrics;
use problem::Problem;
use summary::{Summaries, Summary};

/// Why the studio cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StudioError {
    #[error("there is no folder {root}")]
    NoFolder { root: PathBuf },
    #[error("port {} of {} is taken", address.port(), address.ip())]
    PortTaken { address: SocketAddr },
    #[error("cannot listen on {host}: {source}")]
    Listen { host: String, source: std::io::Error },
    #[error("cannot start the server: {0}")]
    Start(std::io::Error),
    #[error("the system has no random numbers for a token: {0}")]
    Token(getrandom::Error),
}

/// What all routes share.
pub(crate) struct Studio {
    /// Where the runs are.
    pub root: PathBuf,
    pub device: Device,
    pub compute: Compute,
    pub replays: Replays,
    pub index: Index,
    pub known: Summaries,
    pub newest: Fresh<Vec<Summary>>,
    pub metrics: Metrics,
    pub token: Token,
    /// The name that was given to listen on, if any.
    pub host: Option<String>,
}

impl Studio {
    /// Every run and agent, in the order of names.
    pub fn summaries(&self) -> Arc<Vec<Summary>> {
        self.newest.get(|| self.known.of_all(&self.index.entries()))
    }

    /// The run or agent with this id.
    pub fn run(&self, id: &str) -> Result<RunEntry, Problem> {
        self.index
            .find(id)
            .ok_or_else(|| Problem::not_found(format!("there is no run {id}: it may have been deleted")))
    }
}
