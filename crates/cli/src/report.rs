//! `iris report`: tables and figures from scores.

use std::io::IsTerminal;
use std::sync::Mutex;

use anyhow::{Result, bail};
use report::{Report, Request, Settings, VariantTable};

use crate::args::ReportArgs;
use crate::output::{say, tell};
use crate::progress::{Lines, Progress};
use crate::sweep;

/// Bootstrap replicates that fit into memory.
const MOST_REPS: usize = 10_000_000;

pub fn run(args: ReportArgs) -> Result<()> {
    if args.reps > MOST_REPS {
        bail!("--reps must be at most {MOST_REPS}");
    }
    let known = |game: envs::Game| (game.name, [game.random.into(), game.skilled.into()]);
    let own = envs::all_games().into_iter().filter(|game| game.title().is_none());
    let mut variants = Vec::new();
    let mut inputs = Vec::new();
    for input in args.inputs {
        match sweep::variants(&input)? {
            None => inputs.push(input),
            Some(folders) => variants.extend(folders),
        }
    }
    let request = Request {
        inputs,
        variants,
        agents: args.agents,
        name: args.name,
        references: args.references,
        built_in: own.map(known).collect(),
    };
    let settings = Settings { replicates: args.reps, seed: args.seed, rng: args.rng };
    let gathered = report::gather(&request)?;
    let variants = if args.tables { report::variant_tables(&gathered)? } else { Vec::new() };
    let watch = Watch::new();
    let mut report = Report::watched(gathered, settings, &|what, done, total| {
        watch.progress(what, done, total);
    })?;
    report.notes.extend(variants.iter().filter_map(VariantTable::note));
    report.variants = variants;
    drop(watch);
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

/// Shows how far the bootstrap is, in replicates.
struct Watch(Mutex<Option<Progress>>);

impl Watch {
    fn new() -> Watch {
        Watch(Mutex::new(None))
    }

    fn progress(&self, what: &str, done: usize, total: usize) {
        let mut progress = self.0.lock().unwrap_or_else(|e| e.into_inner());
        let lines = progress.as_ref().map_or_else(Lines::default, Progress::lines);
        if progress.as_ref().is_none_or(|progress| progress.phase() != what) {
            *progress = Some(Progress::after(what, total, lines));
        }
        progress.iter().for_each(|progress| progress.set(done));
    }
}
