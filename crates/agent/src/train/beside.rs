//! Where the device has room for both, an epoch ends on a thread of its own beside the next one: evaluation, pictures, metrics, checkpoint.
//!
//! Nothing of that feeds back into training. The thread has a device, networks and a view of the replay of its own, which are those of the trainer at the end
//! of the epoch. At most one epoch is ending at a time, and all of them in order, so that a run's folder grows as it does without the thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, Scope, ScopedJoinHandle};

use engine::{Device, Error};
use envs::Game;

use super::*;

/// Environment variable: 0 ends every epoch before the next one begins, 1 beside it, on any device.
const VARIABLE: &str = "IRIS_BACKGROUND";

/// Whether epochs end beside the next one. A CPU is busy as it is.
pub fn ends_in_background(device: &Device) -> bool {
    match std::env::var(VARIABLE).as_deref() {
        Ok("0") => false,
        Ok("1") => true,
        _ => device.is_gpu(),
    }
}

/// What the thread has of its own.
pub(super) struct Beside {
    device: Device,
    /// As the trainer's agent was when the epoch ended, with the optimisers' state.
    agent: Agent,
    game: Game,
    /// Names of its actions.
    actions: Vec<String>,
    tokenizer: Option<TokenizerObjective>,
}

impl Beside {
    /// None if there is no memory for it.
    pub fn new(trainer: &Trainer) -> Result<Option<Beside>> {
        match Beside::with_room(trainer) {
            Err(Error::OutOfMemory { .. }) => Ok(None),
            made => Ok(Some(made?)),
        }
    }

    fn with_room(trainer: &Trainer) -> engine::Result<Beside> {
        let device = trainer.device.beside()?;
        let objective = &trainer.tokenizer.objective;
        let tokenizer = trainer
            .config
            .evaluation
            .losses
            .then(|| objective.copy_to(&device, &trainer.config.agent.tokenizer))
            .transpose()?;
        Ok(Beside {
            agent: Agent::new(&device, &trainer.config.agent, trainer.config.seed)?,
            device,
            game: trainer.game.clone(),
            actions: trainer.action_names(),
            tokenizer,
        })
    }
}

/// Trains while epochs end beside the next one.
pub(super) fn train(
    run: &mut Run,
    trainer: &mut Trainer,
    beside: &mut Beside,
    observer: &mut dyn Observer,
) -> Result<()> {
    std::thread::scope(|scope| {
        let mut saver = Saver::Free(Desk { run, beside });
        while trainer.epoch < trainer.config.epochs {
            let made = trainer.make_epoch(&mut Both { observer: &mut *observer, saver: &saver });
            if matches!(made, Err(TrainError::Interrupted)) {
                saver.cut_off();
            }
            // What went wrong with the epoch before went wrong first.
            let (desk, stopped) = saver.wait(observer)?;
            let mut made = made?;
            made.clock.waited();
            desk.run.discard(&mut trainer.replay)?;
            if stopped {
                return Err(TrainError::Interrupted);
            }
            trainer.replay.flush().map_err(RunError::from)?;
            desk.beside.agent.copy_from(&trainer.agent)?;
            let last = trainer.epoch == trainer.config.epochs;
            if !last {
                made.clock.pass_on();
            }
            let replay = trainer.replay.view().map_err(RunError::from)?;
            let ending = Ending { made, replay, config: trainer.config.clone() };
            saver = Saver::Busy(Pending::start(scope, desk, ending)?);
        }
        let (desk, _) = saver.wait(observer)?;
        Ok(desk.run.discard(&mut trainer.replay)?)
    })
}

/// Who ends epochs.
enum Saver<'scope, 'env> {
    Free(Desk<'env>),
    Busy(Pending<'scope, 'env>),
}

impl<'env> Saver<'_, 'env> {
    fn pending(&self) -> Option<&Pending<'_, 'env>> {
        match self {
            Saver::Free(_) => None,
            Saver::Busy(pending) => Some(pending),
        }
    }

    /// An evaluation is not finished. An epoch that is being saved is.
    fn cut_off(&self) {
        if let Some(pending) = self.pending() {
            pending.signals.cut_off.store(true, Ordering::Relaxed);
        }
    }

    /// Waits until the epoch has ended, and whether the observer asked for the end meanwhile.
    fn wait(self, observer: &mut dyn Observer) -> Result<(Desk<'env>, bool)> {
        match self {
            Saver::Free(desk) => Ok((desk, false)),
            Saver::Busy(pending) => pending.wait(observer),
        }
    }
}

