//! A reader of the pickles that `torch.save` writes for a state dict. It builds values and executes nothing: the only globals it knows are the
//! four kinds of names such a file needs, and everything else is refused.

//!
//! A hostile file gets no more than its size is worth: every opcode takes constant time or time in proportion to its own bytes, and what is built may take
//! [`ROOM_PER_BYTE`] bytes per byte read.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::storage::{Kind, TensorSpec};

/// Why a pickle was not read.
pub type Reason = String;
type Result<T> = std::result::Result<T, Reason>;

/// The most bytes a pickle may have. Those of agents have about a hundred per tensor.
pub const LARGEST_PICKLE: usize = 4 << 20;
/// Names of tensors are short.
const LONGEST_TEXT: usize = 1024;
/// `torch.save` sets the items of a dict a thousand at a time.
const DEEPEST_STACK: usize = 1 << 16;
/// Bytes of values per byte of the pickle; those of agents have about seven.
const ROOM_PER_BYTE: usize = 16;
const MOST_DIMENSIONS: usize = 8;
/// Bytes of values that any pickle may have.
const ROOM: usize = 64 << 10;

/// Index into the machine's values.
type Id = u32;

#[derive(Clone, Debug)]
enum Value {
    None,
    Bool,
    Int(i64),
    Float,
    Text(Arc<str>),
    Tuple(Box<[Id]>),
    List,
    /// Pairs in order; keys are looked at when the dict is read.
    Dict(Vec<(Id, Id)>),
    Global(Global),
    Storage(Box<Storage>),
    Tensor(Arc<TensorSpec>),
}

#[derive(Clone, Debug)]
struct Storage {
    key: Arc<str>,
    kind: Kind,
    len: usize,
}

impl Value {
    /// Bytes that it takes, without what it shares.
    fn size(&self) -> usize {
        let more = match self {
            Value::Text(text) => 16 + text.len(),
            Value::Tuple(items) => size_of_val(&items[..]),
            Value::Storage(_) => size_of::<Storage>(),
            Value::Tensor(spec) => size_of::<TensorSpec>() + 16 * spec.shape.len(),
            _ => 0,
        };
        size_of::<Value>() + more
    }
}

/// Values that there is one of, however often they occur: these, then the integers of a byte.
const SHARED: [Value; 4] = [Value::None, Value::Bool, Value::Float, Value::List];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Global {
    OrderedDict,
    RebuildTensor,
    RebuildParameter,
    Storage(Kind),
}

impl Global {
    fn find(module: &str, name: &str) -> Result<Global> {
        match (module, name) {
            ("collections", "OrderedDict") => Ok(Global::OrderedDict),
            ("torch._utils", "_rebuild_tensor_v2") => Ok(Global::RebuildTensor),
            ("torch._utils", "_rebuild_parameter") => Ok(Global::RebuildParameter),
            ("torch", storage) => Kind::from_storage(storage)
                .map(Global::Storage)
                .ok_or_else(|| format!("it asks for `torch.{storage}`; only tensors are read")),
            _ => Err(format!("it asks for `{module}.{name}`; only tensors are read")),
        }
    }
}

/// Reads the tensors of a pickled state dict, in their order.
pub fn read_state_dict(pickle: &[u8]) -> Result<Vec<(String, Arc<TensorSpec>)>> {
    let mut machine = Machine::new(pickle);
    let root = machine.run()?;
    let Value::Dict(pairs) = machine.value(root) else {
        return Err("its content is not a state dict".into());
    };
    let mut names = HashSet::new();
    let mut tensors = Vec::with_capacity(pairs.len());
    for &(key, value) in pairs {
        let (name, spec) = match (machine.value(key), machine.value(value)) {
            (Value::Text(name), Value::Tensor(spec)) => (name, spec),
            (Value::Text(name), _) => return Err(format!("entry `{name}` is not a tensor")),
            _ => return Err("a name in its state dict is not text".into()),
        };
        if !names.insert(name) {
            return Err(format!("entry `{name}` is there twice"));
        }
        tensors.push((name.to_string(), spec.clone()));
    }
    Ok(tensors)
}

struct Machine<'a> {
    input: &'a [u8],
    at: usize,
    /// Everything ever made; memo and stack refer to it.
    values: Vec<Value>,
    stack: Vec<Id>,
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
    /// Bytes that values may still take.
    room: usize,
}

