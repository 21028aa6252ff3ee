//! What holds for whole steps: the same bits every time, no allocation once warm, errors that lose nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::{
    Activation, Adam, Device, Error, Init, Key, Lstm, Param, Params, ParamsBuilder, Result, StepId, Stepper,
    Stride, Tape, Tensor,
};

/// Counts the allocations of threads that ask for it.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static WATCHED: Cell<bool> = const { Cell::new(false) };
}

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if WATCHED.get() {
            ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// A small network of all kinds of ops: convolutions (also by Winograd's way), norms, pooling, attention, quantiser, embeddings, LSTM, dropout,
/// losses.
struct Net {
    params: Params,
    conv: [Param; 2],
    wide: [Param; 2],
    down: [Param; 2],
    norm: [Param; 2],
    qkv: [Param; 3],
    codebook: Param,
    gates: Param,
    recurrent: [Param; 2],
    head: Param,
}

const CHANNELS: usize = 32;

impl Net {
    fn new(device: &Device) -> Result<Net> {
        let mut b = ParamsBuilder::new();
        let c = CHANNELS;
        let init = Init::Normal(0.1);
        Ok(Net {
            conv: [b.add("conv", [c, 3, 3, 3], init), b.add("conv.bias", [c], init)],
            wide: [b.add("wide", [c, 3, 3, c], init), b.add("wide.bias", [c], init)],
            down: [b.add("down", [c, 3, 3, c], init), b.add("down.bias", [c], init)],
            norm: [b.add("gain", [c], Init::Constant(1.0)), b.add("shift", [c], init)],
            qkv: [b.add_decayed("q", [c, c], init), b.add("k", [c, c], init), b.add("v", [c, c], init)],
            codebook: b.add("codebook", [11, c], init),
            gates: b.add("gates", [4 * c, c], init),
            recurrent: [b.add("recurrent", [4 * c, c], init), b.add("recurrent.bias", [4 * c], init)],
            head: b.add("head", [5, c], init),
            params: b.build(device, "net", 3)?,
        })
    }

    fn loss(&self, tape: &mut Tape, frames: Tensor, labels: Tensor) -> Result<Tensor> {
        let p = |tape: &mut Tape, param: Param| tape.param(&self.params, param);
        let (w, b) = (p(tape, self.conv[0])?, p(tape, self.conv[1])?);
        let x = tape.frames(frames, 2.0 / 255.0, -1.0)?;
        let x = tape.conv3x3(x, w, b, Stride::One)?;
        let (w, b) = (p(tape, self.wide[0])?, p(tape, self.wide[1])?);
        let y = tape.conv3x3_relu(x, w, b)?;
        let z = tape.max_pool(y)?;
        let z = tape.upsample(z)?;
        let weights = tape.detach(b)?;
        let distance = tape.perceptual_distance(y, z, weights, 0.1)?;
        let x = tape.conv3x3_residual(z, w, b, x)?;
        let (w, b) = (p(tape, self.down[0])?, p(tape, self.down[1])?);
        let x = tape.conv3x3(x, w, b, Stride::Two)?;
        let (gain, shift) = (p(tape, self.norm[0])?, p(tape, self.norm[1])?);
        let x = tape.group_norm(x, gain, shift, 8, 1e-6, true)?;
        let batch = x.dims()[0];
        let rows = x.shape().rows() / batch;
        let x = tape.reshape(x, [batch, rows, CHANNELS])?;
        let mut qkv = [x; 3];
        for (out, param) in qkv.iter_mut().zip(self.qkv) {
            let w = p(tape, param)?;
            *out = tape.linear(x, w, None, Activation::Gelu)?;
        }
        let y = tape.causal_attention(qkv[0], qkv[1], qkv[2], 4, 0.1)?;
        let x = tape.dropout_residual(y, 0.1, x)?;
        let x = tape.layer_norm(x, gain, shift, 1e-5)?;
        let codebook = p(tape, self.codebook)?;
        let q = tape.quantise(x, codebook, 0.25)?;
        let looked_up = tape.embedding(codebook, q.tokens)?;
        let products = tape.matmul(looked_up, looked_up_transposed(tape, looked_up)?)?;
        let products = tape.mean(products)?;
        let gates = p(tape, self.gates)?;
        let gates = tape.linear(q.embedded, gates, None, Activation::None)?;
        let (w, b) = (p(tape, self.recurrent[0])?, p(tape, self.recurrent[1])?);
        let zero = tape.slice(q.embedded, 1, 0, 1)?;
        let zero = tape.reshape(zero, [batch, CHANNELS])?;
        let mut state = Lstm { hidden: zero, cell: zero };
        for t in 0..3 {
            let now = tape.slice(gates, 1, t, t + 1)?;
            let now = tape.reshape(now, [batch, 4 * CHANNELS])?;
            state = tape.lstm_cell(now, state, w, b)?;
        }
        let head = p(tape, self.head)?;
        let logits = tape.linear(state.hidden, head, None, Activation::None)?;
        let loss = tape.cross_entropy(logits, labels)?;
        let drawn = tape.sample(logits, 1.0)?;
        let log_prob = tape.log_prob(logits, drawn)?;
        let entropy = tape.entropy(logits)?;
        let both = tape.concat(&[log_prob, entropy], 0)?;
        let both = tape.mean(both)?;
        let mut total = loss;
        for (small, weight) in [(q.commitment, 0.01), (distance, 0.01), (both, 0.01), (products, 1e-4)] {
            let small = tape.affine(small, weight, 0.0)?;
            total = tape.add(total, small)?;
        }
        Ok(total)
    }
}

/// [B, T, C] seen as [B, C, T]: for a product of any values.
fn looked_up_transposed(tape: &Tape, x: Tensor) -> Result<Tensor> {
    let &[batch, time, width] = x.dims() else { return Ok(x) };
    tape.reshape(x, [batch, width, time])
}

struct Run {
    device: Device,
    net: Net,
    frames: crate::Buffer,
    labels: crate::Buffer,
    loss: crate::Buffer,
    rate: crate::Buffer,
    stepper: Stepper,
    /// Whether this run's allocations are counted.
    watched: bool,
    /// Whether its steps may be replayed.
    captured: bool,
}

impl Run {
    fn new(threads: usize) -> Result<Run> {
        let device = Device::under_test(threads)?;
        let frames = device.buffer::<u8>("frames", [6, 16, 16, 3])?;
        frames.write(
            &(0..6 * 16 * 16 * 3).map(|i| (i / (16 * 16 * 3) * 30 + i * 37 % 97) as u8).collect::<Vec<_>>(),
        )?;
        let labels = device.buffer::<i32>("labels", [6])?;
        labels.write(&[0, 1, 2, 3, 4, -1])?;
        Ok(Run {
            net: Net::new(&device)?,
            loss: device.buffer::<f32>("loss", [1])?,
            rate: device.scalar("learning rate", 3e-3)?,
            stepper: Stepper::new(&device, Key::new(5, 1)),
            watched: false,
            captured: false,
            device,
            frames,
            labels,
        })
    }

    fn step(&mut self) -> Result<()> {
        let Run { net, frames, labels, loss, rate, stepper, watched, captured, .. } = self;
        let step = |tape: &mut Tape| -> Result<()> {
            WATCHED.set(*watched);
            let (frames, labels) = (tape.buffer(frames)?, tape.buffer(labels)?);
            let value = net.loss(tape, frames, labels)?;
            tape.backward(value)?;
            tape.adam(&net.params, rate, &Adam { weight_decay: 0.01, ..Adam::default() })?;
            tape.store(loss, 0, value)?;
            WATCHED.set(false);
            Ok(())
        };
        match captured {
            true => stepper.run_captured(StepId::new("step", &()), step)?,
            false => stepper.run(step)?,
        }
        // A GPU finds out later.
        self.device.synchronise()
    }

    fn parameters(&self) -> Result<Vec<u32>> {
        Ok(self.net.params.values().read::<f32>()?.iter().map(|v| v.to_bits()).collect())
    }

    fn bits(&self) -> Result<Vec<u32>> {
        let mut bits = self.parameters()?;
        bits.push(self.loss.read::<f32>()?[0].to_bits());
        Ok(bits)
    }
}

#[test]
fn the_same_seed_gives_the_same_bits_with_any_number_of_threads() -> Result<()> {
    let mut results = Vec::new();
    for threads in [1, 2, 1, 2, 3] {
        let mut run = Run::new(threads)?;
        for _ in 0..5 {
            run.step()?;
        }
        results.push(run.bits()?);
    }
    assert!(results.iter().all(|r| r == &results[0]));
    Ok(())
}

/// Whatever lies in the buffers, and whatever becomes of the memory in between.
#[test]
fn a_captured_step_computes_the_same() -> Result<()> {
    let (mut plain, mut captured) = (Run::new(1)?, Run::new(1)?);
    captured.captured = true;
    for step in 0..8 {
        for run in [&mut plain, &mut captured] {
            // Falling, as in training: a replayed step must not keep the rate it was captured with.
            run.rate.write(&[3e-3 / (step + 1) as f32])?;
            run.labels.write(&[0, 1, 2, 3, 4, step - 1].map(|label| (label + step) % 5))?;
            run.step()?;
        }
        assert_eq!(plain.bits()?, captured.bits()?, "step {step}");
        match step {
            3 => captured.device.free_step_memory(),
            5 => captured.stepper.forget("step"),
            _ => {}
        }
    }
    Ok(())
}

/// The rate in the buffer counts, not the one of the first step.
#[test]
fn the_learning_rate_is_read_when_the_step_runs() -> Result<()> {
    let mut run = Run::new(1)?;
    run.captured = true;
    let mut moved = Vec::new();
    for rate in [3e-3, 3e-3, 3e-3, 0.0, 3e-3] {
        run.rate.write(&[rate as f32])?;
        let before = run.parameters()?;
        run.step()?;
        moved.push(run.parameters()? != before);
    }
    assert_eq!(moved, [true, true, true, false, true]);
    let wrong = run.device.buffer::<f32>("rates", [2])?;
    let refused = run.stepper.run(|tape| tape.adam(&run.net.params, &wrong, &Adam::default()).map(|_| ()));
    assert!(matches!(refused, Err(Error::BadShape { op: "adam", .. })), "{refused:?}");
    Ok(())
}

/// They would become part of the graph. Where nothing is captured they are allowed.
#[test]
fn a_captured_step_leaves_other_buffers_alone() -> Result<()> {
    let device = Device::under_test(1)?;
    let (bound, other) = (device.buffer::<i32>("bound", [4])?, device.buffer::<i32>("other", [4])?);
    let mut stepper = Stepper::new(&device, Key::new(0, 0));
    let mut run = |other: &(dyn Fn() -> Result<()> + Sync)| {
        stepper.run_captured(StepId::new("step", &()), |tape| {
            tape.buffer(&bound)?;
            other()
        })
    };
    run(&|| Ok(()))?;
    let uses: [fn(&crate::Buffer) -> Result<()>; 3] = [
        |other| other.write(&[1i32; 4]),
        |other| other.read::<i32>().map(|_| ()),
        |other| {
            other.device().buffer::<i32>("new", [4])?;
            Ok(())
        },
    ];
    for use_other in uses {
        let result = run(&|| use_other(&other));
        match device.is_gpu() {
            true => assert!(result.unwrap_err().to_string().contains("a step is being captured")),
            false => result?,
        }
        // The failed one is forgotten: this one runs, the next is captured.
        run(&|| Ok(()))?;
    }
    other.write(&[2i32; 4])?;
    assert_eq!(other.read::<i32>()?, [2; 4]);
    Ok(())
}

#[test]
fn buffers_of_another_device_are_refused() -> Result<()> {
    let (device, cpu) = (Device::under_test(1)?, Device::cpu(Some(1))?);
    let foreign = cpu.buffer::<f32>("foreign", [3])?;
    let result = Stepper::new(&device, Key::new(0, 0)).run(|tape| tape.buffer(&foreign).map(|_| ()));
    match device.is_gpu() {
        true => assert_eq!(result, Err(Error::OtherDevice { name: "foreign".into() })),
        false => result?,
    }
    Ok(())
}

#[test]
fn a_step_learns_and_another_seed_differs() -> Result<()> {
    let mut run = Run::new(2)?;
    run.step()?;
    let first = run.loss.read::<f32>()?[0];
    for _ in 0..40 {
        run.step()?;
    }
    let last = run.loss.read::<f32>()?[0];
    assert!(last < 0.75 * first, "{first} to {last}");
    // Dropout follows the key: other numbers from here on, other weights.
    let mut other = Run::new(2)?;
    other.stepper.set_key(Key::new(6, 1));
    other.step()?;
    let mut same = Run::new(2)?;
    same.step()?;
    assert_ne!(other.bits()?, same.bits()?);
    Ok(())
}

#[test]
fn a_warm_step_does_not_allocate() -> Result<()> {
    // One thread, so that the one that is watched does everything. The first steps fill the arena.
    let mut run = Run::new(1)?;
    for _ in 0..3 {
        run.step()?;
    }
    run.watched = true;
    let arena = run.stepper.arena_bytes();
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    for _ in 0..10 {
        run.step()?;
    }
    // Telling a GPU what to do takes a little host memory.
    if !run.device.is_gpu() {
        assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 0);
    }
    assert_eq!(run.stepper.arena_bytes(), arena);
    Ok(())
}

