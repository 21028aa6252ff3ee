//! Atomic, durable writes: after a crash or power failure a file is complete or absent.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// An operation on a file or folder that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing} {path}: {source}")]
pub struct FileError {
    pub doing: &'static str,
    pub path: PathBuf,
    pub source: std::io::Error,
}

type Result<T, E = FileError> = std::result::Result<T, E>;

/// For `map_err`.
pub(crate) fn failed(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> FileError {
    move |source| FileError { doing, path: path.into(), source }
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(failed("read", path))
}

/// Writes a file and syncs its bytes. Its name is durable only after [`sync_folder`].
pub(crate) fn write_synced(path: &Path, bytes: &[u8]) -> Result<()> {
    let write = || -> std::io::Result<()> {
        let mut file = File::create(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(failed("write", path))
}

/// Writes a temporary file, syncs it and renames it over `path`: readers see the old content or the new.
/// Symbolic links are followed; pipes and devices are written in place.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    let target = path.canonicalize().unwrap_or_else(|_| path.into());
    if target.exists() && !target.is_file() {
        return std::fs::write(&target, bytes).map_err(failed("write", path));
    }
    let path = &target;
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".partial");
    let partial = path.with_file_name(name);
    let written = write_synced(&partial, bytes)
        .and_then(|()| std::fs::rename(&partial, path).map_err(failed("write", path)));
    match written {
        Ok(()) => sync_folder(parent(path)),
        Err(FileError { source, .. }) => {
            // Nothing is left of a failed attempt.
            let _ = std::fs::remove_file(&partial);
            Err(failed("write", path)(source))
        }
    }
}

/// Syncs a folder, so that new, renamed and removed names are durable.
pub(crate) fn sync_folder(folder: &Path) -> Result<()> {
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        // Some file systems cannot sync folders.
        Err(e) if matches!(e.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => Ok(()),
        synced => synced.map_err(failed("write", folder)),
    }
}

/// The folder that a file or folder is in.
pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}
