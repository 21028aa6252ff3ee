//! A process of the pool: this program, as `sweep task`.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::Sender;
use std::time::Instant;

use anyhow::{Context, Result};

use super::places::Place;
use super::plan::Sweep;
use super::pool::exit_means;
use crate::args::TaskOptions;

/// What comes from a process.
pub enum Heard {
    Line(String),
    /// Nothing more will come.
    End,
}

/// How a process ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Ending {
    Done,
    Stopped,
    /// Another process trains the run.
    Held,
    Failed(String),
    /// The GPU failed, or what stands between it and the process.
    GpuFailed(String),
    /// There is no room for what it writes.
    DiskIsFull(String),
    /// Killed, or something that it could not report.
    Died(String),
}

pub struct Worker {
    child: Child,
    /// Its end asks the process to stop.
    input: Option<ChildStdin>,
    /// Which of the pool's places it has.
    pub place: usize,
    pub started: Instant,
    /// Finished epochs of the run, and whether one was finished here.
    pub epoch: usize,
    pub progressed: bool,
    /// What it said about its end.
    pub failed: Option<String>,
    pub disk_is_full: bool,
    pub gpu_failed: bool,
    pub held: bool,
}

impl Worker {
    pub fn start(
        sweep: &Sweep,
        run: usize,
        (place, at): (usize, &Place),
        threads: usize,
        options: &TaskOptions,
        roms: Option<&Path>,
        epoch: usize,
        sender: &Sender<(usize, Heard)>,
    ) -> Result<Worker> {
        let path = sweep.log(run);
        let log = std::fs::create_dir_all(sweep.folder.join("logs"))
            .and_then(|()| OpenOptions::new().create(true).append(true).open(&path))
            .with_context(|| format!("cannot write {}", path.display()))?;
        sweep
            .record_sharers(run, epoch, at.sharers)
            .with_context(|| format!("cannot write to {}", sweep.folder.join("logs").display()))?;
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut command = Command::new(&program);
        command.args(["sweep", "task"]).arg(&sweep.folder).arg(run.to_string()).arg("--pipe");
        command.args(["--device", at.device(options.device.device).word()]);
        command.args(options.arguments(Some(threads), at.memory));
        command.args(roms.map(|folder| [OsString::from("--roms"), folder.into()]).into_iter().flatten());
        command.envs(at.variables.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        apart(&mut command);
        let mut child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let sender = sender.clone();
        let listen = move || {
            for line in
                output.into_iter().flat_map(|output| BufReader::new(output).lines()).map_while(Result::ok)
            {
                let _ = sender.send((run, Heard::Line(line)));
            }
            let _ = sender.send((run, Heard::End));
        };
        std::thread::Builder::new()
            .name(format!("run {run}"))
            .spawn(listen)
            .context("cannot start a thread")?;
        Ok(Worker {
            child,
            input,
            place,
            started: Instant::now(),
            epoch,
            progressed: false,
            failed: None,
            disk_is_full: false,
            gpu_failed: false,
            held: false,
        })
    }

    pub fn ask_to_stop(&mut self) {
        self.input = None;
    }

    /// Waits for the end and says what it was.
    pub fn ending(&mut self, sweep: &Sweep, run: usize) -> Result<Ending> {
        let status = self.child.wait().context("cannot wait for a process")?;
        match self.failed.take() {
            Some(reason) if self.disk_is_full => return Ok(Ending::DiskIsFull(reason)),
            Some(reason) if self.gpu_failed => return Ok(Ending::GpuFailed(reason)),
            Some(reason) => return Ok(Ending::Failed(reason)),
            None => {}
        }
        Ok(match exit_means(status.code()) {
            Some(Ending::Stopped) if self.held => Ending::Held,
            Some(ending) => ending,
            None => Ending::Died(how_it_died(status, &sweep.log(run))),
        })
    }
}

/// In a process group of its own: Ctrl-C is for the pool, which stops its processes in order.
fn apart(command: &mut Command) {
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, 0);
    #[cfg(not(unix))]
    let _ = command;
}

/// The exit status, and the last line of the log, which a panic leaves.
fn how_it_died(status: ExitStatus, log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text[text.len().saturating_sub(4096)..]).into_owned();
    let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing");
    format!("ended without a word ({status}; its log ends with: {last})")
}
