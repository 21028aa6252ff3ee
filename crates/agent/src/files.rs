//! Files that are there whole or not at all, also after a power failure.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// What could not be done to which file or folder.
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

/// Writes a file and waits until its bytes are on disk. Its name is not, before [`sync_folder`].
pub(crate) fn write_synced(path: &Path, bytes: &[u8]) -> Result<()> {
    let write = || -> std::io::Result<()> {
        let mut file = File::create(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(failed("write", path))
}

/// Writes a file beside its place, makes sure it is on disk, and puts it there in one step: whoever looks sees the old one or the new one.
/// What a link leads to is written, and what is no file (a pipe, a device) is not replaced by one.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
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
            // What is left of a failed attempt is of no use to anyone.
            let _ = std::fs::remove_file(&partial);
            Err(failed("write", path)(source))
        }
    }
}

/// Makes sure that the names in a folder are on disk: of new files, of renamed and of removed ones.
pub(crate) fn sync_folder(folder: &Path) -> Result<()> {
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        // Some file systems have nothing of the kind for folders.
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
