//! What the pickle reader accepts, and what it refuses.

use super::*;

/// Pieces of pickles as `torch.save` writes them.
fn text(s: &str) -> Vec<u8> {
    [&b"X"[..], &(s.len() as u32).to_le_bytes(), s.as_bytes()].concat()
}

fn global(module: &str, name: &str) -> Vec<u8> {
    format!("c{module}\n{name}\n").into_bytes()
}

/// A tensor of `len` floats in storage "0", seen with the given shape and strides.
fn tensor(len: u8, offset: u8, shape: [u8; 2], strides: [u8; 2]) -> Vec<u8> {
    [
        global("torch._utils", "_rebuild_tensor_v2"),
        b"((".to_vec(),
        text("storage"),
        global("torch", "FloatStorage"),
        text("0"),
        text("cpu"),
        vec![b'K', len, b't', b'Q', b'K', offset],
        vec![b'K', shape[0], b'K', shape[1], 0x86, b'K', strides[0], b'K', strides[1], 0x86],
        vec![0x89],
        [global("collections", "OrderedDict"), b")R".to_vec()].concat(),
        b"tR".to_vec(),
    ]
    .concat()
}

fn dict(entries: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut out = [&[0x80, 2][..], &global("collections", "OrderedDict"), b")Rq\x00("].concat();
    for (name, value) in entries {
        out.extend(text(name));
        out.extend(value);
    }
    out.extend(b"u}X\x09\x00\x00\x00_metadata}sb.");
    out
}

