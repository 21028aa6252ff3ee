//! Arguments of the studio.

use std::path::PathBuf;

use super::DeviceArgs;

/// Watch runs and look into their agents, on a page in the browser.
///
/// Prints the address of the page, which holds a token: whoever has it can see the runs. The page shows every run and imported agent under the folder, also while
/// they train, and needs no network. It listens on this machine alone; from another one, `ssh -L 4747:localhost:4747 HOST` leads to it.
///
/// Ctrl-C ends the studio; runs that train go on.
#[derive(clap::Args)]
pub struct StudioArgs {
    /// A run, or a folder with runs and imported agents.
    #[arg(default_value = "runs")]
    pub runs: PathBuf,

    /// Port of the page, by default 4747; 0 for any that is free.
    #[arg(long)]
    pub port: Option<u16>,

    /// Address or name of this machine to listen on, for browsers on other machines. The connection is not encrypted: everybody on the way can read it.
    #[arg(long, value_name = "ADDRESS")]
    pub host: Option<String>,

    #[command(flatten)]
    pub device: DeviceArgs,
}
