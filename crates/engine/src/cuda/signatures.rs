//! Every kernel compiled for every architecture that we promise, and compared with its declaration. NVRTC needs no GPU for that.

use std::collections::BTreeMap;

use super::kernels;
use super::library::libraries;
use super::module::{PROGRAMS, compile_program};

/// Ampere, consumer Ampere, Ada, Hopper with its own instructions, Blackwell, consumer Blackwell.
const TARGETS: [&str; 6] = ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120"];

/// The entries of a PTX text: each kernel's parameters as (offset, size).
fn entries(ptx: &str) -> BTreeMap<String, Vec<(usize, usize)>> {
    let mut entries = BTreeMap::new();
    for text in ptx.split(".entry ").skip(1) {
        let (name, rest) = text.split_once('(').unwrap();
        let parameters = rest.split_once(')').unwrap().0;
        let mut end = 0;
        let layout = parameters.split(',').filter(|p| !p.trim().is_empty()).map(|parameter| {
            let (size, alignment) = size_and_alignment(parameter);
            let offset = usize::next_multiple_of(end, alignment);
            end = offset + size;
            (offset, size)
        });
        entries.insert(name.trim().to_string(), layout.collect());
    }
    entries
}

/// `.param .u32 name` or `.param .align 8 .b8 name[16]`
fn size_and_alignment(parameter: &str) -> (usize, usize) {
    let words: Vec<&str> = parameter.split_whitespace().collect();
    let count =
        parameter.split_once('[').map_or(1, |(_, n)| n.trim_end().trim_end_matches(']').parse().unwrap());
    let kind =
        words.iter().find(|w| w.starts_with(".b") || w.starts_with(".u") || w.starts_with(".f")).unwrap();
    let bits: usize = kind[2..].parse().unwrap();
    let size = bits / 8 * count;
    // Of a pointer's attributes, an alignment is that of what it points to.
    let struct_alignment = words.iter().position(|w| *w == ".align").filter(|_| count > 1);
    (size, struct_alignment.map_or(size, |at| words[at + 1].parse().unwrap()))
}

#[test]
fn parameters_are_read() {
    let ptx = ".visible .entry one(\n .param .align 8 .b8 one_param_0[16],\n .param .u32 one_param_1\n)\n{ }\n\
        .visible .entry two(\n\t.param .u64 .ptr .align 1 two_param_0,\n\t.param .f32 p,\n\t.param .f64 q\n)\n.maxntid 256\n{ }";
    let expected = [("one", vec![(0, 16), (16, 4)]), ("two", vec![(0, 8), (8, 4), (16, 8)])];
    assert_eq!(entries(ptx), expected.map(|(name, p)| (name.to_string(), p)).into());
}

#[test]
fn a_declaration_that_is_not_the_kernels_is_refused() {
    let copy = kernels::all().find(|kernel| kernel.name == "copy").unwrap();
    // View, View, u32, int.
    let right = [(0, 16), (16, 16), (32, 4), (36, 4)];
    copy.check_parameters(&right).unwrap();
    for wrong in [&right[..3], &[(0, 16), (16, 8), (24, 4), (28, 4)], &[&right[..], &[(40, 4)]].concat()] {
        let error = copy.check_parameters(wrong).unwrap_err().to_string();
        assert!(error.starts_with("copy failed on the GPU: it is declared with"), "{error}");
    }
}

#[test]
fn declarations_are_those_of_the_sources() {
    let nvrtc = libraries().iter().find(|library| library.name == "NVRTC").unwrap();
    if let Err(missing) = &nvrtc.found {
        // Whoever has fetched it counts on this test.
        assert!(std::env::var_os("IRIS_NVRTC").is_none(), "NVRTC is {missing}");
        return println!("SKIPPED: kernels are not compiled, NVRTC is {missing}");
    }
    let jobs: Vec<_> = PROGRAMS.iter().flat_map(|program| TARGETS.map(|target| (program, target))).collect();
    let compiled = std::sync::Mutex::new(BTreeMap::<&str, BTreeMap<String, _>>::new());
    let next = std::sync::atomic::AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((program, target)) =
                    jobs.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
                {
                    let made = compile_program(program, target).unwrap_or_else(|e| panic!("{target}: {e}"));
                    assert!(!made.image.is_empty());
                    compiled.lock().unwrap().entry(target).or_default().extend(entries(&made.ptx));
                }
            });
        }
    });
    for (target, entries) in compiled.into_inner().unwrap() {
        for kernel in kernels::all() {
            let found =
                entries.get(kernel.name).unwrap_or_else(|| panic!("{target}: no kernel {}", kernel.name));
            kernel.check_parameters(found).unwrap_or_else(|e| panic!("{target}: {e}"));
        }
        let undeclared = entries.keys().find(|name| kernels::all().all(|kernel| kernel.name != **name));
        assert_eq!(undeclared, None, "{target}: a kernel that nothing can launch");
    }
}