#[test]
fn a_failed_step_gives_everything_back() -> Result<()> {
    let mut run = Run::new(2)?;
    run.step()?;
    let before = run.parameters()?;
    // Labels out of range: the step stops in the middle of its forward pass.
    run.labels.write(&[9i32; 6])?;
    assert!(matches!(run.step(), Err(Error::IndexOutOfRange { op: "cross-entropy", index: 9, .. })));
    assert_eq!(run.parameters()?, before);
    run.labels.write(&[0i32, 1, 2, 3, 4, -1])?;
    run.step()
}

#[test]
fn nan_is_reported_and_changes_no_parameter() -> Result<()> {
    let mut run = Run::new(1)?;
    let mut head = run.net.params.get("head")?;
    head[0] = f32::NAN;
    run.net.params.set("head", &head)?;
    let before = run.parameters()?;
    let error = run.step().unwrap_err();
    assert!(error.to_string().starts_with("the loss is NaN: the computation has diverged"), "{error}");
    assert_eq!(run.parameters()?, before);
    Ok(())
}

/// ReLU and max-pool must not turn NaN into a number, or a diverged network trains on silently.
#[test]
fn nan_passes_through_every_activation() -> Result<()> {
    for name in ["conv", "wide", "down", "gain", "q", "gates"] {
        let mut run = Run::new(1)?;
        let poisoned = vec![f32::NAN; run.net.params.get(name)?.len()];
        run.net.params.set(name, &poisoned)?;
        assert!(matches!(run.step(), Err(Error::NotFinite { .. })), "{name}");
    }
    Ok(())
}