impl<'a> Machine<'a> {
    fn new(input: &'a [u8]) -> Machine<'a> {
        Machine {
            input,
            at: 0,
            values: SHARED.into_iter().chain((0..=255).map(Value::Int)).collect(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
            room: ROOM + input.len().saturating_mul(ROOM_PER_BYTE),
        }
    }
}

impl Machine<'_> {
    fn run(&mut self) -> Result<Id> {
        loop {
            let op = self.byte()?;
            match op {
                // PROTO, FRAME: nothing to do.
                0x80 => _ = self.byte()?,
                0x95 => _ = self.take(8)?,
                b'.' => return self.pop(),
                b'(' => self.mark()?,
                b'0' => _ = self.pop()?,
                b'N' => self.push(Value::None)?,
                0x88 | 0x89 => self.push(Value::Bool)?,
                b'J' => {
                    let bytes = self.array::<4>()?;
                    self.push(Value::Int(i64::from(i32::from_le_bytes(bytes))))?;
                }
                b'K' => {
                    let byte = self.byte()?;
                    self.push(Value::Int(i64::from(byte)))?;
                }
                b'M' => {
                    let bytes = self.array::<2>()?;
                    self.push(Value::Int(i64::from(u16::from_le_bytes(bytes))))?;
                }
                0x8A => {
                    let len = usize::from(self.byte()?);
                    let value = long(self.take(len)?)?;
                    self.push(Value::Int(value))?;
                }
                b'G' => {
                    self.take(8)?;
                    self.push(Value::Float)?;
                }
                b'X' => {
                    let len = u32::from_le_bytes(self.array::<4>()?) as usize;
                    self.text(len)?;
                }
                0x8C => {
                    let len = usize::from(self.byte()?);
                    self.text(len)?;
                }
                b'}' => self.push(Value::Dict(Vec::new()))?,
                b']' => self.push(Value::List)?,
                b')' => self.push(Value::Tuple(Box::default()))?,
                b't' => {
                    let items = self.pop_to_mark()?;
                    self.push(Value::Tuple(items.into()))?;
                }
                0x85..=0x87 => {
                    let count = usize::from(op - 0x84);
                    let start = self.stack.len().checked_sub(count).ok_or_else(underflow)?;
                    let items = self.stack.split_off(start);
                    self.push(Value::Tuple(items.into()))?;
                }
                b'q' => {
                    let slot = u32::from(self.byte()?);
                    self.remember(slot)?;
                }
                b'r' => {
                    let slot = u32::from_le_bytes(self.array::<4>()?);
                    self.remember(slot)?;
                }
                0x94 => {
                    let slot = self.memo.len() as u32;
                    self.remember(slot)?;
                }
                b'h' => {
                    let slot = u32::from(self.byte()?);
                    self.recall(slot)?;
                }
                b'j' => {
                    let slot = u32::from_le_bytes(self.array::<4>()?);
                    self.recall(slot)?;
                }
                b'c' => {
                    let (module, name) = (self.line()?, self.line()?);
                    self.push(Value::Global(Global::find(&module, &name)?))?;
                }
                0x93 => {
                    let (name, module) = (self.pop()?, self.pop()?);
                    let (Value::Text(module), Value::Text(name)) = (self.value(module), self.value(name))
                    else {
                        return Err("a global's name is not text".into());
                    };
                    let global = Global::find(module, name)?;
                    self.push(Value::Global(global))?;
                }
                b'Q' => self.persistent()?,
                b'R' => self.reduce()?,
                b's' => {
                    let (value, key) = (self.pop()?, self.pop()?);
                    self.extend_dict(&[key, value])?;
                }
                b'u' => {
                    let items = self.pop_to_mark()?;
                    self.extend_dict(&items)?;
                }
                // A list's items are of no interest: lists occur only in what is skipped.
                b'a' => _ = self.pop()?,
                b'e' => _ = self.pop_to_mark()?,
                // The state that a dict's `_metadata` is restored from: dropped.
                b'b' => _ = self.pop()?,
                other => return Err(format!("it uses opcode 0x{other:02x} at byte {}", self.at - 1)),
            }
        }
    }

    fn take(&mut self, len: usize) -> Result<&[u8]> {
        let end = self.at.checked_add(len).filter(|&end| end <= self.input.len()).ok_or("it is cut off")?;
        let bytes = &self.input[self.at..end];
        self.at = end;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    fn byte(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    fn line(&mut self) -> Result<String> {
        let rest = &self.input[self.at..];
        let len = rest.iter().position(|&b| b == b'\n').ok_or("it is cut off")?;
        let line = std::str::from_utf8(&rest[..len]).map_err(|_| "a name in it is not text")?.to_string();
        self.at += len + 1;
        Ok(line)
    }

    fn text(&mut self, len: usize) -> Result<()> {
        if len > LONGEST_TEXT {
            return Err(format!("a name in it has {len} bytes"));
        }
        let text = std::str::from_utf8(self.take(len)?).map_err(|_| "a name in it is not text")?.into();
        self.push(Value::Text(text))
    }

    fn value(&self, id: Id) -> &Value {
        &self.values[id as usize]
    }

    fn push(&mut self, value: Value) -> Result<()> {
        let shared = match &value {
            Value::None => Some(0),
            Value::Bool => Some(1),
            Value::Float => Some(2),
            Value::List => Some(3),
            Value::Int(small @ 0..=255) => Some(SHARED.len() + *small as usize),
            _ => None,
        };
        let id = match shared {
            Some(id) => id,
            None => {
                self.spend(value.size())?;
                self.values.push(value);
                self.values.len() - 1
            }
        };
        self.push_id(Id::try_from(id).map_err(|_| too_large())?)
    }

    fn push_id(&mut self, id: Id) -> Result<()> {
        self.stack.push(id);
        if self.stack.len() > DEEPEST_STACK { Err(too_deep()) } else { Ok(()) }
    }

    fn mark(&mut self) -> Result<()> {
        self.marks.push(self.stack.len());
        if self.marks.len() > DEEPEST_STACK { Err(too_deep()) } else { Ok(()) }
    }

    /// Of the room that the pickle's size allows.
    fn spend(&mut self, bytes: usize) -> Result<()> {
        self.room = self.room.checked_sub(bytes).ok_or_else(too_large)?;
        Ok(())
    }

    fn pop(&mut self) -> Result<Id> {
        // A value below the last mark is not the current opcode's to take.
        let floor = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() <= floor {
            return Err(underflow());
        }
        self.stack.pop().ok_or_else(underflow)
    }

    fn pop_to_mark(&mut self) -> Result<Vec<Id>> {
        let mark = self.marks.pop().ok_or_else(underflow)?;
        if mark > self.stack.len() {
            return Err(underflow());
        }
        Ok(self.stack.split_off(mark))
    }

    fn remember(&mut self, slot: u32) -> Result<()> {
        // A slot of the map, which may be half empty.
        const SLOT: usize = 24;
        let top = *self.stack.last().ok_or_else(underflow)?;
        match self.memo.insert(slot, top) {
            None => self.spend(SLOT),
            Some(_) => Ok(()),
        }
    }

    fn recall(&mut self, slot: u32) -> Result<()> {
        let id = *self.memo.get(&slot).ok_or_else(|| format!("it recalls slot {slot}, which is empty"))?;
        self.push_id(id)
    }

    fn extend_dict(&mut self, items: &[Id]) -> Result<()> {
        self.spend(size_of_val(items))?;
        let dict = *self.stack.last().ok_or_else(underflow)?;
        let Value::Dict(pairs) = &mut self.values[dict as usize] else {
            return Err("it sets an item of something that is not a dict".into());
        };
        if !items.len().is_multiple_of(2) {
            return Err("a dict in it has a name without a value".into());
        }
        pairs.extend(items.as_chunks::<2>().0.iter().map(|&[key, value]| (key, value)));
        Ok(())
    }

    /// ('storage', kind, key, location, elements)
    fn persistent(&mut self) -> Result<()> {
        let id = self.pop()?;
        let malformed = || "a storage in it is malformed".to_string();
        let Value::Tuple(items) = self.value(id) else { return Err(malformed()) };
        let &[tag, kind, key, location, len] = &items[..] else { return Err(malformed()) };
        let (
            Value::Text(tag),
            Value::Global(Global::Storage(kind)),
            Value::Text(key),
            Value::Text(_),
            Value::Int(len),
        ) = (self.value(tag), self.value(kind), self.value(key), self.value(location), self.value(len))
        else {
            return Err(malformed());
        };
        let len = usize::try_from(*len).map_err(|_| "a storage in it has a negative size")?;
        if **tag != *"storage" {
            return Err(format!("it refers to a `{tag}`, not to a storage"));
        }
        let storage = Storage { key: key.clone(), kind: *kind, len };
        self.push(Value::Storage(Box::new(storage)))
    }

    fn reduce(&mut self) -> Result<()> {
        let (arguments, callee) = (self.pop()?, self.pop()?);
        let (Value::Global(global), Value::Tuple(items)) = (self.value(callee), self.value(arguments)) else {
            return Err("it calls something that is not a function".into());
        };
        let value = match global {
            Global::OrderedDict if items.is_empty() => Value::Dict(Vec::new()),
            Global::RebuildTensor => self.tensor(items)?,
            // (tensor, requires_grad, hooks)
            Global::RebuildParameter => match (items.len(), items.first().map(|&i| self.value(i))) {
                (3, Some(tensor @ Value::Tensor(_))) => tensor.clone(),
                _ => return Err("a parameter in it is malformed".into()),
            },
            Global::OrderedDict | Global::Storage(_) => {
                return Err("it calls a function in an unknown way".into());
            }
        };
        self.push(value)
    }

    /// (storage, offset, shape, strides, requires_grad, hooks), and metadata in newer files
    fn tensor(&self, items: &[Id]) -> Result<Value> {
        let malformed = || "a tensor in it is malformed".to_string();
        let (&[storage, offset, shape, strides, _, _] | &[storage, offset, shape, strides, _, _, _]) = items
        else {
            return Err(malformed());
        };
        let (Value::Storage(storage), Value::Int(offset), Value::Tuple(shape), Value::Tuple(strides)) =
            (self.value(storage), self.value(offset), self.value(shape), self.value(strides))
        else {
            return Err(malformed());
        };
        if shape.len() != strides.len() || shape.len() > MOST_DIMENSIONS {
            return Err(malformed());
        }
        let sizes = |ids: &[Id]| -> Result<Vec<usize>> {
            ids.iter()
                .map(|&id| match self.value(id) {
                    Value::Int(n) => usize::try_from(*n).map_err(|_| malformed()),
                    _ => Err(malformed()),
                })
                .collect()
        };
        let spec = TensorSpec {
            key: storage.key.clone(),
            kind: storage.kind,
            storage_len: storage.len,
            offset: usize::try_from(*offset).map_err(|_| malformed())?,
            shape: sizes(shape)?,
            strides: sizes(strides)?,
        };
        if !spec.fits() {
            return Err("a tensor in it reaches outside its storage".into());
        }
        Ok(Value::Tensor(Arc::new(spec)))
    }
}

fn too_deep() -> Reason {
    format!("its stack holds more than {DEEPEST_STACK} values")
}

fn too_large() -> Reason {
    format!("its values take more than {ROOM_PER_BYTE} times the room that it takes itself")
}

fn underflow() -> Reason {
    "its stack runs empty".into()
}

/// A little-endian two's complement integer of up to eight bytes.
fn long(bytes: &[u8]) -> Result<i64> {
    if bytes.len() > 8 {
        return Err("an integer in it is too large".into());
    }
    let negative = bytes.last().is_some_and(|b| b & 0x80 != 0);
    let mut full = [if negative { 0xFF } else { 0 }; 8];
    full[..bytes.len()].copy_from_slice(bytes);
    Ok(i64::from_le_bytes(full))
}

#[cfg(test)]
mod tests {
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
        let read = read_state_dict(&dict(&[
            ("a", tensor(6, 0, [2, 3], [3, 1])),
            ("b", tensor(6, 1, [2, 2], [1, 2])),
        ]))
        .unwrap();
        assert_eq!(read.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(read[0].1.positions().collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
        assert_eq!(read[1].1.positions().collect::<Vec<_>>(), [1, 3, 2, 4]);
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
            if let Ok(tensors) = read_state_dict(&bytes) {
                // Whatever was accepted stays inside its storage.
                for (_, spec) in tensors {
                    assert!(spec.positions().all(|at| at < spec.storage_len));
                }
            }
        }
    }
}
