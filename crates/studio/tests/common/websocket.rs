//! A WebSocket of a page, and of what only pretends to be one.
// Each test file uses a part of this.
#![allow(dead_code)]

use std::io::{BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;

use super::http::{Answer, connect, head, send};

pub const TEXT: u8 = 1;
pub const BINARY: u8 = 2;
pub const CLOSE: u8 = 8;

pub struct WebSocket {
    reader: BufReader<TcpStream>,
}

impl WebSocket {
    /// Upgrades a connection, with these headers beside those that the protocol asks for; or the answer that refuses it.
    pub fn open(port: u16, path: &str, headers: &[(&str, &str)]) -> Result<WebSocket, Answer> {
        let mut stream = connect(port);
        let upgrade = [
            ("Upgrade", "websocket"),
            ("Connection", "Upgrade"),
            ("Sec-WebSocket-Version", "13"),
            ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ];
        send(&mut stream, &format!("GET {path}"), &[&upgrade[..], headers].concat(), b"");
        let mut reader = BufReader::new(stream);
        let (status, headers) = head(&mut reader);
        if status != 101 {
            return Err(Answer { status, headers, body: Vec::new() });
        }
        Ok(WebSocket { reader })
    }

    /// Bytes as they are. The other side may have hung up.
    pub fn send_raw(&mut self, bytes: &[u8]) {
        let _ = self.reader.get_mut().write_all(bytes);
    }

    /// A whole message, masked with zeros as a page may.
    pub fn send(&mut self, kind: u8, payload: &[u8]) {
        let mut frame = vec![0x80 | kind];
        match payload.len() {
            length @ ..126 => frame.push(0x80 | length as u8),
            length @ ..65536 => {
                frame.push(0x80 | 126);
                frame.extend((length as u16).to_be_bytes());
            }
            length => {
                frame.push(0x80 | 127);
                frame.extend((length as u64).to_be_bytes());
            }
        }
        frame.extend([0; 4]);
        frame.extend(payload);
        self.send_raw(&frame);
    }

    pub fn send_text(&mut self, text: &str) {
        self.send(TEXT, text.as_bytes());
    }

    /// The next message, or none when the other side has hung up.
    pub fn receive(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut start = [0; 2];
        self.read(&mut start)?;
        let length = match start[1] & 0x7f {
            126 => {
                let mut length = [0; 2];
                self.read(&mut length)?;
                u16::from_be_bytes(length).into()
            }
            127 => {
                let mut length = [0; 8];
                self.read(&mut length)?;
                u64::from_be_bytes(length) as usize
            }
            length => length.into(),
        };
        let mut payload = vec![0; length];
        self.read(&mut payload)?;
        Some((start[0] & 0xf, payload))
    }

    fn read(&mut self, bytes: &mut [u8]) -> Option<()> {
        match self.reader.read_exact(bytes) {
            Ok(()) => Some(()),
            // It neither answers nor hangs up.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                panic!("{error}")
            }
            Err(_) => None,
        }
    }
}