#[test]
fn gradients_are_never_silently_old_or_missing() -> Result<()> {
    let mut run = Run::new(1)?;
    run.step()?;
    let Run { net, frames, labels, rate, stepper, .. } = &mut run;
    let missing = |op| Err(Error::NoGradient { op });
    // Nothing is recorded in an inference step.
    let infer = stepper.infer(|tape| {
        let (frames, labels) = (tape.buffer(frames)?, tape.buffer(labels)?);
        let loss = net.loss(tape, frames, labels)?;
        tape.backward(loss)
    });
    assert_eq!(infer, missing("backward"));
    // An update without a backward pass would use the last step's gradients.
    assert_eq!(
        stepper.run(|tape| tape.adam(&net.params, rate, &Adam::default()).map(|_| ())),
        missing("adam")
    );
    // The first backward pass uses up the record of both losses; and one pass is good for one update.
    stepper.run(|tape| -> Result<()> {
        let (frames, labels) = (tape.buffer(frames)?, tape.buffer(labels)?);
        let (first, second) = (net.loss(tape, frames, labels)?, net.loss(tape, frames, labels)?);
        tape.backward(second)?;
        assert_eq!(tape.backward(first), missing("backward"));
        tape.adam(&net.params, rate, &Adam::default())?;
        assert!(tape.adam(&net.params, rate, &Adam::default()).is_err());
        Ok(())
    })
}

