//! Steps: running them and, on a GPU, capturing them as CUDA graphs that are replayed from then on.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::backend::Backend;
use crate::buffer::Slot;
use crate::cuda::{Gpu, Graph};
use crate::memory::Arena;
use crate::tape::Tape;
use crate::{Device, Error, Key, Result};

/// Runs steps: owns the counter that keys their randomness and the arena they allocate from, which on a GPU all steppers share. Steps on a GPU take
/// turns: a step must not run another one, and while it is captured no other thread may use that GPU's buffers.
///
/// Inputs reach a step through [`Buffer`](crate::Buffer)s written before it, results leave it through buffers read after it. In between nothing
/// touches the host, so that a GPU can capture the step once, as a CUDA graph, and replay it ([`run_captured`](Stepper::run_captured)).
pub struct Stepper {
    tape: Tape,
    captured: HashMap<StepId, Capture>,
    /// How often the GPU's arena had lost memory when the first of them was captured.
    losses: u64,
}

/// What makes a captured step the same as an earlier one: its name, and everything that its launches depend on beside the contents of buffers:
/// shapes, positions, settings, and which buffers and networks it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StepId {
    name: &'static str,
    /// Of the struct it was made from; 128 bits, so that no two structs of a run meet.
    hash: u128,
}

impl StepId {
    /// `depends_on` is best a struct of the call site's own with `#[derive(Hash)]`: a value forgotten there is one that can be seen to be missing.
    /// Floats are hashed as [`Bits`].
    pub fn new(name: &'static str, depends_on: &impl Hash) -> StepId {
        let mut hasher = Fnv(0x6C62_272E_07BB_0142_62B8_2175_6295_C58D);
        depends_on.hash(&mut hasher);
        StepId { name, hash: hasher.0 }
    }
}

/// FNV-1a over 128 bits.
struct Fnv(u128);

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013B;
        self.0 = bytes.iter().fold(self.0, |h, byte| (h ^ u128::from(*byte)).wrapping_mul(PRIME));
    }

    fn finish(&self) -> u64 {
        self.0 as u64
    }
}

/// A float that is hashed and compared by its bits: for structs that a [`StepId`] is made from.
#[derive(Clone, Copy, Debug)]
pub struct Bits(pub f32);

impl Hash for Bits {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}

impl PartialEq for Bits {
    fn eq(&self, other: &Bits) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Bits {}

/// How far a GPU is with a step that is to be replayed.
enum Capture {
    /// It ran once: memory is there, algorithms are chosen.
    Warm,
    Ready {
        graph: Graph,
        /// Keeps the memory that the graph uses.
        _slots: Vec<Arc<Slot>>,
    },
}

impl Stepper {
    /// Runs steps on a device, the first with the randomness of `key`.
    pub fn new(device: &Device, key: Key) -> Stepper {
        Stepper { tape: Tape::new(device.clone(), key), captured: HashMap::new(), losses: 0 }
    }

    /// The randomness of the next step. Saving it and giving it back continues the sequence.
    pub fn key(&self) -> Key {
        self.tape.key
    }

    /// Sets the randomness of the next step.
    pub fn set_key(&mut self, key: Key) {
        self.tape.key = key;
    }

    /// Bytes of the arena, which keeps every block it ever handed out: with steps of the same shapes, the most they need at once. On a GPU that
    /// of all steppers.
    pub fn arena_bytes(&self) -> usize {
        match self.tape.device.backend() {
            Backend::Cpu => self.tape.arena.bytes(),
            Backend::Cuda(_) => self.tape.device.step_memory().arena.bytes(),
        }
    }

    /// Runs one step without gradients: parameters are constants, nothing is recorded.
    pub fn infer<R: Send, E: Send + From<Error>>(
        &mut self,
        step: impl FnOnce(&mut Tape) -> Result<R, E> + Send,
    ) -> Result<R, E> {
        self.tape.with_gradients = false;
        let result = self.run(step);
        self.tape.with_gradients = true;
        result
    }

    /// Runs one step. Its tensors are gone when it returns; the counter moves on even when it fails.
    pub fn run<R: Send, E: Send + From<Error>>(
        &mut self,
        step: impl FnOnce(&mut Tape) -> Result<R, E> + Send,
    ) -> Result<R, E> {
        self.in_turn(|stepper| stepper.run_now(step))
    }

