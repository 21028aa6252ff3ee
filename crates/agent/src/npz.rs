//! NumPy archives: a zip of compressed `.npy` files, as `numpy.savez_compressed` writes them, array by array without holding one in memory.

use std::fs::File;
use std::io::{BufWriter, Error, Read, Seek, Write};
use std::path::{Path, PathBuf};

use zip::read::ZipFile;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipArchive, ZipWriter};

use crate::files::{FileError, failed, parent, sync_folder};

type Result<T, E = FileError> = std::result::Result<T, E>;

/// Element types, all little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    Bool,
    U8,
    I32,
    I64,
    F32,
}

impl Dtype {
    /// NumPy's name of it.
    fn name(self) -> &'static str {
        match self {
            Dtype::Bool => "|b1",
            Dtype::U8 => "|u1",
            Dtype::I32 => "<i4",
            Dtype::I64 => "<i8",
            Dtype::F32 => "<f4",
        }
    }

    /// Bytes of an element.
    fn size(self) -> usize {
        match self {
            Dtype::Bool | Dtype::U8 => 1,
            Dtype::I32 | Dtype::F32 => 4,
            Dtype::I64 => 8,
        }
    }
}

/// An archive that is being written. It appears under its name when it is finished; dropped before, it leaves nothing behind.
pub struct Npz {
    path: PathBuf,
    partial: PathBuf,
    /// `None` once it is finished.
    zip: Option<ZipWriter<BufWriter<File>>>,
}

impl Npz {
    pub fn create(path: &Path) -> Result<Npz> {
        if path.exists() && !path.is_file() {
            return Err(failed("write", path)(Error::other("it is not a regular file")));
        }
        let mut name = path.file_name().unwrap_or_default().to_os_string();
        name.push(".partial");
        let partial = path.with_file_name(name);
        let file = File::create(&partial).map_err(failed("write", path))?;
        Ok(Npz { path: path.into(), partial, zip: Some(ZipWriter::new(BufWriter::new(file))) })
    }

    /// Begins an array, whose elements follow with [`write`](Npz::write).
    pub fn array(&mut self, name: &str, dtype: Dtype, shape: &[usize]) -> Result<()> {
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Deflated)
            // Frames of games shrink a lot at any level.
            .compression_level(Some(1))
            // The same bytes whenever it is written.
            .last_modified_time(DateTime::default())
            .large_file(true);
        let header = header(dtype, shape);
        self.with(|zip| {
            zip.start_file(format!("{name}.npy"), options)?;
            zip.write_all(&header)
        })
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.with(|zip| zip.write_all(bytes))
    }

    /// Syncs the archive and gives it its name.
    pub fn finish(mut self) -> Result<()> {
        let Some(zip) = self.zip.take() else { return Ok(()) };
        let finish = || -> std::io::Result<()> {
            let file = zip.finish()?.into_inner().map_err(|e| e.into_error())?;
            file.sync_all()?;
            std::fs::rename(&self.partial, &self.path)
        };
        if let Err(error) = finish() {
            let _ = std::fs::remove_file(&self.partial);
            return Err(failed("write", &self.path)(error));
        }
        sync_folder(parent(&self.path))
    }

    fn with(
        &mut self,
        act: impl FnOnce(&mut ZipWriter<BufWriter<File>>) -> std::io::Result<()>,
    ) -> Result<()> {
        match &mut self.zip {
            Some(zip) => act(zip).map_err(failed("write", &self.path)),
            None => Ok(()),
        }
    }
}

impl Drop for Npz {
    fn drop(&mut self) {
        if self.zip.take().is_some() {
            let _ = std::fs::remove_file(&self.partial);
        }
    }
}

/// An archive that [`Npz`] wrote.
pub(crate) struct NpzReader<R> {
    path: PathBuf,
    zip: ZipArchive<R>,
}

impl<R: Read + Seek> NpzReader<R> {
    /// `path` is for messages.
    pub fn new(file: R, path: &Path) -> Result<NpzReader<R>> {
        let zip = ZipArchive::new(file).map_err(|e| failed("read", path)(e.into()))?;
        Ok(NpzReader { path: path.into(), zip })
    }

    pub fn shape(&mut self, name: &str, dtype: Dtype) -> Result<Vec<usize>> {
        let NpzReader { path, zip } = self;
        open(zip, name, dtype).map(|(shape, _)| shape).map_err(failed("read", path))
    }

    /// Reads an array of this shape, some bytes at a time.
    pub fn read<E: From<FileError>>(
        &mut self,
        name: &str,
        dtype: Dtype,
        shape: &[usize],
        mut part: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let NpzReader { path, zip } = self;
        let bad = |what: String| E::from(failed("read", path)(Error::other(what)));
        let (found, mut file) = open(zip, name, dtype).map_err(failed("read", path))?;
        if found != shape {
            return Err(bad(format!("{name} has shape {found:?}, not {shape:?}")));
        }
        let expected = shape.iter().try_fold(dtype.size(), |bytes, size| bytes.checked_mul(*size));
        let (mut buffer, mut bytes) = (vec![0; 1 << 16], 0);
        loop {
            let read = file.read(&mut buffer).map_err(failed("read", path))?;
            bytes += read;
            // More than the shape says is not read to its end.
            if read == 0 || expected.is_none_or(|expected| bytes > expected) {
                break;
            }
            part(&buffer[..read])?;
        }
        match expected == Some(bytes) {
            true => Ok(()),
            false => Err(bad(format!("{name} has {bytes} bytes, too few or too many for shape {shape:?}"))),
        }
    }
}

