//! The thread that computes: it owns the agents and the games that pages play. Requests wait for their turn in a queue, one step at a time, so that
//! several pages share the device fairly; what goes wrong is an answer like any other.

mod agents;

use std::collections::VecDeque;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

use axum::http::StatusCode;
use engine::Device;
use tokio::sync::{OnceCell, mpsc, oneshot};

pub use agents::{Loaded, Source};

use crate::play::Session;
use crate::problem::{Problem, blocking};

/// Requests that may wait; whoever has one more waits before the queue.
const QUEUE: usize = 64;
/// Games that are played at the same time. The one that nobody has touched longest makes room for a new one.
const SESSIONS: usize = 8;

type Job = Box<dyn FnOnce(&mut Worker) + Send>;

/// The way to the thread, which starts with the first request.
pub struct Compute {
    device: Device,
    /// Whether others compute on the device: then the thread opens one of its own.
    shared: bool,
    jobs: OnceCell<mpsc::Sender<Job>>,
}

/// What the thread owns.
pub struct Worker {
    pub device: Device,
    agents: agents::Agents,
    /// The one that was used last is the last.
    sessions: VecDeque<(u64, Session)>,
}

impl Compute {
    pub fn new(device: Device, shared: bool) -> Compute {
        Compute { device, shared, jobs: OnceCell::new() }
    }

    /// Has `work` done when its turn comes.
    pub async fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Worker) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let failed = || Problem::internal("the computation failed; what was being played is lost");
        let (answer, answered) = oneshot::channel();
        let job: Job = Box::new(move |worker| {
            // Somebody who has left needs no answer.
            let _ = answer.send(work(worker));
        });
        self.jobs().await?.send(job).await.map_err(|_| failed())?;
        answered.await.unwrap_or_else(|_| Err(failed()))
    }

    async fn jobs(&self) -> Result<&mpsc::Sender<Job>, Problem> {
        let start = || async {
            let (shared, device) = (self.shared, self.device.clone());
            let open = move || if shared { device.beside() } else { Ok(device) };
            let device = blocking(move || open().map_err(Problem::internal)).await?;
            let (jobs, waiting) = mpsc::channel(QUEUE);
            let thread = std::thread::Builder::new().name("studio-compute".into());
            thread.spawn(move || work(device, waiting)).map_err(Problem::internal)?;
            Ok(jobs)
        };
        self.jobs.get_or_try_init(start).await
    }
}

fn work(device: Device, mut waiting: mpsc::Receiver<Job>) {
    let mut worker = Worker::new(device.clone());
    while let Some(job) = waiting.blocking_recv() {
        // A mistake of this program in one request must not end the others.
        if catch_unwind(AssertUnwindSafe(|| job(&mut worker))).is_err() {
            worker = Worker::new(device.clone());
        }
    }
}

impl Worker {
    pub fn new(device: Device) -> Worker {
        Worker { device, agents: agents::Agents::default(), sessions: VecDeque::new() }
    }

    /// The agent of a run's newest checkpoint, or an imported one.
    pub fn load(&mut self, source: &Source) -> Result<std::rc::Rc<Loaded>, Problem> {
        self.agents.load(&self.device, source)
    }

    /// Takes a game in; the one that was used longest ago makes room for it.
    pub fn add_session(&mut self, id: u64, session: Session) {
        self.end_session(id);
        self.sessions.push_back((id, session));
        while self.sessions.len() > SESSIONS {
            self.sessions.pop_front();
        }
    }

    pub fn session(&mut self, id: u64) -> Result<&mut Session, Problem> {
        let at = self.sessions.iter().position(|(known, _)| *known == id);
        if let Some(session) = at.and_then(|at| self.sessions.remove(at)) {
            self.sessions.push_back(session);
        }
        match self.sessions.back_mut() {
            Some((_, session)) if at.is_some() => Ok(session),
            _ => Err(Problem::new(
                StatusCode::GONE,
                "this game was closed to make room for newer ones: start it again",
            )),
        }
    }

    pub fn end_session(&mut self, id: u64) {
        self.sessions.retain(|(known, _)| *known != id);
    }
}

/// For `map_err`: what the libraries say about something that was asked for.
pub fn refused(error: impl Display) -> Problem {
    Problem::bad_request(error)
}
