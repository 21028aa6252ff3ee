//! `iris sweep slurm`: a job array whose elements requeue themselves when they are stopped.
//!
//! Slurm signals the job's steps, not its script, so the run is a step (`srun`). A run that is stopped exits with 75; Slurm would count that as a failure, so
//! the script requeues its own element.

use std::path::{Path, PathBuf};
use std::process::Command;

use agent::write_atomically;
use anyhow::{Context, Result, bail};

use super::plan::Sweep;
use super::status::{State, progress};
use crate::args::{DeviceName, SweepSlurmArgs};
use crate::output::{pasteable, say, tell, warn};
use crate::signals::STOPPED;
use crate::words::counted;

const SCRIPT: &str = "sweep.sbatch";
/// The number of the last array.
const SUBMITTED: &str = "submitted";
/// Slurm's MaxArraySize where a cluster says nothing else: the largest index is less.
const DEFAULT_ARRAY: usize = 1001;
/// Requeues after which a run that is killed again and again is left alone; stops do not count.
const MOST_RESTARTS: usize = 50;
/// A job with a GPU computes there or fails: on the CPU it would waste the GPU for weeks. Old versions of Slurm say `NoDevFiles` where a job has none.
const DEVICE: &str = "\
case \"${SLURM_JOB_GPUS:-${CUDA_VISIBLE_DEVICES:-}}\" in
  '' | -1 | NoDevFiles) device=auto ;;
  *) device=cuda ;;
esac
";

pub fn run(args: &SweepSlurmArgs, roms: Option<&Path>) -> Result<()> {
    let sweep = Sweep::load(&args.folder)?;
    let mut open = Vec::new();
    for run in &sweep.runs {
        match progress(&sweep, run)?.state {
            State::Done => {}
            State::Failed(_) if !args.retry => {}
            State::Failed(_) | State::Running | State::Waiting => open.push(run.run),
        }
    }
    if open.is_empty() {
        say!("no run is left: all are done or failed; --retry takes the failed ones again");
        return Ok(());
    }
    let absolute =
        |path: &Path| std::path::absolute(path).with_context(|| format!("cannot find {}", path.display()));
    let folder = absolute(&sweep.folder)?;
    let program = std::env::current_exe().context("cannot find this program")?;
    let roms = roms.map(absolute).transpose()?;
    let job = Job { folder, program, roms, open: &open, args };
    let script = job.script()?;
    // Slurm does not make folders for its logs.
    let logs = sweep.folder.join("logs");
    std::fs::create_dir_all(&logs).with_context(|| format!("cannot create {}", logs.display()))?;
    let path = sweep.folder.join(SCRIPT);
    write_atomically(&path, script.as_bytes())?;
    say!("wrote {}: an array of {}", path.display(), counted(open.len(), "run"));
    if let Some(last) = open.last().filter(|last| **last >= DEFAULT_ARRAY) {
        tell!(
            "note: the array goes up to {last}, and Slurm refuses indices from MaxArraySize on ({DEFAULT_ARRAY} by default; `scontrol show config` has this cluster's): several smaller sweeps avoid that"
        );
    }
    match args.submit {
        true => submit(&sweep, &path),
        false => {
            say!("submit it: sbatch {}", pasteable(&path));
            Ok(())
        }
    }
}

fn submit(sweep: &Sweep, script: &Path) -> Result<()> {
    let submitted = sweep.folder.join(SUBMITTED);
    let before = std::fs::read_to_string(&submitted).unwrap_or_default();
    if !before.is_empty() && is_queued(before.trim()) {
        warn(format!(
            "this sweep was submitted before, as job {0}: each run is still trained once, but its elements wait for each other. `scancel {0}` ends the first array",
            before.trim()
        ));
    }
    let output = match Command::new("sbatch").arg(script).output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => bail!(
            "sbatch is not on the PATH: run this on a machine of the cluster, or submit {} there with sbatch",
            script.display()
        ),
        output => output.context("cannot start sbatch")?,
    };
    if !output.status.success() {
        bail!("sbatch refused {}: {}", script.display(), String::from_utf8_lossy(&output.stderr).trim());
    }
    let said = String::from_utf8_lossy(&output.stdout);
    say!("{}", said.trim());
    let job = said.split_whitespace().last().unwrap_or_default();
    Ok(write_atomically(&submitted, format!("{job}\n").as_bytes())?)
}

/// Whether a job waits or runs; also where that is unknown.
fn is_queued(job: &str) -> bool {
    match Command::new("squeue").args(["-h", "-j", job]).output() {
        Ok(output) => output.status.success() && !output.stdout.is_empty(),
        Err(_) => true,
    }
}

