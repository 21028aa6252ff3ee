//! `iris studio` and `iris train --studio`: runs on a page in the browser.

use std::path::Path;

use anyhow::Result;
use engine::Device;
use studio::{Background, Port, Server, StudioError};

use crate::args::{StudioArgs, TrainArgs};
use crate::output::{say, tell, warn};

/// Port that a page has unless told otherwise.
const PORT: u16 = 4747;

pub fn run(args: StudioArgs) -> Result<()> {
    let open_to_others = args.host.is_some();
    let port = Port::take(args.host, args.port.unwrap_or(PORT))?;
    let server = Server::new(port, args.runs, args.device.open()?)?;
    if open_to_others {
        warn("other machines can reach the studio, over a connection that is not encrypted".into());
    }
    Ok(server.run(|url| {
        say!("{url}");
        tell!("open this address in a browser; Ctrl-C ends the studio");
    })?)
}

/// The port of a page beside a run. Several runs may have one: where the usual port is taken, any other will do.
pub fn port_beside(args: &TrainArgs) -> Result<Option<Port>> {
    if !args.studio {
        return Ok(None);
    }
    let port = match (Port::take(None, args.port.unwrap_or(PORT)), args.port) {
        (Err(StudioError::PortTaken { .. }), None) => Port::take(None, 0),
        (taken, _) => taken,
    };
    Ok(Some(port?))
}

/// Serves a run that is being trained until the result is dropped.
pub fn beside(port: Port, run: &Path, device: &Device) -> Result<Background> {
    let background = Server::beside(port, run.into(), device.clone())?.in_background()?;
    tell!("watch it in a browser: {}", background.url());
    Ok(background)
}
