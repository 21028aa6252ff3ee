//! One step: ops run at once, record what their gradients need, and are walked backwards.

mod cuda;
mod gradients;
mod stores;

use std::sync::Arc;

pub(crate) use cuda::Operand;
pub(crate) use gradients::{Grad, add_or_set};

use crate::backend::Backend;
use crate::buffer::Slot;
use crate::dtype::{Bf16, Element, from_bf16};
use crate::memory::{Arena, Block};
use crate::ops::Record;
use crate::rng::{Key, Site};
use crate::{Buffer, DType, Device, Error, Param, Params, Result, Shape};

/// A handle to a tensor of the current step: contiguous, row-major, images NHWC.
#[derive(Clone, Copy, Debug)]
pub struct Tensor {
    pub(crate) node: u32,
    generation: u64,
    shape: Shape,
    dtype: DType,
}

impl Tensor {
    /// Its dimensions, as a value.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Its dimensions.
    pub fn dims(&self) -> &[usize] {
        self.shape.dims()
    }

    /// Its element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    pub(crate) fn len(&self) -> usize {
        self.shape.len()
    }
}

enum Data {
    Owned(Block),
    /// Part of a bound buffer.
    Bound {
        bound: usize,
        start: usize,
    },
}

struct Node {
    data: Data,
    dtype: DType,
    /// In elements.
    len: usize,
    needs_grad: bool,
    grad: Option<Block>,
    /// Where a parameter's gradient lives: a bound buffer, the start in it, and whether it was written in this step.
    grad_home: Option<(usize, usize)>,
    grad_written: bool,
}

struct Bound {
    slot: Arc<Slot>,
    block: Block,
}

/// Where a parameter set's nodes start, by the bound buffer of its values.
struct BoundParams {
    values: usize,
    first_node: u32,
    count: usize,
    /// The bound copy of the values as precise as the activations, where these are not f32.
    narrow: Option<usize>,
    /// Whether a backward pass of this step has written its gradients, and no update has used them yet.
    has_gradients: bool,
}

/// The record of a running step. Ops are methods; each lives in its own file under `ops`.
pub struct Tape {
    pub(crate) device: Device,
    pub(crate) arena: Arena,
    nodes: Vec<Node>,
    records: Vec<Record>,
    /// Inputs of ops that take any number of them; records hold ranges of it.
    lists: Vec<Tensor>,
    bound: Vec<Bound>,
    params: Vec<BoundParams>,
    generation: u64,
    pub(crate) key: Key,
    sites: u32,
    /// Whether parameters ask for gradients in this step.
    pub(crate) with_gradients: bool,
    /// Nodes there were at the last backward pass: what came before has no record any more.
    walked: usize,
    /// On a GPU: the key of the step's random numbers, as its kernels read it.
    state: Option<Block>,
}

impl Tape {
    pub(crate) fn new(device: Device, key: Key) -> Tape {
        // Generations are unique over all tapes, so that a tensor of one is refused by another.
        Tape {
            state: None,
            device,
            arena: Arena::default(),
            nodes: Vec::new(),
            records: Vec::new(),
            lists: Vec::new(),
            bound: Vec::new(),
            params: Vec::new(),
            generation: next_generation(),
            key,
            sites: 0,
            with_gradients: true,
            walked: 0,
        }
    }

    /// The buffers that the step uses so far.
    pub(crate) fn bound_slots(&self) -> Vec<Arc<Slot>> {
        self.bound.iter().map(|bound| bound.slot.clone()).collect()
    }

    /// Tells a GPU the step's key.
    pub(crate) fn prepare(&mut self) -> Result<()> {
        let backend = self.backend();
        let Backend::Cuda(gpu) = &backend else { return Ok(()) };
        gpu.enter()?;
        let words = self.key.words();
        let state = match &mut self.state {
            Some(state) => state,
            none => none.insert(Block::zeroed("the random key", size_of_val(&words), &backend)?),
        };
        gpu.upload(state.at(), bytemuck::bytes_of(&words))
    }

    /// Ends the step: blocks go back to the arena, bound buffers to their owners.
    pub(crate) fn reset(&mut self) {
        for node in self.nodes.drain(..) {
            if let Data::Owned(block) = node.data {
                self.arena.give_back(block);
            }
            if let Some(block) = node.grad {
                self.arena.give_back(block);
            }
        }
        for mut bound in self.bound.drain(..) {
            // What a failed op had taken out is gone; its owner gets zeros.
            let bytes = bound.slot.shape.len() * bound.slot.dtype.size();
            if bytes > 0 && bound.block.is_lost() {
                let zeros = || Block::zeroed(&bound.slot.name, bytes, self.device.backend());
                let replaced = zeros().or_else(|_| {
                    // Memory is full: what steps keep for later makes room.
                    self.arena = Arena::default();
                    zeros()
                });
                match replaced {
                    Ok(block) => bound.block = block,
                    Err(error) => {
                        bound.slot.lose(error);
                        continue;
                    }
                }
            }
            bound.slot.put(bound.block);
        }
        self.records.clear();
        self.lists.clear();
        self.params.clear();
        self.generation = next_generation();
        self.sites = 0;
        self.walked = 0;
    }

