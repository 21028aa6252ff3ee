//! `/api/play`: a WebSocket to play through. A page has one session at a time: the real game, its reconstruction and a dream, side by side from the
//! same frame with the same actions.
//!
//! The page sends JSON as text:
//!
//! ```text
//! {"type": "start", "run": ID, "env": GAME, "seed": 0, "from": FROM}    begins a session; without a run the game alone, without an env the run's
//!     FROM: {"kind": "evaluation"}                     the game that `iris eval` begins with for the seed (default)
//!           {"kind": "training"}                       a game as it is played in training
//!           {"kind": "episode", "episode": ID, "step": N}   a recorded step: see `episodes`
//! {"type": "settings", "rate": 15, "auto": true, "policy": true, "eyes": "game", "temperature": 0.5, "horizon": 0}
//!     rate: steps per second, while auto is true; eyes: "game" or "dream", whose frames the policy acts on; horizon: dreamt steps after which the
//!     dream is shown reality, 0 for never
//! {"type": "hold", "action": 2}     a key is held: its action takes precedence over the policy's; null when it is released
//! {"type": "step", "action": 2}     one step now; null lets the policy act
//! {"type": "show", "step": 12}      looks at an earlier step; the next step branches off there
//! {"type": "reality"}               shows the dream the game's frame
//! {"type": "save", "size": 32}      writes the games of the session as episodes to learn from
//! ```
//!
//! It hears JSON as text, `{"type": "session", ...}`, `{"type": "saved", ...}` or `{"type": "problem", "message": ...}`, and every step as one binary message,
//! all numbers little-endian:
//!
//! ```text
//!  0  u32            1, the version
//!  4  u32            number of the step
//!  8  u32            bytes of the facts
//! 12  u16 u16        height and width of the game; 0 if there is none
//! 16  u16 u16        of its reconstruction
//! 20  u16 u16        of the dream
//! 24  JSON           the facts: see `Facts`
//!     RGB bytes      game, reconstruction, dream
//! ```
//!
//! Only the newest step waits to be sent: a page that reads slowly misses steps, and one that stops reading is disconnected.

mod history;
mod message;
mod real;
mod recording;
mod session;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::ws::{self, WebSocket, WebSocketUpgrade};
use axum::response::Response;
use axum::routing::get;
use envs::Game;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

use crate::Studio;
use crate::compute::{Source, refused};
use crate::episodes;
use crate::problem::{Problem, blocking};
use crate::taught;
use message::{From, Message, Settings, Start};
pub use session::Session;
use session::{Begin, Eyes, Orders, TEMPERATURE};

/// Bytes of a page's message.
const MOST_BYTES: usize = 4096;
/// A page that takes nothing for this long is gone.
const STALLED: Duration = Duration::from_secs(30);
/// Answers that wait to be sent.
const ANSWERS: usize = 8;

pub fn routes() -> Router<Arc<Studio>> {
    Router::new()
        .route("/api/play", get(open))
        .route("/api/play/{session}/{file}", get(recording::recording))
        .route("/api/games", get(games))
}

/// The games that can be played.
async fn games() -> Result<Json<Vec<Value>>, Problem> {
    let describe = |game: Game| json!({ "name": game.name, "rules": game.rules });
    blocking(move || Ok(Json(envs::all_games().into_iter().filter(Game::is_built).map(describe).collect())))
        .await
}

async fn open(State(studio): State<Arc<Studio>>, upgrade: WebSocketUpgrade) -> Response {
    let upgrade = upgrade.max_message_size(MOST_BYTES).max_frame_size(MOST_BYTES);
    upgrade.on_upgrade(move |socket| async move {
        let (sender, receiver) = socket.split();
        let (newest, steps) = watch::channel(Bytes::new());
        let (answers, waiting) = mpsc::channel(ANSWERS);
        let writer = tokio::spawn(write(sender, steps, waiting));
        let mut id = [0; 8];
        if getrandom::fill(&mut id).is_ok() {
            let page = Page::new(studio, u64::from_le_bytes(id), newest, answers);
            page.listen(receiver).await;
        }
        writer.abort();
    })
}

