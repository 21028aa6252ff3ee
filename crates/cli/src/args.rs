//! The command line.

mod show;
mod studio;
mod sweep;

use std::path::PathBuf;

use clap::builder::RangedU64ValueParser;
use clap::{Parser, Subcommand, ValueEnum, value_parser};

use crate::presets;
pub use show::{DreamArgs, EpisodesFrom, ExportEpisodesArgs, RecordArgs};
pub use studio::StudioArgs;
pub use sweep::{
    SweepArgs, SweepCommand, SweepNewArgs, SweepRunArgs, SweepSlurmArgs, SweepStatusArgs, SweepTaskArgs,
    TaskOptions,
};

/// IRIS: an agent that learns a world model of a game and learns to play inside it.
///
/// Start with `iris train`: a small agent learns `arcade/catch` in a few minutes on two CPU cores. Its files are in a new folder under `runs`.
/// `iris dream` shows what the world model imagines, and `iris eval` how well the agent plays.
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,

    /// Folder with Atari ROMs; searched before all others.
    #[arg(long, global = true, value_name = "DIR")]
    pub roms: Option<PathBuf>,
}

#[derive(Subcommand)]
pub enum Command {
    Train(TrainArgs),
    Sweep(SweepArgs),
    Eval(EvalArgs),
    Dream(DreamArgs),
    Reconstruct(ReconstructArgs),
    Foresee(ForeseeArgs),
    Record(RecordArgs),
    /// List the games, with their rules and reference scores.
    Envs,
    Config(ConfigArgs),
    Import(ImportArgs),
    ImportPerceptual(ImportPerceptualArgs),
    Export(ExportArgs),
    ExportEpisodes(ExportEpisodesArgs),
    Bench(BenchArgs),
    Report(ReportArgs),
    Studio(StudioArgs),
    /// Check this program and this machine: processor, GPU, libraries, ROMs, and a self-test.
    ///
    /// Prints the processor, the GPU with its driver and libraries, and the Atari ROMs, and how to get what is missing. Then every device trains three
    /// tiny networks for ten steps, and their losses are compared with the CPU's. A missing component is not a failure; one that is present but broken makes
    /// `doctor` exit with 1.
    Doctor,
    Selftest(SelftestArgs),
}

/// The device of a command.
#[derive(clap::Args)]
pub struct DeviceArgs {
    /// Device to compute on.
    #[arg(long, value_enum, default_value_t = DeviceName::Auto)]
    pub device: DeviceName,

    /// Precision on a GPU; the CPU always uses f32.
    #[arg(long, value_enum, default_value_t = PrecisionName::Bf16)]
    pub precision: PrecisionName,

    /// CPU threads; one per core by default. Results do not depend on the number.
    #[arg(long, value_parser = up_to(1024))]
    pub threads: Option<usize>,
}

/// The memory of a run.
#[derive(clap::Args)]
pub struct MemoryArgs {
    /// Memory of the GPU that the run may count on, such as 12GiB; by default what is free when it starts. Decides how much of the replay is kept there, so that
    /// several runs can share a GPU. Results do not depend on it.
    #[arg(long, value_name = "SIZE", value_parser = crate::words::parse_size)]
    pub gpu_memory: Option<usize>,
}

/// Where else metrics go.
#[derive(clap::Args)]
pub struct TrackioArgs {
    /// Also send the metrics of every epoch to this project of trackio: to the server of TRACKIO_SERVER_URL (with TRACKIO_WRITE_TOKEN) if that is set, otherwise to the
    /// inbox in TRACKIO_DIR, which trackio's dashboard reads.
    #[arg(long, value_name = "PROJECT")]
    pub trackio: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DeviceName {
    /// A GPU if one is usable, otherwise the CPU.
    Auto,
    /// The first NVIDIA GPU; needs a build with `--features cuda`.
    Cuda,
    Cpu,
}

impl DeviceName {
    /// As it is written on a command line.
    pub fn word(self) -> &'static str {
        match self {
            DeviceName::Auto => "auto",
            DeviceName::Cuda => "cuda",
            DeviceName::Cpu => "cpu",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PrecisionName {
    /// Activations in bf16; parameters, statistics, losses and optimiser state in f32.
    Bf16,
    /// Everything in f32, as on the CPU.
    F32,
}

/// Print the config that `train` would use with the same arguments, with an explanation of every key.
///
/// The output is a TOML file for `--config`. A config is built from a preset, then a file, then key=value arguments; later ones take precedence.
#[derive(clap::Args)]
pub struct ConfigArgs {
    /// Config values as key=value, such as `epochs=30` or `actor_critic.schedule.learning_rate=5e-4`; `iris config` lists all keys.
    pub overrides: Vec<String>,

    /// Preset to start from: tiny-fast, tiny, atari-small, atari-sprint, atari-fast, atari-100k, atari-100k-release, atari-100k-64tokens or atari-10m.
    #[arg(long, default_value = presets::DEFAULT)]
    pub preset: String,

    /// TOML file with values that replace those of the preset.
    #[arg(long)]
    pub config: Option<PathBuf>,

    /// The game, such as arcade/pong or Breakout; short for env=NAME.
    #[arg(long)]
    pub env: Option<String>,

    /// Random seed; short for seed=NUMBER.
    #[arg(long, value_parser = value_parser!(u64).range(..=i64::MAX as u64))]
    pub seed: Option<u64>,
}

/// From 1 to `most`.
fn up_to(most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=most)
}

/// Train an agent: by default a small one on `arcade/catch`, in minutes.
///
/// Every epoch collects steps of the game, then updates the tokenizer, the world model and, inside the world model, the policy. The run folder holds the
/// config, metrics (JSON lines and TensorBoard), pictures of reconstructions and dreams, the newest and the best episodes, the replay, and the last two
/// checkpoints.
///
/// A few steps are timed before the run starts, to say how long it will take.
///
/// Ctrl-C, SIGTERM, SIGHUP and SIGUSR1 stop a run after the current update, with exit status 75; `--resume` continues from the last finished epoch to
/// the same result. A second signal ends it at once, with 128 plus the number of the signal.
#[derive(clap::Args)]
pub struct TrainArgs {
    #[command(flatten)]
    pub config: ConfigArgs,

