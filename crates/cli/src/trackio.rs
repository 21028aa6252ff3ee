//! Metrics for trackio 0.43, the experiment tracker of Hugging Face: files in its inbox, or requests to its server. Every epoch has an identifier of its own, so
//! that what is sent twice counts once. A tracker that cannot be reached stops nothing.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use agent::train::TrainConfig;
use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};

use crate::digest::fnv1a;
use crate::output::warn;

/// Version of the lines in the inbox.
const VERSION: u32 = 1;
const TIMEOUT: Duration = Duration::from_secs(10);
/// Epochs in one request or file.
const AT_ONCE: usize = 100;

/// Sends the metrics of a run.
pub struct Tracker {
    target: Target,
    project: String,
    run: String,
    run_id: String,
    config: Value,
    /// What is not sent yet.
    waiting: Vec<Value>,
    /// Files written so far.
    files: usize,
    /// Whether the last attempt failed, which was said.
    failing: bool,
}

enum Target {
    /// A folder of this writer in the inbox.
    Inbox(PathBuf),
    Server(Server),
}

struct Server {
    /// Host and port.
    address: String,
    /// Before `/api`.
    path: String,
    token: Option<String>,
}

impl Tracker {
    /// For the run in a folder, with the epochs that it has already.
    pub fn new(project: &str, folder: &Path, config: &TrainConfig) -> Result<Tracker> {
        let place = std::path::absolute(folder).unwrap_or_else(|_| folder.into());
        let run_id = format!("iris-{:016x}", fnv1a(place.as_os_str().as_encoded_bytes()));
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let target = match variable("TRACKIO_SERVER_URL") {
            Some(url) => Target::Server(Server::parse(&url, variable("TRACKIO_WRITE_TOKEN"))?),
            None => Target::Inbox(inbox(variable)?.join(&run_id)),
        };
        let run = run_name(&config.env, &place);
        let (project, config) = (project.to_string(), serde_json::to_value(config)?);
        let mut tracker =
            Tracker { target, project, run, run_id, config, waiting: Vec::new(), files: 0, failing: false };
        tracker.add_earlier(folder);
        Ok(tracker)
    }

    /// Epochs before this process may not have arrived.
    fn add_earlier(&mut self, folder: &Path) {
        let text = std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap_or_default();
        for mut line in text.lines().filter_map(|line| serde_json::from_str::<Map<String, Value>>(line).ok())
        {
            let Some(epoch) = line.remove("epoch").and_then(|epoch| epoch.as_u64()) else { continue };
            let entry = self.entry(epoch as usize, line, None);
            self.waiting.push(entry);
        }
    }

    /// An epoch is over.
    pub fn log(&mut self, epoch: usize, metrics: &[(String, f64)]) {
        let metrics = metrics.iter().map(|(name, value)| (name.clone(), (*value).into())).collect();
        let entry = self.entry(epoch, metrics, Some(now()));
        self.waiting.push(entry);
        match self.send() {
            Ok(()) => self.failing = false,
            Err(error) if !self.failing => {
                self.failing = true;
                warn(format!("trackio does not get the metrics ({error:#}); every epoch tries again"));
            }
            Err(_) => {}
        }
    }

    fn entry(&self, epoch: usize, metrics: Map<String, Value>, time: Option<String>) -> Value {
        json!({
            "v": VERSION, "kind": "metric", "project": self.project, "run": self.run, "run_id": self.run_id,
            "metrics": metrics, "step": epoch, "timestamp": time, "config": null,
            "log_id": format!("{}-{epoch}", self.run_id),
        })
    }

    /// Sends what waits, in order.
    fn send(&mut self) -> Result<()> {
        while !self.waiting.is_empty() {
            let count = self.waiting.len().min(AT_ONCE);
            // Once is enough, but a dashboard may forget a run.
            self.waiting[0]["config"] = self.config.clone();
            let entries = &self.waiting[..count];
            match &self.target {
                Target::Inbox(folder) => write_file(folder, &mut self.files, entries)?,
                Target::Server(server) => server.post(entries)?,
            }
            self.waiting.drain(..count);
        }
        Ok(())
    }
}

