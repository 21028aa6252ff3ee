//! `iris reconstruct`: frames of a game above what tokenizers keep of them (the paper's figure 9).

use std::collections::BTreeSet;
use std::path::Path;

use agent::picture::{Cell, Picture, Row};
use agent::train::Run;
use agent::{Agent, Eye, Stretch};
use anyhow::{Result, bail};
use engine::Device;

use crate::args::ReconstructArgs;
use crate::output::{say, warn};
use crate::record::make_folder_of;
use crate::source::Source;

/// Steps of the game that the frames are taken from.
const PLAYED: usize = 1000;
/// The paper's temperature of evaluation.
const TEMPERATURE: f32 = 0.5;

/// How much an agent keeps of the frames.
struct Kept {
    cells: Vec<Cell>,
    /// Means over pixels from 0 to 1.
    l1: f64,
    squared: f64,
    distinct: usize,
}

pub fn run(args: ReconstructArgs) -> Result<()> {
    if !args.out.extension().is_some_and(|kind| kind.eq_ignore_ascii_case("png")) {
        bail!("reconstructions are PNGs: name a file that ends in .png, not {}", args.out.display());
    }
    let Some((first, others)) = args.agents.split_first() else { bail!("name an agent") };
    let Source { device, agent, game, .. } = Source::open(first, args.env.as_deref(), &args.device)?;
    let size = agent.config.tokenizer.frame_size;
    let mut agents = vec![(first, agent)];
    for folder in others {
        let other = load(&device, folder)?;
        let its = other.config.tokenizer.frame_size;
        if its != size {
            bail!(
                "{} sees frames of {its} x {its} pixels, {} of {size} x {size}: compare agents of one frame size",
                folder.display(),
                first.display()
            );
        }
        agents.push((folder, other));
    }
    let played = Stretch::play(&device, &agents[0].1, &game, TEMPERATURE, args.seed, PLAYED)?;
    let frames = spread(&played.cells, args.frames);
    let mut rows = vec![Row::new("original", frames.clone())];
    let wide = args.agents.iter().map(|folder| folder.display().to_string().len()).max().unwrap_or(0).max(5);
    say!("{:<wide$}  {:>8}  {:>13}  distinct tokens", "agent", "L1", "squared error");
    for (folder, agent) in &agents {
        let Kept { cells, l1, squared, distinct } = keep(&device, agent, &frames)?;
        let name = folder.display().to_string();
        say!(
            "{name:<wide$}  {l1:>8.5}  {squared:>13.6}  {distinct} of {}",
            agent.config.tokenizer.vocabulary
        );
        rows.push(Row::new(format!("{name}: {} tokens", agent.config.tokenizer.tokens()), cells));
    }
    make_folder_of(&args.out)?;
    Picture::strip(&rows, size).write_png(&args.out)?;
    say!("{}", args.out.display());
    Ok(())
}

fn load(device: &Device, folder: &Path) -> Result<Agent> {
    Ok(match Agent::is_in(folder) {
        true => Agent::load(device, folder)?.0,
        false => Run::newest_agent(device, folder, warn)?.1,
    })
}

/// At most `count` cells, evenly spread from the first to the last, without what their steps brought.
fn spread(cells: &[Cell], count: usize) -> Vec<Cell> {
    let count = count.min(cells.len());
    let at = |i: usize| i * cells.len().saturating_sub(1) / count.saturating_sub(1).max(1);
    (0..count).map(|i| Cell { frame: cells[at(i)].frame.clone(), ..Cell::default() }).collect()
}

fn keep(device: &Device, agent: &Agent, frames: &[Cell]) -> Result<Kept> {
    let mut eye = Eye::new(device, agent)?;
    let (mut l1, mut squared, mut count) = (0.0, 0.0, 0);
    let (mut cells, mut tokens) = (Vec::new(), BTreeSet::new());
    for Cell { frame, .. } in frames {
        let (pixels, codes) = eye.reconstruct(agent, frame)?;
        for (byte, pixel) in frame.iter().zip(&pixels) {
            let off = f64::from(*pixel) - f64::from(*byte) / 255.0;
            l1 += off.abs();
            squared += off * off;
        }
        count += pixels.len();
        tokens.extend(codes);
        cells.push(Cell { frame: agent::picture::to_bytes(&pixels), ..Cell::default() });
    }
    let mean = |sum: f64| sum / count as f64;
    Ok(Kept { cells, l1: mean(l1), squared: mean(squared), distinct: tokens.len() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_spread_from_the_first_to_the_last() {
        let cells: Vec<Cell> = (0..10).map(|i| Cell { frame: vec![i], ..Cell::default() }).collect();
        let at = |count| spread(&cells, count).iter().map(|cell| cell.frame[0]).collect::<Vec<_>>();
        assert_eq!(at(4), [0, 3, 6, 9]);
        assert_eq!(at(1), [0]);
        assert_eq!(at(10), at(50));
        assert!(spread(&[], 3).is_empty());
    }
}
