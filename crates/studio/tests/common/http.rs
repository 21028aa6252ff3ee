//! Requests over a plain connection: to WebDriver, and to the studio as no browser would send them. `iris` tests with these, too.
// Each test file uses a part of this.
#![allow(dead_code)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Far beyond what any answer takes, also on a machine that is busy with other things.
pub const PATIENCE: Duration = Duration::from_secs(300);

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }
}

pub fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Sends one request, headers as they are given, and reads the whole answer.
pub fn request(port: u16, line: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let mut stream = connect(port);
    send(&mut stream, line, headers, body);
    answer(stream)
}

pub fn send(stream: &mut TcpStream, line: &str, headers: &[(&str, &str)], body: &[u8]) {
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let mut bytes = format!("{line} HTTP/1.1\r\n{headers}\r\n").into_bytes();
    bytes.extend(body);
    // A server that refuses a request need not read all of it.
    let _ = stream.write_all(&bytes);
}

/// Reads an answer to its end; the connection may stay open after it.
pub fn answer(stream: TcpStream) -> Answer {
    let mut reader = BufReader::new(stream);
    let (status, headers) = head(&mut reader);
    let mut answer = Answer { status, headers, body: Vec::new() };
    if answer.header("transfer-encoding") == Some("chunked") {
        loop {
            let mut length = String::new();
            reader.read_line(&mut length).unwrap();
            let length = usize::from_str_radix(length.trim(), 16).unwrap();
            let mut chunk = vec![0; length + 2];
            reader.read_exact(&mut chunk).unwrap();
            answer.body.extend(&chunk[..length]);
            if length == 0 {
                return answer;
            }
        }
    }
    match answer.header("content-length").map(|length| length.parse().unwrap()) {
        Some(length) => {
            answer.body = vec![0; length];
            reader.read_exact(&mut answer.body).unwrap();
        }
        None => drop(reader.read_to_end(&mut answer.body).unwrap()),
    }
    answer
}

/// Status and headers.
pub fn head(reader: &mut impl BufRead) -> (u16, Vec<(String, String)>) {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let status = line.split(' ').nth(1).unwrap_or_else(|| panic!("no answer: {line:?}")).parse().unwrap();
    let mut headers = Vec::new();
    loop {
        line.clear();
        reader.read_line(&mut line).unwrap();
        let Some((name, value)) = line.trim_end().split_once(':') else { return (status, headers) };
        headers.push((name.to_ascii_lowercase(), value.trim().to_string()));
    }
}
