//! `iris report`: tables and figures from scores.

use std::io::IsTerminal;

use anyhow::{Result, bail};
use report::{Report, Request, Settings};

use crate::args::ReportArgs;
use crate::output::{say, tell};

/// Bootstrap replicates that fit into memory.
const MOST_REPS: usize = 10_000_000;

pub fn run(args: ReportArgs) -> Result<()> {
    if args.reps > MOST_REPS {
        bail!("--reps must be at most {MOST_REPS}");
    }
    let request =
        Request { inputs: args.inputs, agents: args.agents, name: args.name, references: args.references };
    let settings = Settings { replicates: args.reps, seed: args.seed, rng: args.rng };
    let report = Report::new(report::gather(&request)?, settings)?;
    // First: whoever reads the table may have seen enough of it early.
    let files = report::write(&report, &args.out)?;
    let colour = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    say!("{}", report::terminal(&report, colour).trim_end());
    for note in &report.notes {
        tell!("note: {note}");
    }
    tell!("wrote {} files; open {}", files.len(), args.out.join("report.html").display());
    Ok(())
}
