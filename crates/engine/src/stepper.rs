//! Steps: running them, recording them, replaying them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use crate::backend::Backend;
use crate::buffer::Slot;
use crate::cuda::{Gpu, Graph};
use crate::memory::Arena;
use crate::tape::Tape;
use crate::{Device, Error, Key, Result};

/// Runs steps: owns the counter that keys their randomness and the arena they allocate from, which on a GPU all steppers share. Steps on a GPU take
/// turns: a step must not run another one, and while it is recorded no other thread may use that GPU's buffers.
///
/// Inputs reach a step through [`Buffer`]s written before it, results leave it through buffers read after it; in between nothing
/// touches the host, so a device may record the step once and replay it.
pub struct Stepper {
    tape: Tape,
    recorded: HashMap<StepId, Recording>,
    /// How often the GPU's arena had lost memory when the first of them was recorded.
    losses: u64,
}

/// What makes a recorded step the same as an earlier one: its name, and a number for everything else that its computation depends on
/// beside the contents of buffers.
pub type StepId = (&'static str, u64);

/// How far a device is with a step that is to be replayed.
enum Recording {
    /// It ran once: memory is there, algorithms are chosen.
    Warm,
    Ready {
        graph: Graph,
        /// Keeps the memory that the recording uses.
        _slots: Vec<Arc<Slot>>,
    },
}

impl Stepper {
    pub fn new(device: &Device, key: Key) -> Stepper {
        Stepper { tape: Tape::new(device.clone(), key), recorded: HashMap::new(), losses: 0 }
    }

    /// The randomness of the next step. Saving it and giving it back continues the sequence.
    pub fn key(&self) -> Key {
        self.tape.key
    }

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
        self.tape.recording = false;
        let result = self.run(step);
        self.tape.recording = true;
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
            self.recorded.clear();
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

    /// Runs one step that a device may record under `id` and replay from then on, without calling `step` again. It must compute the same
    /// every time, up to the contents of buffers, and leave its results in buffers alone.
    pub fn run_recorded<E: Send + From<Error>>(
        &mut self,
        id: StepId,
        step: impl FnOnce(&mut Tape) -> Result<(), E> + Send,
    ) -> Result<(), E> {
        let device = self.tape.device.clone();
        let Backend::Cuda(gpu) = device.backend() else { return self.run(step) };
        self.in_turn(|stepper| {
            if let Entry::Vacant(first) = stepper.recorded.entry(id) {
                first.insert(Recording::Warm);
                return stepper.run_now(step);
            }
            let prepared = stepper.tape.prepare().map_err(E::from);
            let done = prepared.and_then(|()| match stepper.recorded.get(&id) {
                Some(Recording::Ready { graph, .. }) if !gpu.traces() => graph.launch().map_err(E::from),
                _ => stepper.record(gpu, id, step),
            });
            stepper.tape.key.step += 1;
            done
        })
    }

    /// Records a step that ran before, and runs the recording.
    fn record<E: From<Error>>(
        &mut self,
        gpu: &Gpu,
        id: StepId,
        step: impl FnOnce(&mut Tape) -> Result<(), E>,
    ) -> Result<(), E> {
        let recording = gpu.begin_capture()?;
        let result = step(&mut self.tape);
        let slots = self.tape.bound_slots();
        let graph = recording.end();
        self.tape.reset();
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