#[test]
fn what_a_gradient_needs_cannot_be_overwritten() -> Result<()> {
    let run = &mut Run::new(1)?;
    let carried = run.device.buffer::<f32>("carried", [6, CHANNELS])?;
    let Run { net, stepper, .. } = run;
    let error = stepper.run(|tape| -> Result<()> {
        let state = tape.buffer(&carried)?;
        let w = tape.param(&net.params, net.head)?;
        tape.linear(state, w, None, Activation::None)?;
        let new = tape.affine(state, 2.0, 1.0)?;
        tape.store(&carried, 0, new)
    });
    assert_eq!(error, Err(Error::InUse { name: "carried".into() }));
    Ok(())
}

#[test]
fn a_handle_of_another_network_is_refused() -> Result<()> {
    let run = &mut Run::new(1)?;
    let mut other = ParamsBuilder::new();
    let foreign = other.add("foreign", [3], Init::Constant(0.0));
    let Run { net, stepper, .. } = run;
    let error = stepper.run(|tape| tape.param(&net.params, foreign).map(|_| ()));
    assert!(matches!(error, Err(Error::UnknownParameter { .. })));
    Ok(())
}

#[test]
fn empty_tensors_are_refused() -> Result<()> {
    let device = Device::under_test(1)?;
    let image = device.buffer::<f32>("image", [0, 4, 4, 3])?;
    let weight = device.buffer::<f32>("weight", [2, 3, 3, 3])?;
    let bias = device.buffer::<f32>("bias", [2])?;
    Stepper::new(&device, Key::new(0, 0)).run(|tape| {
        let (x, w, b) = (tape.buffer(&image)?, tape.buffer(&weight)?, tape.buffer(&bias)?);
        let refused =
            |result: Result<Tensor>| assert!(matches!(result, Err(Error::BadShape { .. })), "{result:?}");
        refused(tape.conv3x3(x, w, b, Stride::One));
        refused(tape.max_pool(x));
        refused(tape.upsample(x));
        refused(tape.layer_norm(x, b, b, 1e-5));
        refused(tape.group_norm(x, b, b, 1, 1e-6, false));
        refused(tape.entropy(x));
        refused(tape.sample(x, 1.0));
        let flat = tape.reshape(x, [0, 4, 12])?;
        refused(tape.spatial_attention(flat, flat, flat));
        refused(tape.matmul(flat, flat));
        Ok(())
    })
}

#[test]
fn tensors_end_with_their_step() -> Result<()> {
    let mut run = Run::new(1)?;
    let frames = run.frames.clone();
    let old = run.stepper.run(|tape| tape.buffer(&frames))?;
    let error = run.stepper.run(|tape| tape.frames(old, 1.0, 0.0).map(|_| ())).unwrap_err();
    assert_eq!(error, Error::StaleTensor { op: "frames" });
    Ok(())
}

#[test]
fn a_buffer_belongs_to_one_step_at_a_time() -> Result<()> {
    let run = Run::new(1)?;
    let (mut outer, frames) = (Stepper::new(&run.device, Key::new(0, 0)), run.frames.clone());
    outer.run(|tape| -> Result<()> {
        tape.buffer(&frames)?;
        assert_eq!(
            frames.read::<u8>().unwrap_err().to_string(),
            "`frames` is in use by another step; finish that one first"
        );
        Ok(())
    })?;
    assert_eq!(frames.read::<u8>()?.len(), 6 * 16 * 16 * 3);
    Ok(())
}