/// "arcade/catch seed0": the game and the name of the run's folder.
fn run_name(env: &str, folder: &Path) -> String {
    let name = folder.file_name().map_or(String::new(), |name| format!(" {}", name.to_string_lossy()));
    format!("{env}{name}")
}

/// Where trackio looks for files: the folders of its own documentation.
fn inbox(variable: impl Fn(&str) -> Option<String>) -> Result<PathBuf> {
    let cache = || {
        variable("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(variable("HOME")?).join(".cache")))
    };
    let hub = || variable("HF_HOME").map(PathBuf::from).or_else(|| Some(cache()?.join("huggingface")));
    let folder = variable("TRACKIO_DIR").map(PathBuf::from).or_else(|| Some(hub()?.join("trackio")));
    Ok(folder.context("--trackio needs TRACKIO_DIR or HOME to find trackio's folder")?.join("inbox"))
}

/// Writes a file that trackio reads and deletes. It sees the whole file or none.
fn write_file(folder: &Path, files: &mut usize, entries: &[Value]) -> Result<()> {
    let text: String = entries.iter().map(|entry| format!("{entry}\n")).collect();
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    // A file of a process before this one may still be there.
    let path = loop {
        let path = folder.join(format!("{files:08}.jsonl"));
        if !path.exists() {
            break path;
        }
        *files += 1;
    };
    agent::write_atomically(&path, text.as_bytes())?;
    *files += 1;
    Ok(())
}

impl Server {
    /// Of "http://host:7860/path?write_token=...".
    fn parse(url: &str, token: Option<String>) -> Result<Server> {
        let Some(rest) = url.strip_prefix("http://") else {
            bail!("TRACKIO_SERVER_URL is `{url}`: only addresses that begin with http:// are supported");
        };
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (host, path) = place.split_once('/').unwrap_or((place, ""));
        let in_url = query.split('&').find_map(|pair| pair.strip_prefix("write_token="));
        let port = host.rsplit(':').next().is_some_and(|port| port != host && port.parse::<u16>().is_ok());
        let address = if port { host.to_string() } else { format!("{host}:80") };
        if host.is_empty() || url.contains(char::is_whitespace) {
            bail!("TRACKIO_SERVER_URL is `{url}`, which names no server");
        }
        let path = if path.is_empty() { String::new() } else { format!("/{}", path.trim_end_matches('/')) };
        Ok(Server { address, path, token: in_url.map(String::from).or(token) })
    }

    fn post(&self, entries: &[Value]) -> Result<()> {
        let body = json!({"logs": entries, "hf_token": null}).to_string();
        let token =
            self.token.as_ref().map_or(String::new(), |token| format!("X-Trackio-Write-Token: {token}\r\n"));
        let request = format!(
            "POST {}/api/bulk_log HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{token}Connection: close\r\n\r\n{body}",
            self.path,
            self.address,
            body.len()
        );
        let unreachable = || format!("cannot reach {}", self.address);
        let address =
            self.address.to_socket_addrs().with_context(unreachable)?.next().with_context(unreachable)?;
        let mut stream = TcpStream::connect_timeout(&address, TIMEOUT).with_context(unreachable)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        stream.write_all(request.as_bytes()).with_context(unreachable)?;
        let mut answer = Vec::new();
        stream.take(1 << 16).read_to_end(&mut answer).with_context(unreachable)?;
        let answer = String::from_utf8_lossy(&answer);
        let status = answer.split_whitespace().nth(1).unwrap_or("nothing");
        match status.starts_with('2') {
            true => Ok(()),
            false => {
                let said = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body.trim());
                let said: String = said.chars().take(200).collect();
                bail!("{} answered {status} {said}", self.address)
            }
        }
    }
}

