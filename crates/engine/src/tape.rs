//! One step: ops run at once, record what their gradients need, and are walked backwards.

use std::collections::HashMap;
use std::sync::Arc;

use crate::cuda::{Arg, Gpu, Graph, Grid};
use crate::device::{Bf16, Element, Slot, from_bf16};
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
    recorded: HashMap<StepId, Recording>,
}

/// What makes a recorded step the same as an earlier one: its name, and a number for everything else that its computation depends on
/// beside the contents of buffers.
pub type StepId = (&'static str, u64);

/// How far a device is with a step that is to be replayed.
enum Recording {
    /// It ran once: memory is taken, algorithms are chosen.
    Warm,
    Ready {
        graph: Graph,
        /// Keeps the memory that the recording uses.
        _slots: Vec<Arc<Slot>>,
    },
}

impl Stepper {
    pub fn new(device: &Device, key: Key) -> Stepper {
        Stepper { tape: Tape::new(device.clone(), key), recorded: HashMap::new() }
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
        tape.prepare();
        let result = device.install(|| step(&mut *tape));
        tape.reset();
        tape.key.step += 1;
        if result.is_err() {
            // Recordings may use memory that the failed step has lost.
            self.recorded.clear();
        }
        result
    }

    /// Runs one step that a device may record under `id` and replay from then on, without calling `step` again. It must compute the same
    /// every time, up to the contents of buffers, and leave its results in buffers alone.
    pub fn run_recorded<E: Send + From<Error>>(
        &mut self,
        id: StepId,
        step: impl FnOnce(&mut Tape) -> Result<(), E> + Send,
    ) -> Result<(), E> {
        let device = self.tape.device.clone();
        let Some(gpu) = device.gpu() else { return self.run(step) };
        if !self.recorded.contains_key(&id) {
            self.run(step)?;
            self.recorded.insert(id, Recording::Warm);
            return Ok(());
        }
        self.tape.prepare();
        let done = match self.recorded.get(&id) {
            Some(Recording::Ready { graph, .. }) if !gpu.traces() => graph.launch().map_err(E::from),
            _ => self.record(gpu, id, step),
        };
        self.tape.key.step += 1;
        if done.is_err() {
            self.recorded.clear();
        }
        done
    }

    /// Records a step that ran before, and runs the recording.
    fn record<E: From<Error>>(
        &mut self,
        gpu: &Gpu,
        id: StepId,
        step: impl FnOnce(&mut Tape) -> Result<(), E>,
    ) -> Result<(), E> {
        gpu.begin_recording()?;
        let result = step(&mut self.tape);
        let slots = self.tape.bound.iter().map(|bound| bound.slot.clone()).collect();
        self.tape.reset();
        let graph = gpu.end_recording();
        result?;
        let graph = graph?;
        graph.launch()?;
        match gpu.traces() {
            true => gpu.synchronise()?,
            false => {
                self.recorded.insert(id, Recording::Ready { graph, _slots: slots });
            }
        }
        Ok(())
    }

    /// Forgets recordings of this name: what they depend on has changed.
    pub fn forget(&mut self, name: &str) {
        self.recorded.retain(|id, _| id.0 != name);
    }

    /// [`run_recorded`](Stepper::run_recorded) without gradients.
    pub fn infer_recorded<E: Send + From<Error>>(
        &mut self,
        id: StepId,
        step: impl FnOnce(&mut Tape) -> Result<(), E> + Send,
    ) -> Result<(), E> {
        self.tape.recording = false;
        let result = self.run_recorded(id, step);
        self.tape.recording = true;
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
    /// On a GPU: the key of the step's random numbers, as its kernels read it.
    state: Option<Block>,
}

/// A tensor's values in the type an op wants them in.
pub(crate) struct Operand {
    pub at: u64,
    temporary: Option<Block>,
}

impl Operand {
    /// Values that somebody else owns.
    pub fn at(at: u64) -> Operand {
        Operand { at, temporary: None }
    }

    pub fn temporary(block: Block) -> Operand {
        Operand { at: block.at(), temporary: Some(block) }
    }
}

/// A gradient taken out for writing.
pub(crate) struct Grad {
    block: Block,
    start: usize,
    len: usize,
    node: u32,
    /// Add to what is there; otherwise overwrite it.
    pub accumulate: bool,
    dtype: DType,
}

impl Grad {
    pub fn at(&self) -> u64 {
        self.block.at() + (self.start * self.dtype.size()) as u64
    }

    pub fn dtype(&self) -> DType {
        self.dtype
    }

    pub fn view(&self) -> Arg {
        Arg::View(self.at(), self.dtype)
    }

    pub fn slice(&mut self) -> &mut [f32] {
        &mut self.block.f32_mut()[self.start..self.start + self.len]
    }
}

impl Tape {
    fn new(device: Device, key: Key) -> Tape {
        // Generations are unique over all tapes, so that a tensor of one is refused by another.
        let state = device.gpu().map(|gpu| Block::zeroed(16, Some(gpu)));
        Tape {
            state,
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

    /// Tells a GPU the step's key.
    fn prepare(&mut self) {
        if let (Some(gpu), Some(state)) = (self.device.gpu(), &self.state) {
            // What goes wrong here goes wrong again, and is reported, when the step's first op is launched.
            let _ = gpu.enter().and_then(|()| gpu.upload(state.at(), bytemuck::bytes_of(&self.key.words())));
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
        for mut bound in self.bound.drain(..) {
            // What a failed op had taken out is gone; its owner gets zeros.
            let bytes = bound.slot.shape.len() * bound.slot.dtype.size();
            if bytes > 0 && bound.block.is_lost() {
                bound.block = Block::zeroed(bytes, self.device.gpu());
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

    /// Binds a buffer that a tensor is to be stored into.
    pub(crate) fn writable(&mut self, buffer: &Buffer, tensor: Tensor) -> Result<usize> {
        let bound = self.bind(buffer)?;
        let reads = |node: &Node| matches!(node.data, Data::Bound { bound: b, .. } if b == bound);
        // Gradients still need what recorded ops have read.
        let recorded = !self.records.is_empty() && self.nodes.iter().any(reads);
        match recorded || reads(&self.nodes[tensor.node as usize]) {
            true => Err(Error::InUse { name: buffer.slot.name.clone() }),
            false => Ok(bound),
        }
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
        let bound = self.writable(buffer, tensor)?;
        if let Some(gpu) = self.gpu() {
            let to = self.bound[bound].block.at();
            return copy_part(gpu, (to, buffer.dtype(), start), (self.at(tensor), tensor.dtype, from), len);
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

    /// Adds a scalar to element `index` of a buffer: how losses are collected over many steps.
    pub fn accumulate(&mut self, buffer: &Buffer, index: usize, scalar: Tensor) -> Result<()> {
        const OP: &str = "accumulate";
        self.check_f32(OP, &[scalar])?;
        if buffer.dtype() != DType::F32 || scalar.len() != 1 || index >= buffer.shape().len() {
            let rule = "a scalar is added to one element of an f32 buffer";
            return Err(Error::ShapeMismatch { op: OP, lhs: buffer.shape(), rhs: scalar.shape, rule });
        }
        let bound = self.bind(buffer)?;
        if let Some(gpu) = self.gpu() {
            let to = Arg::View(self.bound[bound].block.at() + 4 * index as u64, DType::F32);
            let args = [to, self.view(scalar), Arg::U32(1), Arg::Flag(true)];
            return gpu.launch("copy", Grid::blocks(1), &args);
        }
        let value = self.f32(scalar)[0];
        self.bound[bound].block.f32_mut()[index] += value;
        Ok(())
    }

    // ---- for ops: allocation, data, recording ----

    pub(crate) fn alloc(&mut self, len: usize, dtype: DType) -> Block {
        self.arena.take(len * dtype.size(), self.device.gpu())
    }

    /// Working memory of one op, in f32s.
    pub(crate) fn scratch(&mut self, len: usize) -> Block {
        self.alloc(len, DType::F32)
    }

    /// The GPU that the step runs on.
    pub(crate) fn gpu(&self) -> Option<&Gpu> {
        self.device.gpu()
    }

    /// How activations are stored.
    pub(crate) fn float(&self) -> DType {
        self.device.float()
    }

    /// How a result of these is stored: exactly if they all are.
    pub(crate) fn joint(&self, tensors: &[Tensor]) -> DType {
        match tensors.iter().all(|t| t.dtype == DType::F32) {
            true => DType::F32,
            false => self.float(),
        }
    }

    /// Where a tensor lies on the GPU.
    pub(crate) fn at(&self, tensor: Tensor) -> u64 {
        match &self.nodes[tensor.node as usize].data {
            Data::Owned(block) => block.at(),
            Data::Bound { bound, start } => {
                self.bound[*bound].block.at() + (start * tensor.dtype.size()) as u64
            }
        }
    }

    pub(crate) fn view(&self, tensor: Tensor) -> Arg {
        Arg::View(self.at(tensor), tensor.dtype)
    }

    pub(crate) fn view_of(&self, tensor: Option<Tensor>) -> Arg {
        tensor.map_or(Arg::NOTHING, |t| self.view(t))
    }

    /// The key of the step's random numbers on the GPU.
    pub(crate) fn state(&self) -> Arg {
        Arg::At(self.state.as_ref().map_or(0, Block::at))
    }

    /// Where a buffer lies on the GPU.
    pub(crate) fn buffer_at(&mut self, buffer: &Buffer) -> Result<u64> {
        let bound = self.bind(buffer)?;
        Ok(self.bound[bound].block.at())
    }

    /// A tensor's values on the GPU as `dtype`, copied if they are stored otherwise. Give it back with [`release`](Tape::release).
    pub(crate) fn operand(&mut self, tensor: Tensor, dtype: DType) -> Result<Operand> {
        if tensor.dtype == dtype {
            return Ok(Operand::at(self.at(tensor)));
        }
        if dtype == DType::BF16
            && let Data::Bound { bound, start } = self.nodes[tensor.node as usize].data
            && let Some(params) = self.params.iter().find(|p| p.values == bound)
            && let Some(narrow) = params.narrow
        {
            return Ok(Operand::at(self.bound[narrow].block.at() + 2 * start as u64));
        }
        let copy = self.alloc(tensor.len(), dtype);
        if let Some(gpu) = self.gpu() {
            let args =
                [Arg::View(copy.at(), dtype), self.view(tensor), Arg::U32(tensor.len()), Arg::Flag(false)];
            gpu.launch("copy", Grid::elements(tensor.len()), &args)?;
        }
        Ok(Operand::temporary(copy))
    }

    pub(crate) fn release(&mut self, operand: Operand) {
        if let Some(block) = operand.temporary {
            self.give_back(block);
        }
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
        let mut block = self.alloc(tensor.len(), tensor.dtype);
        match self.gpu() {
            Some(gpu) => gpu.copy(block.at(), self.at(tensor), tensor.len() * tensor.dtype.size())?,
            None => block.all_mut::<u8>().copy_from_slice(self.bytes(tensor)),
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

    // ---- gradients ----

    /// Computes the gradient of a scalar loss for every parameter it depends on. It uses up the record of everything before it: a second loss in
    /// the same step must be computed after this call.
    pub fn backward(&mut self, loss: Tensor) -> Result<()> {
        const OP: &str = "backward";
        self.check_exact(OP, &[loss])?;
        if loss.len() != 1 {
            return Err(Error::BadShape { op: OP, shape: loss.shape, rule: "a loss is a single number" });
        }
        if !self.needs_grad(loss) || (loss.node as usize) < self.walked {
            return Err(Error::NoGradient { op: OP });
        }
        let mut one = self.alloc(1, DType::F32);
        match self.gpu() {
            Some(gpu) => {
                let args = [Arg::At(self.at(loss)), Arg::I32(gpu.op("the loss")), Arg::At(gpu.fault())];
                gpu.launch("check_finite", Grid { threads: 1, ..Grid::blocks(1) }, &args)?;
                gpu.fill_words(one.at(), 1f32.to_bits(), 1)?;
            }
            None => {
                let value = self.f32(loss)[0];
                if !value.is_finite() {
                    return Err(Error::NotFinite { what: "the loss", value });
                }
                one.f32_mut()[0] = 1.0;
            }
        }
        self.backward_from(loss, one, DType::F32)
    }

    /// Runs the records backwards from a gradient of `tensor`.
    pub(crate) fn backward_from(&mut self, tensor: Tensor, gradient: Block, dtype: DType) -> Result<()> {
        // Gradients of an earlier backward pass in this step do not count any more.
        for node in &mut self.nodes {
            node.grad_written = false;
        }
        self.hand_grad(tensor, gradient, dtype)?;
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
                        let block = &mut self.bound[bound].block;
                        match self.device.gpu() {
                            Some(gpu) => gpu.fill_words(block.at() + 4 * start as u64, 0, node.len)?,
                            None => block.f32_mut()[start..start + node.len].fill(0.0),
                        }
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
        let (len, dtype) = (node.len, node.dtype);
        let accumulate = node.grad_written || node.grad.is_some();
        let (block, start) = match node.grad_home {
            Some((bound, start)) => (std::mem::take(&mut self.bound[bound].block), start),
            None => match node.grad.take() {
                Some(block) => (block, 0),
                None => (self.arena.take(len * dtype.size(), self.device.gpu()), 0),
            },
        };
        Some(Grad { block, start, len, node: tensor.node, accumulate, dtype })
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

    /// Adds a finished gradient, stored as `dtype`, to that of `tensor`, without a copy when it is the first.
    pub(crate) fn hand_grad(&mut self, tensor: Tensor, block: Block, dtype: DType) -> Result<()> {
        let node = &mut self.nodes[tensor.node as usize];
        if node.needs_grad && node.grad.is_none() && node.grad_home.is_none() && node.dtype == dtype {
            node.grad = Some(block);
            return Ok(());
        }
        if let Some(mut grad) = self.grad(tensor) {
            self.add_or_set(&mut grad, &block, dtype)?;
            self.put_grad(grad);
        }
        self.give_back(block);
        Ok(())
    }

    /// Gives a finished gradient to a residual input, if there is one.
    pub(crate) fn pass_on(&mut self, residual: Option<Tensor>, block: Block, dtype: DType) -> Result<()> {
        match residual {
            Some(residual) => self.hand_grad(residual, block, dtype),
            None => {
                self.give_back(block);
                Ok(())
            }
        }
    }

    /// grad (+)= source, stored as `dtype`
    pub(crate) fn add_or_set(&self, grad: &mut Grad, source: &Block, dtype: DType) -> Result<()> {
        let accumulate = grad.accumulate;
        match self.gpu() {
            Some(gpu) => {
                let args =
                    [grad.view(), Arg::View(source.at(), dtype), Arg::U32(grad.len), Arg::Flag(accumulate)];
                gpu.launch("copy", Grid::elements(grad.len), &args)
            }
            None => {
                add_or_set(grad.slice(), source.f32(), accumulate);
                Ok(())
            }
        }
    }
}

/// Elements of one block on the GPU into another, of any two types of numbers or of the same type.
fn copy_part(
    gpu: &Gpu,
    (to, to_type, to_start): (u64, DType, usize),
    (from, from_type, from_start): (u64, DType, usize),
    len: usize,
) -> Result<()> {
    if to_type == from_type {
        let size = to_type.size();
        return gpu.copy(to + (to_start * size) as u64, from + (from_start * size) as u64, len * size);
    }
    let (to, from) = (Arg::View(to, to_type), Arg::View(from, from_type));
    let args = [to, Arg::U32(to_start), from, Arg::U32(from_start), Arg::U32(len), Arg::Flag(false)];
    gpu.launch("copy_at", Grid::elements(len), &args)
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