    // ---- leaves ----

    fn bind(&mut self, buffer: &Buffer) -> Result<usize> {
        if let Some(index) = self.bound.iter().position(|b| Arc::ptr_eq(&b.slot, &buffer.slot)) {
            return Ok(index);
        }
        if !self.device.shares_memory_with(buffer.device()) {
            return Err(Error::OtherDevice { name: buffer.slot.name.clone() });
        }
        let block = buffer.slot.take()?;
        self.bound.push(Bound { slot: buffer.slot.clone(), block });
        Ok(self.bound.len() - 1)
    }

    /// The contents of a buffer, without gradient. The tensor shows later [`store`](Tape::store)s into the buffer.
    pub fn buffer(&mut self, buffer: &Buffer) -> Result<Tensor> {
        let bound = self.bind(buffer)?;
        let len = buffer.shape().len();
        Ok(self.push_data(Data::Bound { bound, start: 0 }, len, buffer.shape(), buffer.dtype(), false))
    }

    /// A parameter of a network. Gradients reach it unless the network is frozen.
    pub fn param(&mut self, params: &Params, param: Param) -> Result<Tensor> {
        if params.specs().get(param.index).is_none_or(|spec| spec.shape != param.shape) {
            let name = format!("number {} of another network", param.index);
            return Err(Error::UnknownParameter { name });
        }
        let first = self.bind_params(params)?;
        Ok(Tensor {
            node: first + param.index as u32,
            generation: self.generation,
            shape: param.shape,
            dtype: DType::F32,
        })
    }

    /// The values of a parameter, without gradient: for networks that read what another one learns.
    pub fn param_values(&mut self, params: &Params, param: Param) -> Result<Tensor> {
        let spec = params.specs().get(param.index).filter(|spec| spec.shape == param.shape);
        let Some(start) = spec.map(|spec| spec.offset) else {
            let name = format!("number {} of another network", param.index);
            return Err(Error::UnknownParameter { name });
        };
        let bound = self.bind(&params.values)?;
        let len = param.shape.len();
        Ok(self.push_data(Data::Bound { bound, start }, len, param.shape, DType::F32, false))
    }

    fn bind_params(&mut self, params: &Params) -> Result<u32> {
        let bound = self.bind(&params.values)?;
        if let Some(found) = self.params.iter().find(|p| p.values == bound) {
            return Ok(found.first_node);
        }
        let training = params.training.as_ref().filter(|_| self.with_gradients);
        let gradients = training.map(|t| self.bind(&t.gradients)).transpose()?;
        let first_node = self.nodes.len() as u32;
        for spec in params.specs() {
            self.nodes.push(Node {
                data: Data::Bound { bound, start: spec.offset },
                dtype: DType::F32,
                len: spec.shape.len(),
                needs_grad: gradients.is_some(),
                grad: None,
                grad_home: gradients.map(|g| (g, spec.offset)),
                grad_written: false,
            });
        }
        let count = params.specs().len();
        let narrow = params.narrow.as_ref().map(|copy| self.bind(copy)).transpose()?;
        self.params.push(BoundParams { values: bound, first_node, count, narrow, has_gradients: false });
        Ok(first_node)
    }

    // ---- for ops: backend, allocation, data, records ----

    /// What the step computes on: a handle of its own, so that an op can hold it while it changes the tape.
    pub(crate) fn backend(&self) -> Backend {
        self.device.backend().clone()
    }

    pub(crate) fn alloc(&mut self, len: usize, dtype: DType) -> Result<Block> {
        self.arena.take(len * dtype.size(), self.device.backend())
    }

    /// Working memory of one op, in f32s.
    pub(crate) fn scratch(&mut self, len: usize) -> Result<Block> {
        self.alloc(len, DType::F32)
    }

    pub(crate) fn give_back(&mut self, block: Block) {
        self.arena.give_back(block);
    }

    fn push_data(&mut self, data: Data, len: usize, shape: Shape, dtype: DType, needs_grad: bool) -> Tensor {
        let node = self.nodes.len() as u32;
        self.nodes.push(Node {
            data,
            dtype,
            len,
            needs_grad,
            grad: None,
            grad_home: None,
            grad_written: false,
        });
        Tensor { node, generation: self.generation, shape, dtype }
    }

    /// A new tensor holding `block`.
    pub(crate) fn push(
        &mut self,
        block: Block,
        shape: impl Into<Shape>,
        dtype: DType,
        needs_grad: bool,
    ) -> Tensor {
        let shape = shape.into();
        self.push_data(Data::Owned(block), shape.len(), shape, dtype, needs_grad)
    }

    pub(crate) fn record(&mut self, record: impl Into<Record>) {
        self.records.push(record.into());
    }

    /// Keeps the inputs of a record that has any number of them.
    pub(crate) fn keep_list(&mut self, tensors: &[Tensor]) -> (usize, usize) {
        let start = self.lists.len();
        self.lists.extend_from_slice(tensors);
        (start, self.lists.len())
    }

    pub(crate) fn kept(&self, index: usize) -> Tensor {
        self.lists[index]
    }