#[test]
fn reads_tensors_and_their_strides() {
    let read =
        read_state_dict(&dict(&[("a", tensor(6, 0, [2, 3], [3, 1])), ("b", tensor(6, 1, [2, 2], [1, 2]))]))
            .unwrap()
            .0;
    assert_eq!(read.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(read[0].1.positions().collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    assert_eq!(read[1].1.positions().collect::<Vec<_>>(), [1, 3, 2, 4]);
}

/// Before PyTorch 0.4 tensors had four arguments, before 1.6 storages a sixth, and Python 2 wrote byte strings, and dicts from lists of pairs.
#[test]
fn reads_old_pickles() {
    let old = [
        &b"\x80\x02"[..],
        &global("collections", "OrderedDict"),
        b"](](U\x01a",
        &global("torch._utils", "_rebuild_tensor"),
        b"((U\x07storage",
        &global("torch", "FloatStorage"),
        b"T\x02\x00\x00\x0077U\x03cpuK\x06NtQK\x00K\x06\x85K\x01\x85tRee\x85R.rest",
    ]
    .concat();
    let (tensors, end) = read_state_dict(&old).unwrap();
    assert_eq!(&old[end..], b"rest");
    assert_eq!(
        (tensors[0].0.as_str(), &*tensors[0].1.key, tensors[0].1.shape.as_slice()),
        ("a", "77", &[6][..])
    );
    assert_eq!(refusal(b"\x80\x02}K\x01a."), "it appends to something that is not a list");
    let not_pairs = [&global("collections", "OrderedDict")[..], b"]K\x01a\x85R."].concat();
    assert_eq!(refusal(&not_pairs), "it calls a function in an unknown way");
    let (names, end) = read_names(b"\x80\x02](U\x0277X\x01\x00\x00\x005e.more").unwrap();
    assert_eq!((names.iter().map(|n| &**n).collect::<Vec<_>>(), end), (vec!["77", "5"], 16));
}

fn refusal(pickle: &[u8]) -> String {
    read_state_dict(pickle).unwrap_err()
}

#[test]
fn refuses_everything_but_tensors() {
    // What an attacker would try.
    let shell = [&b"\x80\x02"[..], &global("os", "system"), &text("true"), b"\x85R."].concat();
    assert_eq!(refusal(&shell), "it asks for `os.system`; only tensors are read");
    let eval = [&b"\x80\x04"[..], b"\x8c\x08builtins\x8c\x04eval\x93", &text("1"), b"\x85R."].concat();
    assert_eq!(refusal(&eval), "it asks for `builtins.eval`; only tensors are read");
    assert_eq!(
        refusal(&dict(&[("a", global("torch", "load"))])),
        "it asks for `torch.load`; only tensors are read"
    );
    assert_eq!(refusal(&dict(&[("a", b"K\x01".to_vec())])), "entry `a` is not a tensor");
    assert_eq!(
        refusal(&dict(&[("a", [tensor(6, 0, [2, 3], [3, 1]), b"K\x05\x85R".to_vec()].concat())])),
        "it calls something that is not a function"
    );
    // Opcodes for classes, instances and extensions.
    for op in [b'i', b'o', 0x81, 0x92, 0x82, b'I', b'P'] {
        assert!(refusal(&[0x80, 2, op]).starts_with("it uses opcode"), "{op}");
    }
    assert_eq!(refusal(b"\x80\x02K\x01."), "its content is not a state dict");
}

#[test]
fn refuses_tensors_that_reach_outside() {
    let outside = "a tensor in it reaches outside its storage";
    for bad in [
        tensor(6, 1, [2, 3], [3, 1]),
        tensor(5, 0, [2, 3], [3, 1]),
        tensor(6, 0, [200, 200], [0, 0]),
        tensor(6, 0, [2, 2], [9, 1]),
    ] {
        assert_eq!(refusal(&dict(&[("a", bad)])), outside);
    }
    // Shapes whose product overflows.
    let mut huge = tensor(6, 0, [2, 3], [3, 1]);
    let shape = huge.windows(5).position(|w| w == [b'K', 2, b'K', 3, 0x86]).unwrap();
    let large = [&[0x8A, 8][..], &i64::MAX.to_le_bytes()].concat();
    huge.splice(shape..shape + 4, [large.clone(), large].concat());
    assert_eq!(refusal(&dict(&[("a", huge)])), outside);
    let mut negative = tensor(6, 0, [2, 3], [3, 1]);
    let shape = negative.windows(5).position(|w| w == [b'K', 2, b'K', 3, 0x86]).unwrap();
    negative.splice(shape..shape + 2, [&b"J"[..], &(-1i32).to_le_bytes()].concat());
    assert_eq!(refusal(&dict(&[("a", negative)])), "a tensor in it is malformed");
}

#[test]
fn refuses_broken_pickles() {
    let good = dict(&[("a", tensor(6, 0, [2, 3], [3, 1]))]);
    for len in 0..good.len() {
        assert!(read_state_dict(&good[..len]).is_err(), "cut at {len}");
    }
    assert_eq!(refusal(b"."), "its stack runs empty");
    assert_eq!(refusal(b"t."), "its stack runs empty");
    assert_eq!(refusal(b"h\x07."), "it recalls slot 7, which is empty");
    assert_eq!(refusal(b"K\x01(0."), "its stack runs empty");
    assert_eq!(refusal(b"}(K\x01u."), "a dict in it has a name without a value");
    assert_eq!(refusal(b"\x8a\xff"), "it is cut off");
    let long = [&b"X"[..], &2000u32.to_le_bytes(), &[b'a'; 2000], b"."].concat();
    assert_eq!(refusal(&long), "a name in it has 2000 bytes");
    let twice = dict(&[("a", tensor(6, 0, [2, 3], [3, 1])), ("a", tensor(6, 0, [2, 3], [3, 1]))]);
    assert_eq!(refusal(&twice), "entry `a` is there twice");
}

/// Pickles that ask for much more than they are: refused, and what was built until then is small.
#[test]
fn hostile_pickles_get_no_more_than_their_size_is_worth() {
    let names = |names: usize| text(&"n".repeat(names));
    let once = |start: &[u8], again: &[u8]| [start, &again.repeat(100_000)].concat();
    let storage = [
        b"(".to_vec(),
        text("storage"),
        global("torch", "FloatStorage"),
        names(1000),
        text("cpu"),
        b"K\x06tq\x01".to_vec(),
    ]
    .concat();
    let arguments = |more: &[u8]| {
        let rebuild = global("torch._utils", "_rebuild_tensor_v2");
        [&rebuild[..], b"q\x02(", &storage, b"QK\x00K\x06\x85K\x01\x85", more, b"tq\x03"].concat()
    };
    let deep = "its stack holds more than 65536 values";
    let large = "its values take more than 16 times the room that it takes itself";
    for (pickle, reason) in [
        (once(b"", b"N"), deep),
        (once(b"", b"("), deep),
        (once(b"K\x01q\x00", b"h\x00"), deep),
        // Values that are dropped at once.
        (once(b"", b"}0"), "it is cut off"),
        (once(b"", b")0"), "it is cut off"),
        (once(b"N", b"\x94"), large),
        (once(b"", b"]0"), "it is cut off"),
        (once(b"]", b"Na"), "it is cut off"),
        // A dict of a thousand pairs, again and again.
        (
            once(
                &[
                    &global("collections", "OrderedDict")[..],
                    b"q\x00](",
                    &b"](NNe".repeat(1000),
                    b"e\x85q\x01",
                ]
                .concat(),
                b"h\x00h\x01R0",
            ),
            large,
        ),
        (once(&[&names(1000)[..], b"q\x00}"].concat(), b"h\x00h\x00s"), "it is cut off"),
        // One storage or tensor with a long name, again and again.
        (once(&storage, b"h\x01Q0"), "it is cut off"),
        (once(&arguments(b"\x89N"), b"h\x02h\x03R0"), large),
        // Whatever else stands in its arguments is not even looked at.
        (
            once(&[&arguments(&b"N".repeat(60_000))[..], b"0"].concat(), b"h\x02h\x03R0"),
            "a tensor in it is malformed",
        ),
        (once(b"", b"N0"), "it is cut off"),
    ] {
        let mut machine = Machine::new(&pickle);
        let room = machine.room;
        assert_eq!(machine.run().unwrap_err(), reason, "{:?}", &pickle[pickle.len() - 8..]);
        let built: usize = machine.values.iter().map(Value::size).sum();
        assert!(built <= room + 8192, "{built} bytes of values");
        assert!(machine.stack.len().max(machine.marks.len()) <= DEEPEST_STACK + 1);
    }
    // A dict with one name in it many times is refused at the second.
    let twice =
        [&dict(&[("a", tensor(6, 0, [2, 3], [3, 1]))])[..2], b"}q\x00", &names(1000), b"q\x01"].concat();
    let twice = [twice, tensor(6, 0, [2, 3], [3, 1]), b"q\x0200".to_vec()].concat();
    let twice = [twice, b"h\x01h\x02s".repeat(1000), b".".to_vec()].concat();
    assert!(refusal(&twice).ends_with("is there twice"));
}

/// Random damage never panics. `IRIS_FUZZ_ROUNDS` asks for more of it.
#[test]
fn fuzzed_pickles_never_panic() {
    let rounds = std::env::var("IRIS_FUZZ_ROUNDS").ok().and_then(|r| r.parse().ok()).unwrap_or(20_000u64);
    let good = dict(&[("a", tensor(6, 0, [2, 3], [3, 1])), ("b", tensor(9, 1, [2, 2], [1, 2]))]);
    let opcodes = b".(0NJKMGX}])tqrhjcQRsuaeb\x80\x85\x86\x87\x88\x8a\x8c\x93\x94\x95";
    for round in 0..rounds {
        let mut rng = engine::Rng::new(engine::Key { seed: 1, stream: 0, step: round });
        let mut bytes = good.clone();
        for _ in 0..1 + rng.below(6) {
            let at = rng.below(bytes.len() as u32) as usize;
            match rng.below(5) {
                0 => bytes[at] = rng.next_u32() as u8,
                1 => bytes[at] = opcodes[rng.below(opcodes.len() as u32) as usize],
                2 => drop(bytes.remove(at)),
                3 => bytes.insert(at, opcodes[rng.below(opcodes.len() as u32) as usize]),
                _ => {
                    let end = (at + rng.below(40) as usize).min(bytes.len());
                    let part = bytes[at..end].to_vec();
                    let to = rng.below(bytes.len() as u32) as usize;
                    bytes.splice(to..to, part);
                }
            }
            if bytes.is_empty() {
                break;
            }
        }
        if let Ok((tensors, _)) = read_state_dict(&bytes) {
            // Whatever was accepted stays inside its storage.
            for (_, spec) in tensors {
                assert!(spec.positions().all(|at| at < spec.storage_len));
            }
        }
    }
}
