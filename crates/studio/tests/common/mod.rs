//! A studio over a folder of the test's own, and its page.
// Each test file uses a part of this.
#![allow(dead_code)]

pub mod http;
pub mod page;
pub mod websocket;

use std::net::TcpStream;
use std::path::{Path, PathBuf};

use agent::testing::Scratch;
use engine::Device;
use http::Answer;
use page::Page;
use studio::{Background, Port, Server};

/// A running studio. Dropping it ends the server and removes the folder.
pub struct Studio {
    pub background: Background,
    pub root: PathBuf,
    _folder: Scratch,
    pub address: String,
    pub token: String,
}

impl Studio {
    /// Over a new folder, which `fill` puts runs into.
    pub fn new(name: &str, fill: impl FnOnce(&Path)) -> Studio {
        let folder = Scratch::new(&format!("studio-{name}"));
        let root = folder.0.clone();
        fill(&root);
        let port = Port::take(None, 0).unwrap();
        let server = Server::new(port, root.clone(), Device::cpu(Some(1)).unwrap()).unwrap();
        let background = server.in_background().unwrap();
        let (address, token) = background.url().trim_start_matches("http://").split_once("/?token=").unwrap();
        let (address, token) = (address.to_string(), token.to_string());
        Studio { background, root, _folder: folder, address, token }
    }

    pub fn port(&self) -> u16 {
        self.address.rsplit_once(':').unwrap().1.parse().unwrap()
    }

    pub fn cookie(&self) -> String {
        format!("iris-studio-{}={}", self.port(), self.token)
    }

    /// A page that plays.
    pub fn page(&self) -> Page {
        Page::open(self.port(), &self.cookie())
    }

    /// A request with the headers of the studio's own page; `extra` lines follow.
    pub fn get(&self, path: &str, extra: &[&str]) -> Answer {
        let (host, cookie) = (format!("Host: {}", self.address), format!("Cookie: {}", self.cookie()));
        let headers = [&[host.as_str(), &cookie], extra].concat();
        self.send(&format!("GET {path}"), &headers)
    }

    /// A request with these header lines and no others.
    pub fn send(&self, request: &str, headers: &[&str]) -> Answer {
        http::answer(self.stream(request, headers))
    }

    /// The connection after the request was sent; the answer is read by the caller.
    pub fn stream(&self, request: &str, headers: &[&str]) -> TcpStream {
        let mut stream = http::connect(self.port());
        let pairs = headers.iter().map(|header| header.split_once(": ").unwrap());
        let headers: Vec<_> = pairs.chain([("Connection", "close")]).collect();
        http::send(&mut stream, request, &headers, b"");
        stream
    }

    /// The JSON of an answer that must be there.
    pub fn json(&self, path: &str) -> serde_json::Value {
        let answer = self.get(path, &[]);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        serde_json::from_slice(&answer.body).unwrap()
    }
}