/// The time as trackio writes it: ISO 8601 in UTC.
fn now() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let text = crate::words::calendar(seconds);
    let part = |from: usize, to: usize| text.get(from..to).unwrap_or_default();
    format!(
        "{}-{}-{}T{}:{}:{}+00:00",
        part(0, 4),
        part(4, 6),
        part(6, 8),
        part(9, 11),
        part(11, 13),
        part(13, 15)
    )
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;

    use agent::testing::Scratch;

    use super::*;

    fn tracker(target: Target) -> Tracker {
        let config = json!({"seed": 3});
        let (project, run, run_id) = ("games".into(), "arcade/catch seed3".into(), "iris-1".into());
        Tracker { target, project, run, run_id, config, waiting: Vec::new(), files: 0, failing: false }
    }

    #[test]
    fn an_epoch_is_a_line_of_the_inbox() {
        let scratch = Scratch::new("trackio");
        let mut tracker = tracker(Target::Inbox(scratch.0.join("iris-1")));
        tracker.log(1, &[("a/loss".into(), 0.5)]);
        tracker.log(2, &[("a/loss".into(), 0.25)]);
        let read = |name: &str| std::fs::read_to_string(scratch.0.join("iris-1").join(name)).unwrap();
        let mut line: Value = serde_json::from_str(&read("00000000.jsonl")).unwrap();
        let time = line["timestamp"].take();
        assert!(time.as_str().is_some_and(|time| time.len() == 25 && time.starts_with("20")), "{time}");
        let expected = json!({
            "v": 1, "kind": "metric", "project": "games", "run": "arcade/catch seed3", "run_id": "iris-1",
            "metrics": {"a/loss": 0.5}, "step": 1, "timestamp": null, "config": {"seed": 3}, "log_id": "iris-1-1",
        });
        assert_eq!(line, expected);
        assert!(read("00000001.jsonl").contains("\"log_id\":\"iris-1-2\""));
    }

    #[test]
    fn a_server_gets_what_it_missed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/base/?x=1&write_token=secret", listener.local_addr().unwrap());
        let answer = |status: &str| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let (mut head, mut length) = (String::new(), 0);
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                if let Some(number) = line.strip_prefix("Content-Length: ") {
                    length = number.trim().parse().unwrap();
                }
                if line == "\r\n" {
                    break;
                }
                head += &line;
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            stream.write_all(format!("HTTP/1.1 {status}\r\n\r\nnull").as_bytes()).unwrap();
            (head, serde_json::from_slice::<Value>(&body).unwrap())
        };
        let mut tracker = tracker(Target::Server(Server::parse(&url, None).unwrap()));
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| [answer("503 Busy"), answer("200 OK")]);
            tracker.log(1, &[("loss".into(), 1.0)]);
            assert!(tracker.failing && tracker.waiting.len() == 1);
            tracker.log(2, &[("loss".into(), 2.0)]);
            assert!(!tracker.failing && tracker.waiting.is_empty());
            let [(head, first), (_, second)] = asked.join().unwrap();
            assert!(head.starts_with("POST /base/api/bulk_log HTTP/1.1\r\n"), "{head}");
            assert!(head.contains("X-Trackio-Write-Token: secret\r\n"), "{head}");
            assert_eq!(first["logs"].as_array().unwrap().len(), 1);
            let steps: Vec<_> =
                second["logs"].as_array().unwrap().iter().map(|log| log["step"].clone()).collect();
            assert_eq!((steps, &second["hf_token"]), (vec![json!(1), json!(2)], &Value::Null));
        });
    }

    #[test]
    fn addresses_are_checked() {
        let server = Server::parse("http://host", Some("token".into())).unwrap();
        assert_eq!((server.address.as_str(), server.path.as_str()), ("host:80", ""));
        assert_eq!(server.token.as_deref(), Some("token"));
        for url in ["https://host", "host:7860", "http://", "http://a b"] {
            assert!(Server::parse(url, None).is_err(), "{url}");
        }
        let folder = |set: &[(&str, &str)]| {
            inbox(|name| set.iter().find(|(n, _)| *n == name).map(|(_, value)| value.to_string()))
        };
        assert_eq!(folder(&[("TRACKIO_DIR", "t")]).unwrap(), Path::new("t/inbox"));
        assert_eq!(folder(&[("HOME", "h")]).unwrap(), Path::new("h/.cache/huggingface/trackio/inbox"));
        assert!(folder(&[]).is_err());
    }
}
