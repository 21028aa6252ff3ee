//! Our kernels: compiled once per machine and kept between runs.

use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use cudarc::driver::{result, sys};
use cudarc::nvrtc;

use super::CLUSTER;
use super::core::{driver, lock};
use super::kernels::{self, Kernel};
use crate::{Error, Result};

/// What stands in front of each program.
const COMMON: &str = include_str!("kernels/common.cu");

pub(super) const PROGRAMS: [&str; 13] = [
    include_str!("kernels/elementwise.cu"),
    include_str!("kernels/image.cu"),
    include_str!("kernels/group_norm.cu"),
    include_str!("kernels/group_norm_kept.cu"),
    include_str!("kernels/perceptual.cu"),
    include_str!("kernels/attention.cu"),
    include_str!("kernels/rows.cu"),
    include_str!("kernels/raster.cu"),
    include_str!("kernels/reduce.cu"),
    include_str!("kernels/flash.cu"),
    include_str!("kernels/decode.cu"),
    concat!(include_str!("kernels/tokens_parts.cu"), include_str!("kernels/tokens.cu")),
    include_str!("kernels/blocks.cu"),
];

/// A program's machine code.
pub(super) struct Image {
    program: &'static str,
    target: String,
    bytes: Vec<u8>,
    /// Whether it was made in an earlier run.
    kept: bool,
}

/// All programs for a GPU of this compute capability, compiled side by side where they were not kept. No GPU has to have been started.
pub(super) fn images((major, minor): (i32, i32)) -> Result<Vec<Image>> {
    // Hopper's own instructions need the name with an "a", which runs on that chip alone.
    let target = format!("sm_{major}{minor}{}", if (major, minor) == (9, 0) { "a" } else { "" });
    std::thread::scope(|scope| {
        let made = PROGRAMS.map(|program| scope.spawn(|| Image::new(program, &target)));
        let all = made.into_iter().map(|image| match image.join() {
            Ok(image) => image,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        all.collect()
    })
}

impl Image {
    fn new(program: &'static str, target: &str) -> Result<Image> {
        let target = target.to_string();
        match kept_at(program, &target).and_then(|path| read_kept(&path)) {
            Some(bytes) => Ok(Image { program, target, bytes, kept: true }),
            None => Image::compiled(program, target),
        }
    }

    fn compiled(program: &'static str, target: String) -> Result<Image> {
        let bytes = compile_program(program, &target)?.image;
        if let Some(path) = kept_at(program, &target) {
            keep(&path, &bytes);
        }
        Ok(Image { program, target, bytes, kept: false })
    }

    fn load(&self) -> Result<sys::CUmodule> {
        // SAFETY: a whole image of machine code, which the driver checks and copies.
        unsafe { result::module::load_data(self.bytes.as_ptr().cast()) }.map_err(driver("loading kernels"))
    }
}

/// The loaded programs.
pub(super) struct Module {
    programs: Vec<sys::CUmodule>,
    functions: HashMap<String, sys::CUfunction>,
    /// Names of those that were prepared for overlapping.
    chained: Mutex<HashSet<&'static str>>,
    /// How many clusters of a kernel run at the same time, for those that were prepared for clusters.
    clusters: Mutex<HashMap<&'static str, usize>>,
}

// SAFETY: handles of the driver's, used under the GPU's rules.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    pub fn new(images: Vec<Image>) -> Result<Module> {
        let mut module = Module {
            programs: Vec::new(),
            functions: HashMap::new(),
            chained: Mutex::default(),
            clusters: Mutex::default(),
        };
        for image in images {
            let loaded = match image.load() {
                // What another driver has left may not run with this one.
                Err(_) if image.kept => Image::compiled(image.program, image.target)?.load()?,
                loaded => loaded?,
            };
            module.programs.push(loaded);
            module.functions.extend(functions(loaded).map_err(driver("loading kernels"))?);
        }
        kernels::all().try_for_each(|kernel| module.check(kernel))?;
        Ok(module)
    }

    /// Fails unless a kernel's parameters are those of its declaration: the driver reads as many arguments as the kernel has.
    fn check(&self, kernel: &'static Kernel) -> Result<()> {
        let function = self.function(kernel.name)?;
        let mut found = Vec::new();
        loop {
            let (mut offset, mut size) = (0, 0);
            // SAFETY: a function of this module; it writes two numbers.
            match unsafe { sys::cuFuncGetParamInfo(function, found.len(), &mut offset, &mut size) } {
                sys::CUresult::CUDA_SUCCESS => found.push((offset, size)),
                // No parameter has this index.
                sys::CUresult::CUDA_ERROR_INVALID_VALUE => break,
                other => return Err(driver("loading kernels")(result::DriverError(other))),
            }
        }
        kernel.check_parameters(&found)
    }

    pub fn function(&self, name: &'static str) -> Result<sys::CUfunction> {
        let missing = || Error::Gpu { what: name, reason: "no program has this kernel".into() };
        self.functions.get(name).copied().ok_or_else(missing)
    }

    /// A kernel that overlaps with others, with up to `room` bytes of shared memory.
    pub fn chained(&self, name: &'static str, room: usize) -> Result<sys::CUfunction> {
        let function = self.function(name)?;
        let mut chained = lock(&self.chained)?;
        if chained.contains(name) {
            return Ok(function);
        }
        use sys::CUfunction_attribute as Attribute;
        // SAFETY: a function of this module, which is alive.
        unsafe {
            let fixed = result::function::get_function_attribute(
                function,
                Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
            )
            .map_err(driver(name))?;
            let most = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            result::function::set_function_attribute(function, most, room as i32 - fixed)
                .map_err(driver(name))?;
            // A multiprocessor must fall idle to divide its memory another way, so all of them ask for the same.
            let division = Attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
            result::function::set_function_attribute(function, division, 100).map_err(driver(name))?;
        }
        chained.insert(name);
        Ok(function)
    }

    /// How many clusters of [`CLUSTER`] blocks of a kernel run at the same time, with `threads` threads and up to `room` bytes of shared
    /// memory in each block.
    pub fn resident_clusters(&self, name: &'static str, threads: usize, room: usize) -> Result<usize> {
        let function = self.function(name)?;
        let mut clusters = lock(&self.clusters)?;
        if let Some(&count) = clusters.get(name) {
            return Ok(count);
        }
        // A GPU that refuses clusters of this size runs none of them.
        let count = prepared(function, threads, room).unwrap_or_default();
        clusters.insert(name, count);
        Ok(count)
    }
}

