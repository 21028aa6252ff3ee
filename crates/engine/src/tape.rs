//! One step: ops run at once, record what their gradients need, and are walked backwards.

use std::sync::Arc;

use crate::device::{Element, Slot};
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
    pub fn shape(&self) -> Shape {
        self.shape
    }

    pub fn dims(&self) -> &[usize] {
        self.shape.dims()
    }

    pub fn dtype(&self) -> DType {
        self.dtype
    }

    pub(crate) fn len(&self) -> usize {
        self.shape.len()
    }
}

/// Runs steps: owns the arena they allocate from and the counter that keys their randomness.
///
/// Inputs reach a step through [`Buffer`]s written before it, results leave it through buffers read after it; in between nothing
/// touches the host, so a device may record the step once and replay it.
pub struct Stepper {
    tape: Tape,
}

impl Stepper {
    pub fn new(device: &Device, key: Key) -> Stepper {
        Stepper { tape: Tape::new(device.clone(), key) }
    }

    /// The randomness of the next step. Saving it and giving it back continues the sequence.
    pub fn key(&self) -> Key {
        self.tape.key
    }

    pub fn set_key(&mut self, key: Key) {
        self.tape.key = key;
    }

    /// Bytes of the arena, which keeps every block it ever handed out: with steps of the same shapes, the most they need at once.
    pub fn arena_bytes(&self) -> usize {
        self.tape.arena.bytes()
    }

    /// Runs one step without gradients: parameters are constants, nothing is recorded.
    pub fn infer<R: Send, E: Send>(
        &mut self,
        step: impl FnOnce(&mut Tape) -> Result<R, E> + Send,
    ) -> Result<R, E> {
        self.tape.recording = false;
        let result = self.run(step);
        self.tape.recording = true;
        result
    }

    /// Runs one step. Its tensors are gone when it returns; the counter moves on even when it fails.
    pub fn run<R: Send, E: Send>(
        &mut self,
        step: impl FnOnce(&mut Tape) -> Result<R, E> + Send,
    ) -> Result<R, E> {
        let tape = &mut self.tape;
        let device = tape.device.clone();
        let result = device.install(|| step(&mut *tape));
        tape.reset();
        tape.key.step += 1;
        result
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
    /// Whether a backward pass of this step has written its gradients, and no update has used them yet.
    has_gradients: bool,
}

/// The record of a running step. Ops are methods; each lives in its own file under `ops`.
pub struct Tape {
    device: Device,
    arena: Arena,
    nodes: Vec<Node>,
    records: Vec<Record>,
    /// Inputs of ops that take any number of them; records hold ranges of it.
    lists: Vec<Tensor>,
    bound: Vec<Bound>,
    params: Vec<BoundParams>,
    generation: u64,
    key: Key,
    sites: u32,
    /// Whether parameters ask for gradients in this step.
    recording: bool,
    /// Nodes there were at the last backward pass: what came before has no record any more.
    walked: usize,
}

/// A gradient taken out for writing.
pub(crate) struct Grad {
    block: Block,
    start: usize,
    len: usize,
    node: u32,
    /// Add to what is there; otherwise overwrite it.
    pub accumulate: bool,
}

impl Grad {
    pub fn slice(&mut self) -> &mut [f32] {
        &mut self.block.f32_mut()[self.start..self.start + self.len]
    }
}

impl Tape {
    fn new(device: Device, key: Key) -> Tape {
        // Generations are unique over all tapes, so that a tensor of one is refused by another.
        Tape {
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
            recording: true,
            walked: 0,
        }
    }