/// The shape of an array, and a reader of its elements.
fn open<'a, R: Read + Seek>(
    zip: &'a mut ZipArchive<R>,
    name: &str,
    dtype: Dtype,
) -> std::io::Result<(Vec<usize>, ZipFile<'a, R>)> {
    let mut file = zip.by_name(&format!("{name}.npy"))?;
    let mut start = [0; 10];
    file.read_exact(&mut start)?;
    let mut found = start.to_vec();
    file.by_ref().take(u64::from(u16::from_le_bytes([start[8], start[9]]))).read_to_end(&mut found)?;
    let text = String::from_utf8_lossy(&found);
    let sizes =
        text.split_once("'shape': (").and_then(|(_, rest)| rest.split_once(')')).map(|(sizes, _)| sizes);
    let sizes =
        sizes.into_iter().flat_map(|sizes| sizes.split(',')).map(str::trim).filter(|size| !size.is_empty());
    let shape: Vec<usize> = sizes.map_while(|size| size.parse().ok()).collect();
    match found == header(dtype, &shape) {
        true => Ok((shape, file)),
        false => Err(Error::other(format!("{name} does not have the form that this program writes"))),
    }
}

/// What an `.npy` file of version 1.0 starts with: magic, version, length, a Python dictionary, spaces up to a multiple of 64 bytes.
fn header(dtype: Dtype, shape: &[usize]) -> Vec<u8> {
    let sizes: String = shape.iter().map(|size| format!("{size},")).collect();
    let dictionary = format!("{{'descr': '{}', 'fortran_order': False, 'shape': ({sizes}), }}", dtype.name());
    // Magic, version and length take ten bytes, the line's end one.
    let length = (10 + dictionary.len() + 1).next_multiple_of(64) - 10;
    let mut header = b"\x93NUMPY\x01\x00".to_vec();
    header.extend((length as u16).to_le_bytes());
    header.extend(format!("{dictionary:<width$}\n", width = length - 1).bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scratch;

    #[test]
    fn headers_have_the_documented_form() {
        let header = header(Dtype::F32, &[3]);
        assert_eq!(header.len(), 128);
        assert_eq!(header[..10], *b"\x93NUMPY\x01\x00\x76\x00");
        let text = std::str::from_utf8(&header[10..]).unwrap();
        assert!(text.starts_with("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }  "), "{text}");
        assert!(text.ends_with(" \n"));
    }

    #[test]
    fn arrays_can_be_read_back_and_damage_is_noticed() {
        let scratch = Scratch::new("npz-read");
        let path = scratch.0.join("a.npz");
        // More than is read at a time.
        let written: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
        let mut npz = Npz::create(&path).unwrap();
        npz.array("a", Dtype::U8, &[50_000, 2]).unwrap();
        npz.write(&written).unwrap();
        npz.array("short", Dtype::F32, &[2]).unwrap();
        npz.write(&[0; 7]).unwrap();
        npz.finish().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let read = |bytes: &[u8], name: &str, dtype: Dtype, shape: &[usize]| -> Result<Vec<u8>> {
            let mut all = Vec::new();
            NpzReader::new(std::io::Cursor::new(bytes), &path)?.read(
                name,
                dtype,
                shape,
                |part| -> Result<()> {
                    all.extend_from_slice(part);
                    Ok(())
                },
            )?;
            Ok(all)
        };
        assert!(read(&bytes, "a", Dtype::U8, &[50_000, 2]).unwrap() == written);
        for (name, dtype, shape, expected) in [
            ("a", Dtype::U8, &[100_000][..], "a has shape [50000, 2], not [100000]"),
            ("a", Dtype::Bool, &[50_000, 2], "a does not have the form"),
            ("b", Dtype::U8, &[2], "not found"),
            ("short", Dtype::F32, &[2], "short has 7 bytes, too few or too many for shape [2]"),
        ] {
            let error = read(&bytes, name, dtype, shape).unwrap_err().to_string();
            assert!(error.starts_with("cannot read ") && error.contains(expected), "{error}");
        }
        // Whatever byte is another one: the same array, or an error.
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x41;
            let found = read(&damaged, "a", Dtype::U8, &[50_000, 2]);
            assert!(found.is_err() || found.is_ok_and(|found| found == written), "byte {at}");
        }
    }

    #[test]
    fn an_archive_is_there_whole_or_not_at_all() {
        let scratch = Scratch::new("npz");
        let path = scratch.0.join("a.npz");
        let mut npz = Npz::create(&path).unwrap();
        npz.array("a", Dtype::U8, &[2]).unwrap();
        drop(npz);
        assert_eq!(std::fs::read_dir(&scratch.0).unwrap().count(), 0);

        let write = || {
            let mut npz = Npz::create(&path).unwrap();
            npz.array("a", Dtype::U8, &[2]).unwrap();
            npz.write(&[7]).unwrap();
            npz.write(&[8]).unwrap();
            npz.array("b", Dtype::I64, &[0]).unwrap();
            npz.finish().unwrap();
            std::fs::read(&path).unwrap()
        };
        assert!(write() == write(), "the bytes depend on more than the contents");
        assert_eq!(std::fs::read_dir(&scratch.0).unwrap().count(), 1);
        let mut zip = zip::ZipArchive::new(File::open(&path).unwrap()).unwrap();
        assert_eq!(zip.len(), 2);
        let mut bytes = Vec::new();
        zip.by_name("a.npy").unwrap().read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes[128..], [7, 8]);
        assert_eq!(zip.by_name("b.npy").unwrap().size(), 128);

        // A folder of that name is left alone.
        let error = Npz::create(&scratch.0).err().unwrap().to_string();
        assert!(error.ends_with("it is not a regular file"), "{error}");
    }
}
