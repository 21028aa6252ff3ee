//! Arguments of the commands that write pictures, animations and arrays of what an agent plays and dreams.

use std::path::PathBuf;

use clap::{ValueEnum, value_parser};

use super::{DeviceArgs, PlayerArgs, up_to};

/// Roll a trained world model out and draw what it imagines.
///
/// Starts from a frame of the run's replay, or of an evaluation game (temperature 0.5) that is played first: with `--test`, and always for an imported
/// agent, which needs `--env GAME`. Writes `dream.png`, one row per future, and `dream.gif`, the same as an animation.
///
/// The first row (or place) is what really followed. A yellow bar under a frame is a reward, a blue one a penalty, a red border the end, a green one a
/// frame that the dream was conditioned on. The run may be going on.
#[derive(clap::Args)]
pub struct DreamArgs {
    /// Run folder, or the folder of an imported agent.
    pub run: PathBuf,

    /// Play this game and start from it; an imported agent needs it.
    #[arg(long, value_name = "GAME")]
    pub env: Option<String>,

    /// Start from an evaluation game, whose frames the run never trained on; the seed chooses the game.
    #[arg(long)]
    pub test: bool,

    /// Frames to condition on: the world model sees them with the actions between them, the policy the same frames and none before; the paper's figure 3
    /// has 2. By default one frame, before which the policy sees its burn-in frames as in training.
    #[arg(long, value_name = "C", value_parser = up_to(1000))]
    pub context: Option<usize>,

    /// Who acts: `policy`, `recorded` for the actions that were really taken, or names of actions such as `left,left,stay`, of which the last is repeated.
    #[arg(long, default_value = "policy")]
    pub actions: String,

    /// Futures to imagine from the same frame.
    #[arg(long, default_value_t = Self::FUTURES, value_parser = up_to(100))]
    pub futures: usize,

    /// Imagined steps; by default as many as the world model remembers beside the context.
    #[arg(long, value_parser = up_to(10_000))]
    pub steps: Option<usize>,

    /// Number of the step in the replay or the game to start from; chosen by the seed if not given.
    #[arg(long)]
    pub from: Option<usize>,

    /// Temperature the policy samples at; 0 always takes the best action.
    #[arg(long, default_value_t = 1.0)]
    pub temperature: f32,

    #[arg(long, default_value_t = 0)]
    pub seed: u64,

    /// Folder to write to; by default one in `dreams` in the run's folder, called after the step, the seed and what else was asked for. A file that ends
    /// in .gif, .png, .apng (an animated PNG) or .mp4 (needs the program ffmpeg) gets the animation alone, one that ends
    /// in .npz the dreams as NumPy arrays, as `export-episodes` writes them.
    #[arg(long)]
    pub out: Option<PathBuf>,

    #[command(flatten)]
    pub device: DeviceArgs,
}

impl DreamArgs {
    pub const FUTURES: usize = 4;
}

/// Play one game with a trained agent and write it as an animation.
///
/// It has three panels: the game as a person sees it, the frame that the network gets, and what is left of it after encoding and decoding, which is
/// what the policy sees. A yellow bar under them is a reward, a blue one a penalty, a red border the end.
#[derive(clap::Args)]
pub struct RecordArgs {
    #[command(flatten)]
    pub player: PlayerArgs,

    /// File to write, whose ending says the format: .gif, .png or .apng for an animated PNG in all colours, or .mp4, which needs the program ffmpeg.
    #[arg(long, default_value = "episode.gif")]
    pub out: PathBuf,

    /// Steps per second; a GIF rounds the time of a step to hundredths of a second. 15 steps are a second of Atari.
    #[arg(long, default_value_t = 15, value_parser = value_parser!(u16).range(1..=50))]
    pub fps: u16,

    /// Write step, action, reward, the critic's value and the return so far above the panels.
    #[arg(long)]
    pub header: bool,

    /// Steps after which the recording stops.
    #[arg(long, default_value_t = 1000, value_parser = up_to(30_000))]
    pub steps: usize,

    /// Instead of an animation, write the game at these steps beside each other as a PNG: `--stills 0,150,300 --out FILE.png`. Plays as far as the last.
    #[arg(long, value_name = "STEPS", value_delimiter = ',', value_parser = value_parser!(u32).range(..30_000), conflicts_with_all = ["fps", "header", "steps"])]
    pub stills: Vec<u32>,
}

/// Write episodes of a run as NumPy arrays.
///
/// By default all that the replay holds. With `--kind` those that the run keeps apart: the ten newest and the best of training, of evaluation, or of
/// imagination, where four dreams are drawn at each evaluation.
///
/// `numpy.load(FILE)` gives `observations` (uint8, [T, H, W, 3]), `actions`, `rewards`, `terminations` and `truncations` ([T]), and `episode_starts`, the index
/// of each episode's first step. Observation t is the frame that action t was chosen from. The last episode may be unfinished. The run may be going on.
#[derive(clap::Args)]
pub struct ExportEpisodesArgs {
    /// Run folder.
    pub run: PathBuf,

    /// File to write, such as episodes.npz.
    #[arg(long)]
    pub out: PathBuf,

    /// Which episodes.
    #[arg(long, value_enum, default_value_t = EpisodesFrom::Replay)]
    pub kind: EpisodesFrom,

    /// Newest episodes to write; by default all.
    #[arg(long, value_parser = up_to(u64::MAX))]
    pub episodes: Option<usize>,

    /// With --kind: only the episode with the highest return, of equal ones the first.
    #[arg(long, conflicts_with = "episodes")]
    pub best: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EpisodesFrom {
    /// All that the agent learns from.
    Replay,
    /// Collected to learn from.
    Train,
    /// Played to evaluate.
    Evaluation,
    /// Dreamt: those of dream.png, which begin at random steps of the replay with the policy at temperature 1. A dream that does not end is truncated.
    Imagination,
}
