//! What the fuzz targets share: a limit on memory, a file to read from, seeds.

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

pub use libfuzzer_sys;

/// Defines a target: a reader that is called with every input and may use `factor` times the input's size and `constant` bytes of
/// memory. With `IRIS_FUZZ_SEEDS=FOLDER` the program writes valid inputs there instead, for the fuzzer to start from.
#[macro_export]
macro_rules! target {
    (seeds: $seeds:expr, factor: $factor:expr, constant: $constant:expr, $read:expr $(,)?) => {
        const READ: fn(&[u8]) = $read;
        $crate::libfuzzer_sys::fuzz_target!(
            init: {
                $crate::write_seeds(|| $seeds);
                // Once without a limit, for what is made once.
                READ(&[]);
            },
            |data: &[u8]| $crate::within($factor * data.len() + $constant, || READ(data))
        );
    };
}

/// Memory in use and what may be; the latter only while a reader runs.
struct Limited;

static IN_USE: AtomicUsize = AtomicUsize::new(0);
static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);

#[global_allocator]
static ALLOCATOR: Limited = Limited;

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // While it moves, both are there.
        take(size);
        IN_USE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

fn take(size: usize) {
    let now = IN_USE.fetch_add(size, Relaxed).saturating_add(size);
    let limit = LIMIT.load(Relaxed);
    if now > limit {
        LIMIT.store(usize::MAX, Relaxed);
        let trace = std::backtrace::Backtrace::force_capture();
        eprintln!("{size} bytes are {} more than the reader may use:\n{trace}", now - limit);
        std::process::abort();
    }
}

/// Runs a reader, which may use `bytes` of memory at a time.
pub fn within(bytes: usize, reader: impl FnOnce()) {
    LIMIT.store(IN_USE.load(Relaxed) + bytes, Relaxed);
    reader();
    LIMIT.store(usize::MAX, Relaxed);
}

pub fn write_seeds(seeds: impl FnOnce() -> Vec<Vec<u8>>) {
    let Some(folder) = std::env::var_os("IRIS_FUZZ_SEEDS").map(PathBuf::from) else { return };
    std::fs::create_dir_all(&folder).unwrap();
    for (i, seed) in seeds().iter().enumerate() {
        std::fs::write(folder.join(format!("seed-{i}")), seed).unwrap();
    }
    std::process::exit(0);
}

/// A file in memory that holds these bytes, by a path that can be opened. The same file with every call.
pub fn file(bytes: &[u8]) -> PathBuf {
    use std::os::unix::fs::FileExt;
    static FILE: std::sync::OnceLock<std::fs::File> = std::sync::OnceLock::new();
    let file = FILE.get_or_init(|| {
        use std::os::fd::FromRawFd;
        // SAFETY: the name ends with a zero; the descriptor is new and nobody else's.
        unsafe {
            let descriptor = libc::memfd_create(c"input".as_ptr(), 0);
            assert!(descriptor >= 0);
            std::fs::File::from_raw_fd(descriptor)
        }
    });
    file.set_len(0).unwrap();
    file.write_all_at(bytes, 0).unwrap();
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// A folder in memory for this process, for readers that take one. Removed by `scripts/fuzz`.
pub fn folder() -> &'static std::path::Path {
    static FOLDER: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = PathBuf::from(format!("/dev/shm/iris-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    })
}

/// The small checkpoint of PyTorch that the tests use, unpacked.
pub fn checkpoint() -> Vec<(String, Vec<u8>)> {
    unzip(include_bytes!("../../crates/cli/tests/checkpoints/tiny.pt"))
}

/// The entries of a zip.
pub fn unzip(bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
    use std::io::Read;
    let mut zip = zip::ZipArchive::new(std::io::Cursor::new(bytes)).unwrap();
    let names: Vec<String> = zip.file_names().map(String::from).collect();
    names
        .into_iter()
        .map(|name| {
            let mut bytes = Vec::new();
            zip.by_name(&name).unwrap().read_to_end(&mut bytes).unwrap();
            (name, bytes)
        })
        .collect()
}

/// A zip as `torch.save` writes it.
pub fn zip(entries: &[(String, Vec<u8>)]) -> Vec<u8> {
    use std::io::Write;
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let stored = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for (name, bytes) in entries {
        zip.start_file(name.as_str(), stored).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

/// A pickled state dict with one tensor of six floats in storage "0".
pub fn small_pickle() -> Vec<u8> {
    let text = |s: &str| [&b"X"[..], &(s.len() as u32).to_le_bytes(), s.as_bytes()].concat();
    [
        b"\x80\x02ccollections\nOrderedDict\nq\x00)Rq\x01(".to_vec(),
        text("weight"),
        b"ctorch._utils\n_rebuild_tensor_v2\n((".to_vec(),
        text("storage"),
        b"ctorch\nFloatStorage\n".to_vec(),
        text("0"),
        text("cpu"),
        b"K\x06tQK\x00K\x02K\x03\x86K\x03K\x01\x86\x89ccollections\nOrderedDict\n)RtRu.".to_vec(),
    ]
    .concat()
}

/// A file as `torch.save` wrote it before PyTorch 1.6: [`small_pickle`] among four others, then its storage.
pub fn legacy(floats: &[u8]) -> Vec<u8> {
    let magic = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.";
    let count = (floats.len() as u64 / 4).to_le_bytes();
    [&magic[..], b"\x80\x02}.", &small_pickle(), b"\x80\x02](X\x01\x00\x00\x000e.", &count, floats].concat()
}

/// Safetensors with a matrix of six floats.
pub fn safetensors(floats: &[u8]) -> Vec<u8> {
    let header = br#"{"features.0.weight":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}      "#;
    [&(header.len() as u64).to_le_bytes()[..], header, floats].concat()
}