/// Sends answers, and the newest step.
async fn write(
    mut page: SplitSink<WebSocket, ws::Message>,
    mut steps: watch::Receiver<Bytes>,
    mut answers: mpsc::Receiver<String>,
) {
    loop {
        let message = tokio::select! {
            biased;
            Some(text) = answers.recv() => ws::Message::Text(text.into()),
            Ok(()) = steps.changed() => ws::Message::Binary(steps.borrow_and_update().clone()),
            else => return,
        };
        if !matches!(timeout(STALLED, page.send(message)).await, Ok(Ok(()))) {
            return;
        }
    }
}

/// A page that plays.
struct Page {
    studio: Arc<Studio>,
    id: u64,
    newest: watch::Sender<Bytes>,
    answers: mpsc::Sender<String>,
    settings: Settings,
    /// Whether there is a session.
    begun: bool,
    /// The action of the key that is held.
    held: Option<usize>,
    /// One that was pressed since the last step, and perhaps released.
    pressed: Option<usize>,
    next: Instant,
}

impl Page {
    fn new(
        studio: Arc<Studio>,
        id: u64,
        newest: watch::Sender<Bytes>,
        answers: mpsc::Sender<String>,
    ) -> Page {
        let settings = Settings {
            rate: 15.0,
            auto: false,
            policy: true,
            eyes: Eyes::Game,
            temperature: TEMPERATURE,
            horizon: 0,
        };
        let (held, pressed, next) = (None, None, Instant::now());
        Page { studio, id, newest, answers, settings, begun: false, held, pressed, next }
    }

    async fn listen(mut self, mut messages: SplitStream<WebSocket>) {
        loop {
            let auto = self.settings.auto && self.begun;
            let outcome = tokio::select! {
                biased;
                message = messages.next() => match message {
                    Some(Ok(ws::Message::Text(text))) => self.obey(&text).await,
                    Some(Ok(ws::Message::Binary(_))) => Err(Problem::bad_request("messages are text")),
                    Some(Ok(ws::Message::Ping(_) | ws::Message::Pong(_))) => Ok(()),
                    Some(Ok(ws::Message::Close(_)) | Err(_)) | None => break,
                },
                () = sleep_until(self.next), if auto => {
                    let period = Duration::from_secs_f64(1.0 / self.settings.rate);
                    // Steps that took too long are not made up for.
                    self.next = (self.next + period).max(Instant::now());
                    let action = self.pressed.take().or(self.held);
                    self.step(action, self.settings.policy).await
                }
                // The writer has given up.
                () = self.newest.closed() => break,
            };
            if let Err(problem) = outcome {
                // It would go wrong again.
                self.settings.auto = false;
                if self.answers.send(message::problem(&problem)).await.is_err() {
                    break;
                }
            }
        }
        let id = self.id;
        let end = self.studio.compute.ask(move |worker| {
            worker.end_session(id);
            Ok(())
        });
        let _ = end.await;
    }

    async fn obey(&mut self, text: &str) -> Result<(), Problem> {
        match Message::parse(text)? {
            Message::Start(start) => self.start(start).await,
            Message::Settings(settings) => {
                if !self.settings.auto {
                    self.next = Instant::now();
                }
                self.settings = settings;
                Ok(())
            }
            Message::Hold { action } => {
                self.held = action;
                self.pressed = action.or(self.pressed);
                Ok(())
            }
            Message::Step { action } => self.step(action, true).await,
            Message::Show { step } => self.with_session(move |session| session.show(step).map(|_| ())).await,
            Message::Reality => self.with_session(|session| session.put_reality_back().map(|_| ())).await,
            Message::Save { size } => self.save(size).await,
        }
    }