fn prepared(function: sys::CUfunction, threads: usize, room: usize) -> Result<usize, result::DriverError> {
    use sys::CUfunction_attribute as Attribute;
    let most = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // Eight blocks are what every GPU with clusters has.
    let larger = Attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
    let mut attribute = cluster_attribute();
    let config = sys::CUlaunchConfig {
        gridDimX: CLUSTER as u32,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: threads as u32,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: room as u32,
        hStream: std::ptr::null_mut(),
        attrs: &mut attribute,
        numAttrs: 1,
    };
    let mut count = 0;
    // SAFETY: a function of a loaded program; the configuration outlives the call, which writes one number.
    unsafe {
        result::function::set_function_attribute(function, most, room as i32)?;
        result::function::set_function_attribute(function, larger, 1)?;
        sys::cuOccupancyMaxActiveClusters(&mut count, function, &config).result()?;
    }
    Ok(usize::try_from(count).unwrap_or_default())
}

/// Says that [`CLUSTER`] blocks at a time form a cluster.
pub(super) fn cluster_attribute() -> sys::CUlaunchAttribute {
    let mut value = sys::CUlaunchAttributeValue { pad: [0; 64] };
    value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: CLUSTER as u32, y: 1, z: 1 };
    sys::CUlaunchAttribute {
        id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
        pad: [0; 4],
        value,
    }
}

/// A loaded program's kernels.
fn functions(program: sys::CUmodule) -> Result<Vec<(String, sys::CUfunction)>, result::DriverError> {
    let mut count = 0;
    // SAFETY: the program is loaded; it writes as many handles as there is room for, and names that live as long as it.
    unsafe {
        sys::cuModuleGetFunctionCount(&mut count, program).result()?;
        let mut functions = vec![std::ptr::null_mut(); count as usize];
        sys::cuModuleEnumerateFunctions(functions.as_mut_ptr(), count, program).result()?;
        functions
            .into_iter()
            .map(|function| {
                let mut name = std::ptr::null();
                sys::cuFuncGetName(&mut name, function).result()?;
                Ok((CStr::from_ptr(name).to_string_lossy().into_owned(), function))
            })
            .collect()
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        for program in &self.programs {
            // SAFETY: loaded in `new`; the GPU drops it before its context.
            unsafe {
                let _ = result::module::unload(*program);
            }
        }
    }
}

