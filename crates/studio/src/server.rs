//! The server: takes the port, puts the routes together, and ends without a trace.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use axum::extract::DefaultBodyLimit;
use axum::routing::get;
use axum::serve::ListenerExt;
use axum::{Router, middleware};
use engine::Device;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

use crate::compute::Compute;
use crate::episodes::Replays;
use crate::fresh::Fresh;
use crate::guard::{self, Token};
use crate::index::Index;
use crate::metrics::Metrics;
use crate::summary::Summaries;
use crate::{Studio, StudioError, about, compare, curves, files, look, play, replay, runs};

/// Where it listens unless told otherwise.
const LOOPBACK: &str = "127.0.0.1";

/// Bytes of a request's body; a route that needs more says so.
const MOST_BYTES: usize = 64 << 10;

/// A port that nobody else has.
pub struct Port {
    listener: TcpListener,
    address: SocketAddr,
    /// The name that was given to listen on, if any.
    host: Option<String>,
}

impl Port {
    /// Takes a port of loopback, or of the address or name that is given; 0 for any that is free.
    pub fn take(host: Option<String>, port: u16) -> Result<Port, StudioError> {
        let name = host.as_deref().unwrap_or(LOOPBACK);
        let cannot = |source| StudioError::Listen { host: name.into(), source };
        let none = || cannot(std::io::Error::new(ErrorKind::NotFound, "it has no address"));
        let address = (name, port).to_socket_addrs().map_err(cannot)?.next().ok_or_else(none)?;
        let listener = TcpListener::bind(address).map_err(|source| match source.kind() {
            ErrorKind::AddrInUse => StudioError::PortTaken { address },
            _ => cannot(source),
        })?;
        let address = listener.local_addr().map_err(StudioError::Start)?;
        listener.set_nonblocking(true).map_err(StudioError::Start)?;
        Ok(Port { listener, address, host })
    }
}

/// A studio that has its port, but does not answer yet.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    studio: Arc<Studio>,
}

impl Server {
    /// A studio over `root`: a run, or a folder that holds runs and agents. It has the device for itself.
    pub fn new(port: Port, root: PathBuf, device: Device) -> Result<Server, StudioError> {
        let compute = Compute::new(device.clone(), false);
        Server::over(port, root, device, compute)
    }

    /// A studio over a run that is being trained on `device`, which it leaves to the run.
    pub fn beside(port: Port, run: PathBuf, device: Device) -> Result<Server, StudioError> {
        let compute = Compute::new(device.clone(), true);
        Server::over(port, run, device, compute)
    }

    fn over(port: Port, root: PathBuf, device: Device, compute: Compute) -> Result<Server, StudioError> {
        if !root.is_dir() {
            return Err(StudioError::NoFolder { root });
        }
        let Port { listener, address, host } = port;
        let studio = Studio {
            compute,
            replays: Replays::default(),
            device,
            index: Index::new(root.clone()),
            root,
            known: Summaries::default(),
            newest: Fresh::default(),
            metrics: Metrics::default(),
            token: Token::random(address.port()).map_err(StudioError::Token)?,
            host,
        };
        Ok(Server { listener, address, studio: Arc::new(studio) })
    }

    /// The address to open, with the token in it.
    pub fn url(&self) -> String {
        // Nobody can open the address that stands for all of them.
        let host = match &self.studio.host {
            Some(host) if !self.address.ip().is_unspecified() => host,
            _ => LOOPBACK,
        };
        let host = if host.contains(':') { format!("[{host}]") } else { host.into() };
        format!("http://{host}:{}/?token={}", self.address.port(), self.studio.token.text())
    }

    /// Serves until Ctrl-C or SIGTERM, which are heard by the time `ready` is called.
    pub fn run(self, ready: impl FnOnce(&str)) -> Result<(), StudioError> {
        let runtime =
            Builder::new_multi_thread().worker_threads(1).enable_all().build().map_err(StudioError::Start)?;
        runtime.block_on(async {
            let end = asked_to_end().map_err(StudioError::Start)?;
            ready(&self.url());
            self.serve(end).await
        })?;
        // Streams to pages that are still open end with it.
        runtime.shutdown_background();
        Ok(())
    }

    /// Serves from a thread of its own until the result is dropped.
    pub fn in_background(self) -> Result<Background, StudioError> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(StudioError::Start)?;
        let url = self.url();
        let (end, ended) = oneshot::channel::<()>();
        let serve = move |runtime: Runtime| {
            // Whatever goes wrong here must not disturb the run.
            let _ = runtime.block_on(self.serve(async {
                let _ = ended.await;
            }));
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("studio".into()).spawn(move || serve(runtime));
        Ok(Background { url, end: Some(end), thread: Some(thread.map_err(StudioError::Start)?) })
    }

    async fn serve(self, end: impl Future<Output = ()>) -> Result<(), StudioError> {
        let listener = tokio::net::TcpListener::from_std(self.listener).map_err(StudioError::Start)?;
        // Without it an answer to a key press waits for up to 40 ms (Nagle's algorithm and delayed acknowledgements).
        let listener = listener.tap_io(|stream| {
            let _ = stream.set_nodelay(true);
        });
        tokio::select! {
            served = async { axum::serve(listener, router(self.studio)).await } => served.map_err(StudioError::Start),
            () = end => Ok(()),
        }
    }
}

fn router(studio: Arc<Studio>) -> Router {
    Router::new()
        .route("/", get(files::index))
        .route("/{*path}", get(files::file))
        .merge(runs::routes())
        .merge(play::routes())
        .merge(replay::routes())
        .merge(look::routes())
        .merge(curves::routes())
        .merge(compare::routes())
        .merge(about::routes())
        .layer(DefaultBodyLimit::max(MOST_BYTES))
        .layer(middleware::from_fn_with_state(studio.clone(), guard::check))
        .with_state(studio)
}

/// Ends when the process is asked to.
#[cfg(unix)]
fn asked_to_end() -> std::io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

#[cfg(not(unix))]
fn asked_to_end() -> std::io::Result<impl Future<Output = ()>> {
    Ok(async {
        let _ = tokio::signal::ctrl_c().await;
    })
}

/// A studio that serves from a thread of its own until it is dropped.
pub struct Background {
    url: String,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    pub fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
