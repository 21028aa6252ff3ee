//! A reader of the pickles that `torch.save` writes for a state dict. It builds values and executes nothing: the only globals it knows are the
//! four kinds of names such a file needs, and everything else is refused.
//!
//! Time and memory are bounded by the file's size: every opcode takes constant time or time in proportion to its own bytes, and values take at
//! most [`ROOM_PER_BYTE`] bytes per byte read.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::storage::TensorSpec;

mod value;
use value::{Global, SHARED, Storage, Value};

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

/// Passes over a pickled value -> the bytes it takes.
pub fn skip_value(pickle: &[u8]) -> Result<usize> {
    let mut machine = Machine::new(pickle);
    machine.run()?;
    Ok(machine.at)
}

/// Reads a pickled list of names, which other bytes may follow -> the names, and the bytes they take.
pub fn read_names(pickle: &[u8]) -> Result<(Vec<Arc<str>>, usize)> {
    let mut machine = Machine::new(pickle);
    let root = machine.run()?;
    let Value::List(items) = machine.value(root) else { return Err("it has no list of storages".into()) };
    let names = items.iter().map(|&item| match machine.value(item) {
        Value::Text(name) => Ok(name.clone()),
        _ => Err("a name in its list of storages is not text".into()),
    });
    Ok((names.collect::<Result<_>>()?, machine.at))
}

/// The tensors of a state dict by name, in their order.
pub type Tensors = Vec<(String, Arc<TensorSpec>)>;

/// Reads a pickled state dict, which other bytes may follow -> its tensors, and the bytes it takes.
pub fn read_state_dict(pickle: &[u8]) -> Result<(Tensors, usize)> {
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
    Ok((tensors, machine.at))
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
                // Texts of Python 3, then byte strings of Python 2.
                b'X' | b'T' => {
                    let len = u32::from_le_bytes(self.array::<4>()?) as usize;
                    self.text(len)?;
                }
                0x8C | b'U' => {
                    let len = usize::from(self.byte()?);
                    self.text(len)?;
                }
                b'}' => self.push(Value::Dict(Vec::new()))?,
                b']' => self.push(Value::List(Vec::new()))?,
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
                b'a' => {
                    let item = self.pop()?;
                    self.extend_list(&[item])?;
                }
                b'e' => {
                    let items = self.pop_to_mark()?;
                    self.extend_list(&items)?;
                }
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

    fn extend_list(&mut self, items: &[Id]) -> Result<()> {
        self.spend(size_of_val(items))?;
        let list = *self.stack.last().ok_or_else(underflow)?;
        let Value::List(all) = &mut self.values[list as usize] else {
            return Err("it appends to something that is not a list".into());
        };
        all.extend(items);
        Ok(())
    }

    /// ('storage', kind, key, location, elements), and before PyTorch 1.6 the storage it is a part of, None
    fn persistent(&mut self) -> Result<()> {
        let id = self.pop()?;
        let malformed = || "a storage in it is malformed".to_string();
        let Value::Tuple(items) = self.value(id) else { return Err(malformed()) };
        let (&[tag, kind, key, location, len], rest) = items.split_first_chunk().ok_or_else(malformed)?;
        match rest {
            [] => {}
            [whole] if matches!(self.value(*whole), Value::None) => {}
            _ => return Err(malformed()),
        }
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
            Global::OrderedDict => Value::Dict(self.pairs(items)?),
            Global::RebuildTensor => self.tensor(items)?,
            // (tensor, requires_grad, hooks)
            Global::RebuildParameter => match (items.len(), items.first().map(|&i| self.value(i))) {
                (3, Some(tensor @ Value::Tensor(_))) => tensor.clone(),
                _ => return Err("a parameter in it is malformed".into()),
            },
            Global::Storage(_) => return Err(unknown_call()),
        };
        self.push(value)
    }

    /// The pairs that an `OrderedDict` begins with: none, or in Python 2 those of a list of [name, value].
    fn pairs(&self, arguments: &[Id]) -> Result<Vec<(Id, Id)>> {
        let &[list] = arguments else {
            return if arguments.is_empty() { Ok(Vec::new()) } else { Err(unknown_call()) };
        };
        let Value::List(items) = self.value(list) else { return Err(unknown_call()) };
        let pair = |&item: &Id| match self.value(item) {
            Value::List(pair) if pair.len() == 2 => Ok((pair[0], pair[1])),
            _ => Err(unknown_call()),
        };
        items.iter().map(pair).collect()
    }

    /// (storage, offset, shape, strides), then requires_grad and hooks since PyTorch 0.4, and metadata in newer files
    fn tensor(&self, items: &[Id]) -> Result<Value> {
        let malformed = || "a tensor in it is malformed".to_string();
        let Some((&[storage, offset, shape, strides], [] | [_, _] | [_, _, _])) = items.split_first_chunk()
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

fn unknown_call() -> Reason {
    "it calls a function in an unknown way".into()
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
mod tests;