    /// Run folder; by default a new one under `runs`.
    #[arg(long)]
    pub out: Option<PathBuf>,

    /// Start from the parameters of this agent or run, with fresh optimisers; short for init.from=FOLDER. The source is not needed to resume. Parameters of other
    /// shapes are refused.
    #[arg(long, value_name = "AGENT_OR_RUN", conflicts_with = "resume")]
    pub init: Option<String>,

    /// With --init: networks to take from there, of tokenizer,world_model,actor_critic; all by default. A tokenizer may go to a game with other actions.
    #[arg(long, value_name = "PARTS", conflicts_with = "resume")]
    pub init_parts: Option<String>,

    /// Begin the replay with these episodes: a run, a folder of .npz files as the studio writes them from play by hand, or one .npz file of
    /// `export-episodes`; short for replay.from=PATH. Not needed to resume.
    #[arg(long, value_name = "PATH", conflicts_with = "resume")]
    pub replay: Option<String>,

    /// Continue the run in this folder from its last finished epoch; its config is kept, except that `epochs=N` may raise the number of epochs. The device may be
    /// another.
    #[arg(long, value_name = "RUN", conflicts_with_all = ["preset", "config", "env", "seed", "out"])]
    pub resume: Option<PathBuf>,

    /// With --out: start the run, or go on with it where it was begun, so that one command does for both. A finished run is left as it is. Other settings than those
    /// that the run was begun with are refused, except for more epochs.
    #[arg(long = "continue", requires = "out")]
    pub go_on: bool,

    /// With --resume: forget episodes of the replay whose files are damaged or cut off, and continue without them.
    #[arg(long, requires = "resume")]
    pub forget_damaged: bool,

    /// Serve a page that shows the run while it trains, and print its address; `studio` does the same for all runs.
    #[arg(long)]
    pub studio: bool,

    /// With --studio: port of the page; by default 4747, or any other where that is taken.
    #[arg(long, requires = "studio")]
    pub port: Option<u16>,

    #[command(flatten)]
    pub task: TaskOptions,
}

/// Play whole games with a trained agent and print how well it does.
///
/// The agent is the newest checkpoint of a run, or one that `iris import` made. The default is the paper's protocol: 100 games at temperature 0.5, without
/// random actions. Games are played in parallel, and every game that was begun counts.
#[derive(clap::Args)]
pub struct EvalArgs {
    #[command(flatten)]
    pub player: PlayerArgs,

    /// Number of games.
    #[arg(long, default_value_t = 100, value_parser = up_to(1_000_000))]
    pub episodes: usize,

    /// Print one line of JSON with every return, as `iris report` reads it. `progress` is 0 for random and 1 for skilled play; the standard error of a
    /// single game is null.
    #[arg(long)]
    pub json: bool,
}

/// The agent and its game.
#[derive(clap::Args)]
pub struct PlayerArgs {
    /// Run folder, or the folder of an imported agent.
    pub run: PathBuf,

    /// The game; by default that of the run.
    #[arg(long)]
    pub env: Option<String>,

    /// Temperature the policy samples at; 0 always takes the best action.
    #[arg(long, default_value_t = 0.5)]
    pub temperature: f32,

    #[arg(long, default_value_t = 0)]
    pub seed: u64,