    /// Ends the step: blocks go back to the arena, bound buffers to their owners.
    fn reset(&mut self) {
        for node in self.nodes.drain(..) {
            if let Data::Owned(block) = node.data {
                self.arena.give_back(block);
            }
            if let Some(block) = node.grad {
                self.arena.give_back(block);
            }
        }
        for bound in self.bound.drain(..) {
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

    fn bind_params(&mut self, params: &Params) -> Result<u32> {
        let bound = self.bind(&params.values)?;
        if let Some(found) = self.params.iter().find(|p| p.values == bound) {
            return Ok(found.first_node);
        }
        let training = params.training.as_ref().filter(|_| self.recording);
        let gradients = training.map(|t| self.bind(&t.gradients)).transpose()?;
        let first_node = self.nodes.len() as u32;
        for spec in params.specs() {
            self.nodes.push(Node {
                data: Data::Bound { bound, start: spec.offset },
                len: spec.shape.len(),
                needs_grad: gradients.is_some(),
                grad: None,
                grad_home: gradients.map(|g| (g, spec.offset)),
                grad_written: false,
            });
        }
        let count = params.specs().len();
        self.params.push(BoundParams { values: bound, first_node, count, has_gradients: false });
        Ok(first_node)
    }

    /// Copies a tensor into a buffer, from element `start` on.
    pub fn store(&mut self, buffer: &Buffer, start: usize, tensor: Tensor) -> Result<()> {
        const OP: &str = "store";
        self.check(OP, tensor, buffer.dtype())?;
        let (end, limit) = (start.saturating_add(tensor.len()), buffer.shape().len());
        if end > limit {
            return Err(Error::RangeOutOfBounds { op: OP, start, end, limit });
        }
        self.store_rows(buffer, start, tensor, 0, tensor.len())
    }

    /// Copies elements `from..from + len` of a tensor to elements `start..` of a buffer.
    pub(crate) fn store_rows(
        &mut self,
        buffer: &Buffer,
        start: usize,
        tensor: Tensor,
        from: usize,
        len: usize,
    ) -> Result<()> {
        let bound = self.bind(buffer)?;
        let reads = |node: &Node| matches!(node.data, Data::Bound { bound: b, .. } if b == bound);
        // Gradients still need what recorded ops have read.
        let recorded = !self.records.is_empty() && self.nodes.iter().any(reads);
        if recorded || reads(&self.nodes[tensor.node as usize]) {
            return Err(Error::InUse { name: buffer.slot.name.clone() });
        }
        let mut block = std::mem::take(&mut self.bound[bound].block);
        let size = tensor.dtype.size();
        let source = &self.bytes(tensor)[from * size..(from + len) * size];
        block.all_mut::<u8>()[start * size..(start + len) * size].copy_from_slice(source);
        self.bound[bound].block = block;
        Ok(())
    }

    /// Gives `f` a bound buffer to change in place, beside read access to the tape.
    pub(crate) fn with_buffer_mut<T: Element, R>(
        &mut self,
        buffer: &Buffer,
        f: impl FnOnce(&Tape, &mut [T]) -> R,
    ) -> Result<R> {
        let bound = self.bind(buffer)?;
        let mut block = std::mem::take(&mut self.bound[bound].block);
        let result = f(self, block.all_mut::<T>());
        self.bound[bound].block = block;
        Ok(result)
    }

    // ---- for ops: allocation, data, recording ----

    pub(crate) fn alloc(&mut self, len: usize, dtype: DType) -> Block {
        self.arena.take(len * dtype.size())
    }

    /// Working memory of one op, in f32s.
    pub(crate) fn scratch(&mut self, len: usize) -> Block {
        self.arena.take(len * 4)
    }

    pub(crate) fn give_back(&mut self, block: Block) {
        self.arena.give_back(block);
    }

    fn push_data(&mut self, data: Data, len: usize, shape: Shape, dtype: DType, needs_grad: bool) -> Tensor {
        let node = self.nodes.len() as u32;
        self.nodes.push(Node { data, len, needs_grad, grad: None, grad_home: None, grad_written: false });
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
        if tensor.dtype != dtype {
            return Err(Error::DTypeMismatch { op, expected: dtype, got: tensor.dtype });
        }
        Ok(())
    }

    pub(crate) fn check_f32(&self, op: &'static str, tensors: &[Tensor]) -> Result<()> {
        tensors.iter().try_for_each(|&t| self.check(op, t, DType::F32))
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
            DType::F32 => bytemuck::cast_slice(self.f32(tensor)),
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
        let mut block = self.alloc(tensor.len(), tensor.dtype);
        block.all_mut::<u8>().copy_from_slice(self.bytes(tensor));
        Ok(self.push(block, tensor.shape, tensor.dtype, false))
    }

    /// A copy of a tensor on the host. Waits for the device: for tests and for looking at single values.
    pub fn read<T: Element>(&self, tensor: Tensor) -> Result<Vec<T>> {
        self.check("read", tensor, T::DTYPE)?;
        Ok(self.data::<T>(tensor).to_vec())
    }

    // ---- gradients ----

    /// Computes the gradient of a scalar loss for every parameter it depends on. It uses up the record of everything before it: a second loss in
    /// the same step must be computed after this call.
    pub fn backward(&mut self, loss: Tensor) -> Result<()> {
        const OP: &str = "backward";
        self.check_f32(OP, &[loss])?;
        if loss.len() != 1 {
            return Err(Error::BadShape { op: OP, shape: loss.shape, rule: "a loss is a single number" });
        }
        if !self.needs_grad(loss) || (loss.node as usize) < self.walked {
            return Err(Error::NoGradient { op: OP });
        }
        let value = self.f32(loss)[0];
        if !value.is_finite() {
            return Err(Error::NotFinite { what: "the loss", value });
        }
        let mut one = self.alloc(1, DType::F32);
        one.f32_mut()[0] = 1.0;
        self.backward_from(loss, one)
    }

    /// Runs the records backwards from a gradient of `tensor`.
    pub(crate) fn backward_from(&mut self, tensor: Tensor, gradient: Block) -> Result<()> {
        // Gradients of an earlier backward pass in this step do not count any more.
        for node in &mut self.nodes {
            node.grad_written = false;
        }
        self.hand_grad(tensor, gradient);
        while let Some(record) = self.records.pop() {
            record.backward(self)?;
        }
        // In a network that the loss depends on, the parameters it does not depend on have a zero gradient.
        for params in &mut self.params {
            let first = params.first_node as usize;
            let nodes = &self.nodes[first..first + params.count];
            if nodes.iter().any(|node| node.grad_written) {
                params.has_gradients = true;
                for node in nodes.iter().filter(|node| !node.grad_written) {
                    if let Some((bound, start)) = node.grad_home {
                        self.bound[bound].block.f32_mut()[start..start + node.len].fill(0.0);
                    }
                }
            }
        }
        self.walked = self.nodes.len();
        Ok(())
    }

    /// Whether this step has gradients of `params` that no update has used; they count as used from now on.
    pub(crate) fn use_gradients(&mut self, params: &Params) -> bool {
        let bound = self.bound.iter().position(|b| Arc::ptr_eq(&b.slot, &params.values.slot));
        let found = self.params.iter_mut().find(|p| Some(p.values) == bound);
        found.is_some_and(|p| std::mem::take(&mut p.has_gradients))
    }

    /// Takes the finished gradient of an op's result; `None` when nothing depended on it.
    pub(crate) fn take_grad(&mut self, tensor: Tensor) -> Option<Block> {
        self.nodes[tensor.node as usize].grad.take()
    }

    /// Takes the gradient of an op's input out to be written or added to; `None` when it needs none. Give it back with
    /// [`put_grad`](Tape::put_grad) before taking another one.
    pub(crate) fn grad(&mut self, tensor: Tensor) -> Option<Grad> {
        let index = tensor.node as usize;
        let node = &mut self.nodes[index];
        if !node.needs_grad {
            return None;
        }
        let (len, accumulate) = (node.len, node.grad_written || node.grad.is_some());
        let (block, start) = match node.grad_home {
            Some((bound, start)) => (std::mem::take(&mut self.bound[bound].block), start),
            None => match node.grad.take() {
                Some(block) => (block, 0),
                None => (self.arena.take(len * 4), 0),
            },
        };
        Some(Grad { block, start, len, node: tensor.node, accumulate })
    }

    pub(crate) fn put_grad(&mut self, grad: Grad) {
        let node = &mut self.nodes[grad.node as usize];
        match node.grad_home {
            Some((bound, _)) => {
                node.grad_written = true;
                self.bound[bound].block = grad.block;
            }
            None => node.grad = Some(grad.block),
        }
    }

    /// Adds a finished gradient to that of `tensor`, without a copy when it is the first.
    pub(crate) fn hand_grad(&mut self, tensor: Tensor, block: Block) {
        let node = &mut self.nodes[tensor.node as usize];
        if node.needs_grad && node.grad.is_none() && node.grad_home.is_none() {
            node.grad = Some(block);
            return;
        }
        if let Some(mut grad) = self.grad(tensor) {
            let accumulate = grad.accumulate;
            add_or_set(grad.slice(), block.f32(), accumulate);
            self.put_grad(grad);
        }
        self.give_back(block);
    }
}

/// target (+)= source
pub(crate) fn add_or_set(target: &mut [f32], source: &[f32], accumulate: bool) {
    const CHUNK: usize = 1 << 14;
    crate::cpu::chunks_mut(target, CHUNK, |i, target| {
        let source = &source[i * CHUNK..i * CHUNK + target.len()];
        match accumulate {
            true => target.iter_mut().zip(source).for_each(|(t, s)| *t += s),
            false => target.copy_from_slice(source),
        }
    });
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
