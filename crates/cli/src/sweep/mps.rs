//! NVIDIA's Multi-Process Service, through which several runs share a GPU: one daemon per GPU, in a private folder, ended with the pool.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::output::{tell, warn};

const CONTROL: &str = "nvidia-cuda-mps-control";
const PIPES: &str = "CUDA_MPS_PIPE_DIRECTORY";
const LOGS: &str = "CUDA_MPS_LOG_DIRECTORY";
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// The daemon of one GPU. It ends when this is dropped.
pub struct Daemon {
    folder: PathBuf,
}

impl Daemon {
    /// Starts a daemon for one GPU, by the name that CUDA_VISIBLE_DEVICES has for it.
    pub fn start(gpu: &str) -> Result<Daemon> {
        // Pipes are sockets: their paths must be short, and on no network file system.
        let folder = std::env::temp_dir().join(format!("{}{}-{gpu}", prefix(), std::process::id()));
        // Whoever can write to the pipes can use the GPU, and end the daemon.
        for path in [folder.clone(), folder.join("pipe"), folder.join("log")] {
            create_private(&path).with_context(|| format!("cannot create {}", path.display()))?;
        }
        if let Err(error) = start_in(&folder, gpu) {
            let _ = std::fs::remove_dir_all(&folder);
            return Err(error);
        }
        tell!("GPU {gpu} is shared through MPS ({})", folder.display());
        Ok(Daemon { folder })
    }

    /// What a program needs to find the daemon. It sees only this GPU, as its first.
    pub fn variables(&self) -> [(&'static str, PathBuf); 3] {
        [(PIPES, self.folder.join("pipe")), (LOGS, self.folder.join("log")), (VISIBLE, "0".into())]
    }

    fn quit(&self) -> std::io::Result<()> {
        let mut control = control(&self.folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        if let Some(mut input) = control.stdin.take() {
            input.write_all(b"quit\n")?;
        }
        control.wait().map(|_| ())
    }
}

/// Creates a folder that nobody else can enter. It must not be there: somebody else may have made it.
fn create_private(path: &Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// The program that controls the daemon of a folder.
fn control(folder: &Path) -> Command {
    let mut command = Command::new(CONTROL);
    command.env(PIPES, folder.join("pipe")).env(LOGS, folder.join("log"));
    command
}

fn start_in(folder: &Path, gpu: &str) -> Result<()> {
    let output = match control(folder).env(VISIBLE, gpu).arg("-d").stdin(Stdio::null()).output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => bail!(
            "several runs on one GPU need NVIDIA's MPS, but {CONTROL} is not on the PATH, and without it they are slower than one after the other. Install it (it comes with the driver), or give every GPU one job: --jobs and --gpus"
        ),
        output => output.with_context(|| format!("cannot start {CONTROL}"))?,
    };
    if !output.status.success() {
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).trim().to_string();
        let reason = if said.is_empty() { output.status.to_string() } else { said };
        bail!(
            "{CONTROL} -d failed for GPU {gpu}: {reason}. Give every GPU one job (--jobs and --gpus) to do without MPS"
        );
    }
    Ok(())
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Err(error) = self.quit() {
            warn(format!("the MPS daemon in {} may still be there: {error}", self.folder.display()));
            return;
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// How the folders of this machine's daemons begin; the process follows.
fn prefix() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("iris-mps-{}-", host.trim())
}

/// Ends the daemons of pools that were killed (Linux only).
pub fn end_leftovers() {
    let prefix = prefix();
    let Ok(entries) = std::fs::read_dir(std::env::temp_dir()) else { return };
    for folder in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let process = name.strip_prefix(&prefix).and_then(|rest| rest.split('-').next());
        let is_gone =
            |process: &str| Path::new("/proc/self").exists() && !Path::new("/proc").join(process).exists();
        if process.is_some_and(is_gone) {
            drop(Daemon { folder });
        }
    }
}

/// Whether a daemon that somebody else runs is there for all programs.
pub fn is_provided() -> bool {
    std::env::var_os(PIPES).is_some()
}

/// What CUDA_VISIBLE_DEVICES calls the GPUs that were asked for by their places in it.
pub fn names(gpus: &[usize], visible: Option<&str>) -> Result<Vec<String>> {
    let Some(visible) = visible else { return Ok(gpus.iter().map(ToString::to_string).collect()) };
    let known: Vec<&str> = visible.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    let name = |gpu: &usize| match known.get(*gpu) {
        Some(name) => Ok(name.to_string()),
        None => bail!("there is no GPU {gpu}: {VISIBLE} is `{visible}`"),
    };
    gpus.iter().map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_those_that_are_visible() {
        assert_eq!(names(&[0, 2], None).unwrap(), ["0", "2"]);
        assert_eq!(names(&[1], Some("4,GPU-ab")).unwrap(), ["GPU-ab"]);
        let error = names(&[1], Some("4")).unwrap_err().to_string();
        assert_eq!(error, "there is no GPU 1: CUDA_VISIBLE_DEVICES is `4`");
    }
}