    #[command(flatten)]
    pub device: DeviceArgs,
}

/// Measure how well a world model foresees its game.
///
/// The agent plays games by training's rules. From steps all over them it dreams on with the actions that were taken, and the dreams are compared with what
/// followed, a line per step:
///
/// rewards, ends    how many came, how many of them were foreseen at their very step, how many were dreamt, how many of those are true; in Atari a lost
/// life ends an episode
///
/// error            of dreamt frames: mean absolute error of pixels from 0 to 1
///
/// still            the same if nothing had moved since the last given frame
///
/// kept             the same of the frame itself after encoding and decoding
///
/// Above them stands what the world model expects of the tokens of the next frame, given the frames before it and, unless tokens are drawn at once, the tokens
/// before each in its own frame.
#[derive(clap::Args)]
pub struct ForeseeArgs {
    #[command(flatten)]
    pub player: PlayerArgs,

    /// Games, 1,000 steps of each; no more than stretches.
    #[arg(long, default_value_t = 4, value_parser = up_to(100_000))]
    pub games: usize,

    /// Stretches of these games, evenly spread.
    #[arg(long, default_value_t = 64, value_parser = up_to(1_000_000))]
    pub stretches: usize,

    /// Frames that are given; by default as many as in training, but two at least.
    #[arg(long, value_parser = up_to(1000))]
    pub context: Option<usize>,

    /// Steps to dream; by default as many as the world model remembers beside the context.
    #[arg(long, value_parser = up_to(1000))]
    pub steps: Option<usize>,

    /// Print one line of JSON with the same numbers: recall is the share that was foreseen, precision the share that is true.
    #[arg(long)]
    pub json: bool,
}

/// Draw frames of a game above what the tokenizer of each agent keeps of them.
///
/// The first agent plays an evaluation game (temperature 0.5), whose frames are encoded and decoded by every agent. Prints for each agent the mean
/// absolute (L1) and squared error of pixels from 0 to 1, and how many of its tokens occur in the frames (the paper's figure 9).
#[derive(clap::Args)]
pub struct ReconstructArgs {
    /// Run folders, or folders of imported agents, all with the same frame size.
    #[arg(required = true, value_name = "AGENT")]
    pub agents: Vec<PathBuf>,

    /// The game; by default that of the first run.
    #[arg(long, value_name = "GAME")]
    pub env: Option<String>,

    /// Frames, evenly spread over the game's first 1,000 steps.
    #[arg(long, default_value_t = 10, value_parser = up_to(200))]
    pub frames: usize,

    #[arg(long, default_value_t = 0)]
    pub seed: u64,

    /// PNG to write.
    #[arg(long, default_value = "reconstructions.png")]
    pub out: PathBuf,

    #[command(flatten)]
    pub device: DeviceArgs,
}

/// Turn a checkpoint of the reference release (PyTorch) into an agent.
///
/// Reads `last.pt` as `torch.save` wrote it, or the safetensors that `export` writes. No code of the file is executed, and
/// anything but tensors is refused.
#[derive(clap::Args)]
pub struct ImportArgs {
    /// The checkpoint.
    pub checkpoint: PathBuf,

    /// Folder for the agent.
    #[arg(long)]
    pub out: PathBuf,
}

/// Make the pretrained perceptual network of the paper from the two files it is published in.
///
/// VGG is torchvision's VGG16 (`vgg16-397923af.pth`), LPIPS the channel weights of LPIPS 0.1 (`vgg.pth`); both as `torch.save` wrote them, also before
/// PyTorch 1.6, or as safetensors with the same names. `train` uses the result with `tokenizer.perceptual=DIR`. The output says whether the files are the
/// published ones; others are read too. No code of the files is executed, and anything but tensors is refused.
#[derive(clap::Args)]
pub struct ImportPerceptualArgs {
    /// State dict of torchvision's VGG16, with or without its classifier.
    pub vgg: PathBuf,

    /// State dict of LPIPS's linear layers.
    pub lpips: PathBuf,

    /// Folder for the network.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
}

/// Write an agent with the names and shapes of the reference release, for PyTorch.
///
/// Writes safetensors that PyTorch users load with `agent.load_state_dict(safetensors.torch.load_file(FILE))`; for an agent that was trained here add
/// `strict=False`, because it does not contain the perceptual network. Agents with parts that the reference release does not have, such as those of the
/// `tiny` preset, are refused.
#[derive(clap::Args)]
pub struct ExportArgs {
    /// Run folder, whose newest checkpoint is exported, or the folder of an imported agent.
    pub agent: PathBuf,

    /// File to write, such as last.safetensors.
    #[arg(long, required_unless_present = "hub")]
    pub out: Option<PathBuf>,