/// What goes from one ending epoch to the next.
struct Desk<'env> {
    run: &'env mut Run,
    beside: &'env mut Beside,
}

/// An epoch that ends.
struct Ending {
    made: Made,
    /// As it was then.
    replay: Replay,
    config: TrainConfig,
}

impl Desk<'_> {
    fn finish(&mut self, ending: Ending, relay: &mut Relay) -> Result<()> {
        let Ending { made, replay, config } = ending;
        let Beside { device, agent, game, actions, tokenizer } = &mut *self.beside;
        let ended = Ended {
            epoch: made.epoch,
            actions: actions.clone(),
            config: &config,
            device,
            agent,
            replay: &replay,
            game,
            tokenizer: tokenizer.as_mut(),
        };
        self.run.finish(ended, made, relay).map(|_| ())
    }
}

/// What the two threads tell each other beside events.
#[derive(Default)]
struct Signals {
    /// Its evaluation is not wanted any more.
    cut_off: AtomicBool,
    /// Training waits for it.
    awaited: AtomicBool,
    failed: AtomicBool,
}

/// Tells the training thread what happens while an epoch ends.
struct Relay {
    events: Sender<Event>,
    signals: Arc<Signals>,
}

impl Observer for Relay {
    fn event(&mut self, event: Event) -> ControlFlow<()> {
        // While the next epoch makes progress, nobody wants to hear of this one's.
        let progress = matches!(event, Event::Progress { .. });
        if !progress || self.signals.awaited.load(Ordering::Relaxed) {
            // Nobody listens any more if training has failed.
            let _ = self.events.send(event);
        }
        match self.signals.cut_off.load(Ordering::Relaxed) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

/// An epoch that is ending.
struct Pending<'scope, 'env> {
    thread: ScopedJoinHandle<'scope, (Desk<'env>, Result<()>)>,
    events: Receiver<Event>,
    signals: Arc<Signals>,
    /// Whoever gives up waiting does not want the evaluation either.
    _cut_off: CutOff,
}

struct CutOff(Arc<Signals>);

impl Drop for CutOff {
    fn drop(&mut self) {
        self.0.cut_off.store(true, Ordering::Relaxed);
    }
}

impl<'scope, 'env: 'scope> Pending<'scope, 'env> {
    fn start(
        scope: &'scope Scope<'scope, 'env>,
        mut desk: Desk<'env>,
        ending: Ending,
    ) -> Result<Pending<'scope, 'env>> {
        let (sender, events) = channel();
        let signals = Arc::<Signals>::default();
        let mut relay = Relay { events: sender, signals: signals.clone() };
        let work = move || {
            let finished = desk.finish(ending, &mut relay);
            relay.signals.failed.store(finished.is_err(), Ordering::Relaxed);
            (desk, finished)
        };
        let refused = |e: std::io::Error| Error::Threads { threads: 1, reason: e.to_string() };
        let thread = Builder::new().name("ending".into()).spawn_scoped(scope, work).map_err(refused)?;
        Ok(Pending { thread, events, _cut_off: CutOff(signals.clone()), signals })
    }
}

impl<'env> Pending<'_, 'env> {
    fn wait(self, observer: &mut dyn Observer) -> Result<(Desk<'env>, bool)> {
        self.signals.awaited.store(true, Ordering::Relaxed);
        let mut stopped = false;
        // Until the thread is over.
        for event in &self.events {
            if observer.event(event).is_break() {
                stopped = true;
                self.signals.cut_off.store(true, Ordering::Relaxed);
            }
        }
        let (desk, finished) = self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        finished.map(|()| (desk, stopped))
    }
}

/// Hears of the epoch that is being made, and of the end of the one before.
struct Both<'a, 'scope, 'env> {
    observer: &'a mut dyn Observer,
    saver: &'a Saver<'scope, 'env>,
}

impl Observer for Both<'_, '_, '_> {
    fn event(&mut self, event: Event) -> ControlFlow<()> {
        let mut stopped = false;
        if let Some(pending) = self.saver.pending() {
            for event in pending.events.try_iter() {
                stopped |= self.observer.event(event).is_break();
            }
            stopped |= pending.signals.failed.load(Ordering::Relaxed);
        }
        stopped |= self.observer.event(event).is_break();
        match stopped {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}
