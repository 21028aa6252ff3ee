//! A studio over a folder of the test's own, and an HTTP client that sends what it is told.
// Each test file uses a part of this.
#![allow(dead_code)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use engine::Device;
use studio::{Background, Port, Server};

/// A running studio. Dropping it ends the server and removes the folder.
pub struct Studio {
    pub root: PathBuf,
    pub background: Background,
    pub address: String,
    pub token: String,
}

impl Studio {
    /// Over a new folder, which `fill` puts runs into.
    pub fn new(name: &str, fill: impl FnOnce(&Path)) -> Studio {
        let root = std::env::temp_dir().join(format!("iris-studio-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir_all(&root).unwrap();
        fill(&root);
        let port = Port::take(None, 0).unwrap();
        let server = Server::new(port, root.clone(), Device::cpu(Some(1)).unwrap()).unwrap();
        let background = server.in_background().unwrap();
        let (address, token) = background.url().trim_start_matches("http://").split_once("/?token=").unwrap();
        let (address, token) = (address.to_string(), token.to_string());
        Studio { root, background, address, token }
    }

    pub fn port(&self) -> &str {
        self.address.rsplit_once(':').unwrap().1
    }

    pub fn cookie(&self) -> String {
        format!("iris-studio-{}={}", self.port(), self.token)
    }

    /// A request with the headers of the studio's own page; `extra` lines follow.
    pub fn get(&self, path: &str, extra: &[&str]) -> Answer {
        let (host, cookie) = (format!("Host: {}", self.address), format!("Cookie: {}", self.cookie()));
        let headers = [&[host.as_str(), &cookie], extra].concat();
        self.send(&format!("GET {path} HTTP/1.1"), &headers, b"")
    }

    /// A request made of these lines and nothing else.
    pub fn send(&self, request: &str, headers: &[&str], body: &[u8]) -> Answer {
        Answer::read(self.stream(request, headers, body))
    }

    /// The connection after the request was sent; the answer is read by the caller.
    pub fn stream(&self, request: &str, headers: &[&str], body: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let mut text = format!("{request}\r\n");
        headers.iter().for_each(|header| text += &format!("{header}\r\n"));
        stream.write_all(text.as_bytes()).unwrap();
        stream.write_all(b"Connection: close\r\n\r\n").unwrap();
        stream.write_all(body).unwrap();
        stream
    }

    /// The JSON of an answer that must be there.
    pub fn json(&self, path: &str) -> serde_json::Value {
        let answer = self.get(path, &[]);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        serde_json::from_slice(&answer.body).unwrap()
    }
}

impl Drop for Studio {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// Lower-case names.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    fn read(stream: TcpStream) -> Answer {
        let mut reader = BufReader::new(stream);
        let (status, headers) = head(&mut reader);
        let mut body = Vec::new();
        let _ = reader.read_to_end(&mut body);
        Answer { status, headers, body }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// The status and the headers of an answer.
pub fn head(reader: &mut impl BufRead) -> (u16, Vec<(String, String)>) {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    let mut headers = Vec::new();
    loop {
        line.clear();
        reader.read_line(&mut line).unwrap();
        match line.trim_end().split_once(':') {
            Some((name, value)) => headers.push((name.to_ascii_lowercase(), value.trim().to_string())),
            None => return (status, headers),
        }
    }
}