    /// Instead, write a folder that can be published on the Hugging Face Hub: model card with results, networks, config, metrics, a recorded game and a dream. Takes a run
    /// with any networks. Commands that take an agent take such a folder.
    #[arg(long, value_name = "DIR", conflicts_with = "out")]
    pub hub: Option<PathBuf>,
}

/// Time the paper-size networks and the games on this machine.
///
/// Prints one line per training step at paper size: the best time of several runs and the peak memory of the process; on a GPU the median time and the
/// peak GPU memory.
///
/// `scripts/bench_pytorch.py` prints the same lines for PyTorch. Run both on an idle machine.
#[derive(clap::Args)]
pub struct BenchArgs {
    /// What to time; everything by default.
    #[arg(value_enum)]
    pub cases: Vec<BenchCase>,

    #[command(flatten)]
    pub device: DeviceArgs,

    /// GPU only: time per kernel.
    #[arg(long)]
    pub breakdown: bool,

    /// Networks and batches of a preset instead of the paper's: its tokenizer, world-model and behaviour steps.
    #[arg(long, conflicts_with_all = ["cases", "scaling"])]
    pub preset: Option<String>,

    /// A table of what a step costs with other batches, horizons and networks.
    #[arg(long, conflicts_with_all = ["cases", "breakdown"])]
    pub scaling: bool,

    /// Repetitions of each case; 7 on the CPU and 50 on a GPU by default, with --scaling 3 and 20.
    #[arg(long, value_parser = up_to(1_000_000))]
    pub repeats: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchCase {
    /// Tokenizer training step without the perceptual loss; batch 8, on a GPU 256.
    Tokenizer,
    /// Tokenizer training step with the perceptual loss; batch 8, on a GPU 256.
    TokenizerPerceptual,
    /// World model training step; 2 sequences of 20 steps, on a GPU 64.
    WorldModel,
    /// Actor-critic training step over dreamt frames; 4 trajectories of 20 frames, on a GPU 64.
    ActorCritic,
    /// The same with the dream before it: 20 burn-in frames, 20 imagined steps.
    Behaviour,
    /// 340 tokens decoded one by one with the key/value cache, 16 of every 17 sampled; batch 8, on a GPU 64 and the time of one token.
    Decode,
    /// Games, with their frames drawn and resized for the networks: steps per second on one core.
    Games,
}

/// Train three tiny networks for ten steps and compare their losses with the CPU's.
///
/// Losses must agree within 0.1% in f32 and 5% in bf16. The CPU is compared with itself on one thread, to the bit. `iris doctor` runs this on every device.
#[derive(clap::Args)]
pub struct SelftestArgs {
    #[command(flatten)]
    pub device: DeviceArgs,
}

const REPORT_HELP: &str = "\
Without arguments it reproduces the paper's table and figures from the published scores that come with the program:

  iris report                                  the paper
  iris report --agents all                     every published agent
  iris report --tables                         tables 7 and 8, too
  iris report mine.json --agents IRIS,STORM    your scores against two of them
  iris report runs --name mine                 your runs

A score file, {\"Game\": [score per run, ...]}, is an agent named after the file. Run folders and outputs of `iris eval --json` together are
one agent; a run counts with its last evaluation.

Prints the tables and notes about them, and writes report.html (all of it, works offline), report.json, table.md, table.tex and
the figures as SVG and PNG. docs/report.md explains every number.";

/// Compare agents: the paper's tables and figures, from score files and runs.
///
/// The statistics are those of "Deep RL at the Edge of the Statistical Precipice".
#[derive(clap::Args)]
#[command(after_long_help = REPORT_HELP)]
pub struct ReportArgs {
    /// Score files, outputs of `iris eval --json`, run folders, or folders that hold runs.
    pub inputs: Vec<PathBuf>,

    /// Published agents to show, separated by commas, or `all` (with all 26 games) or `none`; by default those of the paper.
    #[arg(long, value_delimiter = ',', value_name = "A,B")]
    pub agents: Option<Vec<String>>,

    /// Name of the agent that the runs belong to.
    #[arg(long, default_value = "ours")]
    pub name: String,

    /// Output folder.
    #[arg(long, default_value = "report", value_name = "DIR")]
    pub out: PathBuf,

    /// Bootstrap replicates of the aggregates; profiles use at most 2,000, probabilities of improvement 1,000.
    #[arg(long, default_value_t = 50_000)]
    pub reps: usize,

    #[arg(long, default_value_t = 0)]
    pub seed: u64,

    /// Random generator: `fast`, or `numpy` for the intervals that rliable prints after np.random.seed(SEED).
    #[arg(long, default_value = "fast")]
    pub rng: report::Rng,

    /// Also print tables 7 and 8 of the paper: IRIS with 64 tokens per frame, and after 10M steps (give its scores as IRIS-10M.json).
    #[arg(long)]
    pub tables: bool,

    /// JSON file {"Game": [random, human]} with reference scores of games beyond the 26.
    #[arg(long, value_name = "FILE")]
    pub references: Option<PathBuf>,
}