struct Job<'a> {
    folder: PathBuf,
    program: PathBuf,
    roms: Option<PathBuf>,
    open: &'a [usize],
    args: &'a SweepSlurmArgs,
}

impl Job<'_> {
    fn script(&self) -> Result<String> {
        let given = &self.args.sbatch;
        for (option, short) in [("--array", "-a"), ("--requeue", ""), ("--no-requeue", "")] {
            if given.iter().any(|text| is_option(text, option, short)) {
                bail!("{option} belongs to the sweep: it cannot be passed to sbatch");
            }
        }
        let at_once = self.args.at_once.map_or(String::new(), |runs| format!("%{runs}"));
        let mut options = vec![
            format!("--array={}{at_once}", ranges(self.open)),
            "--requeue".to_string(),
            "--open-mode=append".to_string(),
        ];
        let logs = self.folder.join("logs").display().to_string().replace('%', "%%");
        let log = Path::new(&logs).join("slurm-%a.log");
        for (option, short, value) in [
            ("--job-name", "-J", "iris-sweep".to_string()),
            ("--signal", "", "USR1@300".to_string()),
            ("--output", "-o", quoted(&log)?),
        ] {
            if !given.iter().any(|text| is_option(text, option, short)) {
                options.push(format!("{option}={value}"));
            }
        }
        // An option and its value may be two words: as one line they stay together.
        let mut lines: Vec<String> = Vec::new();
        for text in given {
            match (text.starts_with('-'), lines.last_mut()) {
                (false, Some(last)) => *last += &format!(" {text}"),
                _ => lines.push(text.clone()),
            }
        }
        options.extend(lines);
        let options: String = options.iter().map(|option| format!("#SBATCH {option}\n")).collect();
        let (device, choice) = match self.args.task.device.device {
            DeviceName::Auto => ("\"$device\"", DEVICE),
            named => (named.word(), ""),
        };
        let mut task = format!(
            "{} sweep task {} \"$SLURM_ARRAY_TASK_ID\" --device {device}",
            pasteable(&self.program),
            pasteable(&self.folder)
        );
        for word in self.args.task.arguments(self.args.task.device.threads, None) {
            task += &format!(" {}", pasteable(Path::new(&word)));
        }
        if let Some(roms) = &self.roms {
            task += &format!(" --roms {}", pasteable(roms));
        }
        Ok(format!(
            "#!/bin/bash\n{options}\
# Written by `iris sweep slurm`.
# Signals reach the step, not this script: the run stops and exits with {STOPPED}. Killed runs exit with more than 128.
{choice}# Since 22.05 steps do not inherit it.
[ -z \"${{SLURM_CPUS_PER_TASK:-}}\" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
srun {task}
status=$?
if [ \"$status\" -eq {STOPPED} ] || {{ [ \"$status\" -gt 128 ] && [ \"${{SLURM_RESTART_COUNT:-0}}\" -lt {MOST_RESTARTS} ]; }}; then
  scontrol requeue \"${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}\"
  # Slurm ends this script when it requeues it.
  sleep 60
fi
exit \"$status\"
"
        ))
    }
}

/// A path for an `#SBATCH` line, where quotes keep spaces together.
fn quoted(path: &Path) -> Result<String> {
    let text = path.display().to_string();
    match text.contains(['"', '\n']) {
        true => bail!("the path {text} cannot be written into a Slurm script: choose another folder"),
        false if text.contains(char::is_whitespace) => Ok(format!("\"{text}\"")),
        false => Ok(text),
    }
}

/// Whether a word on sbatch's command line is this option.
fn is_option(word: &str, long: &str, short: &str) -> bool {
    let name = word.split('=').next().unwrap_or(word);
    name == long || (!short.is_empty() && !word.starts_with("--") && word.starts_with(short))
}

/// Numbers in order as Slurm writes them: "0-3,5".
fn ranges(numbers: &[usize]) -> String {
    let mut found: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match found.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => found.push((number, number)),
        }
    }
    let range = |(first, last): &(usize, usize)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    found.iter().map(range).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_are_written_as_ranges() {
        assert_eq!(ranges(&[0, 1, 2, 3]), "0-3");
        assert_eq!(ranges(&[1, 3, 4, 9]), "1,3-4,9");
    }

    #[test]
    fn options_are_known_in_every_spelling() {
        assert!(is_option("--signal=USR1@20", "--signal", "") && is_option("--signal", "--signal", ""));
        assert!(is_option("-omy.log", "--output", "-o") && is_option("-o", "--output", "-o"));
        assert!(
            !is_option("--open-mode=append", "--output", "-o") && !is_option("--signals", "--signal", "")
        );
    }
}
