//! What a pickle of a state dict is made of.

use std::sync::Arc;

use super::{Id, Result};
use crate::reference::storage::{Kind, TensorSpec};

#[derive(Clone, Debug)]
pub enum Value {
    None,
    Bool,
    Int(i64),
    Float,
    Text(Arc<str>),
    Tuple(Box<[Id]>),
    List(Vec<Id>),
    /// Pairs in order; keys are looked at when the dict is read.
    Dict(Vec<(Id, Id)>),
    Global(Global),
    Storage(Box<Storage>),
    Tensor(Arc<TensorSpec>),
}

#[derive(Clone, Debug)]
pub struct Storage {
    pub key: Arc<str>,
    pub kind: Kind,
    pub len: usize,
}

impl Value {
    /// Bytes that it takes, without what it shares.
    pub fn size(&self) -> usize {
        let more = match self {
            Value::Text(text) => 16 + text.len(),
            Value::Tuple(items) => size_of_val(&items[..]),
            Value::List(items) => size_of_val(&items[..]),
            Value::Dict(pairs) => size_of_val(&pairs[..]),
            Value::Storage(_) => size_of::<Storage>(),
            Value::Tensor(spec) => size_of::<TensorSpec>() + 16 * spec.shape.len(),
            _ => 0,
        };
        size_of::<Value>() + more
    }
}

/// Values that there is one of, however often they occur: these, then the integers of a byte.
pub const SHARED: [Value; 3] = [Value::None, Value::Bool, Value::Float];

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Global {
    OrderedDict,
    RebuildTensor,
    RebuildParameter,
    Storage(Kind),
}

impl Global {
    pub fn find(module: &str, name: &str) -> Result<Global> {
        match (module, name) {
            ("collections", "OrderedDict") => Ok(Global::OrderedDict),
            ("torch._utils", "_rebuild_tensor_v2" | "_rebuild_tensor") => Ok(Global::RebuildTensor),
            ("torch._utils", "_rebuild_parameter") => Ok(Global::RebuildParameter),
            ("torch", storage) => Kind::from_storage(storage)
                .map(Global::Storage)
                .ok_or_else(|| format!("it asks for `torch.{storage}`; only tensors are read")),
            _ => Err(format!("it asks for `{module}.{name}`; only tensors are read")),
        }
    }
}