    fn run_now<R: Send, E: Send + From<Error>>(
        &mut self,
        step: impl FnOnce(&mut Tape) -> Result<R, E> + Send,
    ) -> Result<R, E> {
        let tape = &mut self.tape;
        let device = tape.device.clone();
        let prepared = tape.prepare();
        let result = prepared.map_err(E::from).and_then(|()| device.install(|| step(&mut *tape)));
        tape.reset();
        tape.key.step += 1;
        result
    }

    /// Lends the tape the memory that all steps of a GPU share.
    fn in_turn<R, E>(&mut self, work: impl FnOnce(&mut Stepper) -> Result<R, E>) -> Result<R, E> {
        let device = self.tape.device.clone();
        let Backend::Cuda(_) = device.backend() else { return work(self) };
        let mut turn = device.step_memory();
        if self.losses != turn.losses {
            self.losses = turn.losses;
            self.captured.clear();
        }
        std::mem::swap(&mut self.tape.arena, &mut turn.arena);
        let result = work(self);
        std::mem::swap(&mut self.tape.arena, &mut turn.arena);
        if result.is_err() {
            // A failed step does not give back everything it took. What is left is freed, so that a smaller step has room.
            turn.arena = Arena::default();
            turn.losses += 1;
        }
        result
    }

    /// Runs one step that a GPU captures under `id`: the first call runs `step`, the second captures what it launches as a CUDA graph and runs
    /// that, later ones replay the graph without calling `step`. A CPU calls it every time.
    ///
    /// So `step` must launch the same work whenever it has this id, leave its results in buffers, and have no effect on the host. It is an [`Fn`],
    /// which cannot change what it captures; it must not use interior mutability to do so either.
    pub fn run_captured<E: Send + From<Error>>(
        &mut self,
        id: StepId,
        step: impl Fn(&mut Tape) -> Result<(), E> + Send,
    ) -> Result<(), E> {
        let device = self.tape.device.clone();
        let Backend::Cuda(gpu) = device.backend() else { return self.run(step) };
        self.in_turn(|stepper| {
            if let Entry::Vacant(first) = stepper.captured.entry(id) {
                first.insert(Capture::Warm);
                return stepper.run_now(step);
            }
            let prepared = stepper.tape.prepare().map_err(E::from);
            let done = prepared.and_then(|()| match stepper.captured.get(&id) {
                Some(Capture::Ready { graph, .. }) if !gpu.traces() => graph.launch().map_err(E::from),
                _ => stepper.capture(gpu, id, step),
            });
            stepper.tape.key.step += 1;
            done
        })
    }

    /// Captures a step that ran before, and runs the graph.
    fn capture<E: From<Error>>(
        &mut self,
        gpu: &Gpu,
        id: StepId,
        step: impl Fn(&mut Tape) -> Result<(), E>,
    ) -> Result<(), E> {
        let capture = gpu.begin_capture()?;
        let result = step(&mut self.tape);
        let slots = self.tape.bound_slots();
        let graph = capture.end();
        self.tape.reset();
        result?;
        let graph = graph?;
        graph.launch()?;
        match gpu.traces() {
            true => gpu.synchronise()?,
            false => {
                self.captured.insert(id, Capture::Ready { graph, _slots: slots });
            }
        }
        Ok(())
    }

    /// Forgets the captured steps of this name, and with them the memory they keep.
    pub fn forget(&mut self, name: &str) {
        self.captured.retain(|id, _| id.name != name);
    }

    /// [`run_captured`](Stepper::run_captured) without gradients.
    pub fn infer_captured<E: Send + From<Error>>(
        &mut self,
        id: StepId,
        step: impl Fn(&mut Tape) -> Result<(), E> + Send,
    ) -> Result<(), E> {
        self.tape.with_gradients = false;
        let result = self.run_captured(id, step);
        self.tape.with_gradients = true;
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_what_a_step_depends_on_counts() {
        #[derive(Hash)]
        struct Step {
            position: usize,
            flag: bool,
            rate: Bits,
        }
        let id = |name, position, flag, rate| StepId::new(name, &Step { position, flag, rate: Bits(rate) });
        let one = id("a", 1, false, 0.5);
        assert_eq!(one, id("a", 1, false, 0.5));
        // 0 and -0 are equal floats, but not the same bits.
        let others = [
            id("b", 1, false, 0.5),
            id("a", 2, false, 0.5),
            id("a", 1, true, 0.5),
            id("a", 1, false, 0.25),
            id("a", 1, false, 0.0),
            id("a", 1, false, -0.0),
        ];
        let all: std::collections::HashSet<StepId> = others.into_iter().chain([one]).collect();
        assert_eq!(all.len(), others.len() + 1);
    }
}