/// A program as NVRTC made it.
pub(super) struct Compiled {
    /// Machine code.
    pub image: Vec<u8>,
    /// The readable form it was made from.
    #[cfg(test)]
    pub ptx: String,
}

/// Compiles one of our programs for an architecture such as sm_80. NVRTC must have been loaded.
pub(super) fn compile_program(program: &str, target: &str) -> Result<Compiled> {
    let failed = |reason: String| Error::Gpu { what: "compiling kernels", reason };
    let text = CString::new([COMMON, program].concat()).map_err(|e| failed(e.to_string()))?;
    let program = nvrtc::result::create_program(&text, None).map_err(|e| failed(e.to_string()))?;
    let options = [format!("--gpu-architecture={target}"), "--std=c++17".into()];
    // SAFETY: the program was just created and is destroyed once, below; sizes are asked for before buffers are filled.
    unsafe {
        let compiled = nvrtc::result::compile_program(program, &options);
        if compiled.is_err() {
            let log = nvrtc::result::get_program_log(program).unwrap_or_default();
            let text = log.iter().map(|c| *c as u8).take_while(|c| *c != 0);
            let log: String = text.map(char::from).take(2000).collect();
            let _ = nvrtc::result::destroy_program(program);
            return Err(failed(log));
        }
        let mut size = 0;
        let asked = nvrtc::sys::nvrtcGetCUBINSize(program, &mut size).result();
        let mut image = vec![0u8; size];
        let got = asked.and_then(|()| nvrtc::sys::nvrtcGetCUBIN(program, image.as_mut_ptr().cast()).result());
        #[cfg(test)]
        let ptx = nvrtc::result::get_ptx(program).map(|text| text.iter().map(|c| *c as u8 as char).collect());
        let _ = nvrtc::result::destroy_program(program);
        got.map_err(|e| failed(e.to_string()))?;
        Ok(Compiled {
            image,
            #[cfg(test)]
            ptx: ptx.map_err(|e| failed(e.to_string()))?,
        })
    }
}

/// Where a compiled program is kept: a file per source and target in the user's cache folder.
fn kept_at(program: &str, target: &str) -> Option<PathBuf> {
    // One that is empty or relative counts as not set.
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")))?;
    // Another compiler makes other code of the same source.
    let (mut major, mut minor) = (0, 0);
    // SAFETY: it writes two numbers.
    unsafe { nvrtc::sys::nvrtcVersion(&mut major, &mut minor) }.result().ok()?;
    let hash = hash([COMMON, program, &format!("{major}.{minor}")].concat().as_bytes());
    Some(cache.join("iris").join(format!("kernels-{target}-{hash:016x}.cubin")))
}

/// FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xCBF2_9CE4_8422_2325, |h, byte| (h ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3))
}

/// The image that was kept, if the file holds all of it: its hash, then itself.
fn read_kept(path: &Path) -> Option<Vec<u8>> {
    let file = std::fs::read(path).ok()?;
    let (start, image) = file.split_at_checked(8)?;
    (start == hash(image).to_le_bytes()).then(|| image.to_vec())
}

/// Keeps an image for the next run, or not: it can always be made again.
fn keep(path: &Path, image: &[u8]) {
    let Some(folder) = path.parent() else { return };
    let whole = path.with_extension(format!("{}.part", std::process::id()));
    let file = [&hash(image).to_le_bytes(), image].concat();
    let written = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&whole, file));
    if written.and_then(|()| std::fs::rename(&whole, path)).is_err() {
        let _ = std::fs::remove_file(&whole);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_a_kept_image_is_not_used() {
        let path = std::env::temp_dir().join(format!("iris-kernels-{}", std::process::id()));
        keep(&path, b"machine code");
        assert_eq!(read_kept(&path).as_deref(), Some(&b"machine code"[..]));
        let file = std::fs::read(&path).unwrap();
        for cut in [0, 5, 8, file.len() - 1] {
            std::fs::write(&path, &file[..cut]).unwrap();
            assert_eq!(read_kept(&path), None, "{cut} bytes");
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read_kept(&path), None);
    }
}