    async fn start(&mut self, start: Start) -> Result<(), Problem> {
        self.begun = false;
        (self.held, self.pressed) = (None, None);
        let (studio, id) = (self.studio.clone(), self.id);
        // Files are read here, so that nobody waits for them in the queue of the device.
        let (source, game, begin) = blocking(move || prepare(&studio, &start).map(|found| (found, start)))
            .await
            .map(|((source, game, begin), start)| (source, game, (begin, start.seed)))?;
        let (begin, seed) = begin;
        let (text, first) = self
            .studio
            .compute
            .ask(move |worker| {
                worker.end_session(id);
                let agent = source.map(|source| worker.load(&source)).transpose()?;
                let epoch = agent.as_ref().and_then(|agent| agent.epoch);
                let game = match (&agent, game) {
                    (Some(agent), _) => agent.game.clone(),
                    (None, Some(game)) => game,
                    (None, None) => return Err(Problem::bad_request("choose a run or a game")),
                };
                let session = Session::new(&worker.device, agent, game, seed, begin)?;
                let text = message::session(&format!("{id:016x}"), &session, epoch);
                let first = message::moment(session.now()?, session.history().ends())?;
                worker.add_session(id, session);
                Ok((text, first))
            })
            .await?;
        self.begun = true;
        self.next = Instant::now();
        let _ = self.answers.send(text).await;
        self.newest.send_replace(first.into());
        Ok(())
    }

    /// A step by a person, or by the policy, or by nobody.
    async fn step(&mut self, action: Option<usize>, policy: bool) -> Result<(), Problem> {
        let Settings { eyes, temperature, horizon, .. } = self.settings;
        self.with_session(move |session| {
            let action = action.or_else(|| (!policy).then(|| session.idle()));
            session.step(Orders { action, eyes, temperature, horizon }).map(|_| ())
        })
        .await
    }

    /// Does something with the session, and shows the page where it is then.
    async fn with_session(
        &mut self,
        act: impl FnOnce(&mut Session) -> Result<(), Problem> + Send + 'static,
    ) -> Result<(), Problem> {
        if !self.begun {
            return Err(Problem::bad_request("nothing is being played: start a game first"));
        }
        let id = self.id;
        let bytes = self.studio.compute.ask(move |worker| {
            let session = worker.session(id)?;
            act(session)?;
            message::moment(session.now()?, session.history().ends())
        });
        self.newest.send_replace(bytes.await?.into());
        Ok(())
    }

    /// Writes what was played as episodes.
    async fn save(&mut self, size: usize) -> Result<(), Problem> {
        let (id, studio) = (self.id, self.studio.clone());
        let (game, games) = self
            .studio
            .compute
            .ask(move |worker| {
                let session = worker.session(id)?;
                Ok((session.game().clone(), session.games().to_vec()))
            })
            .await?;
        let saved = blocking(move || taught::save(&studio.root, &game, &games, size)).await?;
        let _ = self.answers.send(saved.to_string()).await;
        Ok(())
    }
}

type Prepared = (Option<Source>, Option<Game>, Begin);

/// Finds what a session begins with.
fn prepare(studio: &Studio, start: &Start) -> Result<Prepared, Problem> {
    let Some(run) = &start.run else {
        let env = start.env.as_deref().ok_or_else(|| Problem::bad_request("choose a run or a game"))?;
        let begin = match start.from {
            From::Evaluation => Begin::Evaluation,
            From::Training => Begin::Training,
            From::Episode { .. } => return Err(Problem::bad_request("episodes belong to a run: choose one")),
        };
        return Ok((None, Some(Game::find(env).map_err(refused)?), begin));
    };
    let entry = studio.run(run)?;
    let begin = match &start.from {
        From::Evaluation => Begin::Evaluation,
        From::Training => Begin::Training,
        From::Episode { episode, step } => {
            let start = episodes::Episodes::open(studio, &entry)?.start(episode, *step)?;
            Begin::Recorded { frames: start.frames, actions: start.actions, played: start.played }
        }
    };
    Ok((Some(Source::new(&entry, start.env.as_deref())), None, begin))
}