    /// Checks that a tensor belongs to this step and has the given type.
    pub(crate) fn check(&self, op: &'static str, tensor: Tensor, dtype: DType) -> Result<()> {
        if tensor.generation != self.generation {
            return Err(Error::StaleTensor { op });
        }
        if !dtype.takes(tensor.dtype) {
            return Err(Error::DTypeMismatch { op, expected: dtype, got: tensor.dtype });
        }
        Ok(())
    }

    pub(crate) fn check_f32(&self, op: &'static str, tensors: &[Tensor]) -> Result<()> {
        tensors.iter().try_for_each(|&t| self.check(op, t, DType::F32))
    }

    /// For tensors that kernels read as f32 whatever the activations are: parameters of norms, biases, losses.
    pub(crate) fn check_exact(&self, op: &'static str, tensors: &[Tensor]) -> Result<()> {
        self.check_f32(op, tensors)?;
        match tensors.iter().find(|t| t.dtype != DType::F32) {
            None => Ok(()),
            Some(t) => Err(Error::DTypeMismatch { op, expected: DType::F32, got: t.dtype }),
        }
    }

    /// Refuses tensors without elements: no op has a meaning for them.
    pub(crate) fn check_not_empty(&self, op: &'static str, tensors: &[Tensor]) -> Result<()> {
        match tensors.iter().find(|t| t.shape.is_empty()) {
            None => Ok(()),
            Some(t) => Err(Error::BadShape { op, shape: t.shape, rule: "it has at least one element" }),
        }
    }

    pub(crate) fn needs_grad(&self, tensor: Tensor) -> bool {
        self.nodes[tensor.node as usize].needs_grad
    }

    pub(crate) fn any_needs_grad(&self, tensors: &[Tensor]) -> bool {
        tensors.iter().any(|&t| self.needs_grad(t))
    }

    fn data<T: Element>(&self, tensor: Tensor) -> &[T] {
        let node = &self.nodes[tensor.node as usize];
        match &node.data {
            Data::Owned(block) => &block.all()[..node.len],
            Data::Bound { bound, start } => &self.bound[*bound].block.all()[*start..*start + node.len],
        }
    }

    pub(crate) fn bytes(&self, tensor: Tensor) -> &[u8] {
        match tensor.dtype {
            DType::F32 | DType::BF16 => bytemuck::cast_slice(self.f32(tensor)),
            DType::I32 => bytemuck::cast_slice(self.i32(tensor)),
            DType::U8 => self.u8(tensor),
        }
    }

    pub(crate) fn f32(&self, tensor: Tensor) -> &[f32] {
        self.data(tensor)
    }

    pub(crate) fn i32(&self, tensor: Tensor) -> &[i32] {
        self.data(tensor)
    }

    pub(crate) fn u8(&self, tensor: Tensor) -> &[u8] {
        self.data(tensor)
    }

    /// The numbers of the step's next random draw.
    pub(crate) fn next_site(&mut self) -> Site {
        self.sites += 1;
        self.key.site(self.sites - 1)
    }

    // ---- for users: looking at tensors ----

    /// The same values seen with another shape.
    pub fn reshape(&self, tensor: Tensor, shape: impl Into<Shape>) -> Result<Tensor> {
        let shape = shape.into();
        if shape.len() != tensor.len() {
            let rule = "a reshape keeps the number of elements";
            return Err(Error::ShapeMismatch { op: "reshape", lhs: tensor.shape, rhs: shape, rule });
        }
        Ok(Tensor { shape, ..tensor })
    }

    /// The same values, through which no gradient flows.
    pub fn detach(&mut self, tensor: Tensor) -> Result<Tensor> {
        self.check("detach", tensor, tensor.dtype)?;
        if !self.needs_grad(tensor) {
            return Ok(tensor);
        }
        let mut block = self.alloc(tensor.len(), tensor.dtype)?;
        match self.backend() {
            Backend::Cpu => block.all_mut::<u8>().copy_from_slice(self.bytes(tensor)),
            Backend::Cuda(gpu) => {
                gpu.copy(block.at(), self.at(tensor), tensor.len() * tensor.dtype.size())?
            }
        }
        Ok(self.push(block, tensor.shape, tensor.dtype, false))
    }

    /// A copy of a tensor on the host. Waits for the device: for tests and for looking at single values.
    pub fn read<T: Element>(&self, tensor: Tensor) -> Result<Vec<T>> {
        self.check("read", tensor, T::DTYPE)?;
        let node = &self.nodes[tensor.node as usize];
        let (block, start) = match &node.data {
            Data::Owned(block) => (block, 0),
            Data::Bound { bound, start } => (&self.bound[*bound].block, *start),
        };
        let values = match tensor.dtype {
            DType::BF16 => bytemuck::cast_vec(from_bf16(&block.read::<Bf16>(start, start + node.len)?)),
            _ => block.read(start, start + node.len)?,
        };
        self.device.synchronise()?;
        Ok(values)
    }
}

impl Drop for Tape {
    fn drop(&mut self) {
        self.reset();
    }
}

fn next_generation() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
