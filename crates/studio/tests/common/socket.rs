//! A WebSocket client of a few lines: what a page would send, and what it should not.

use std::io::{BufReader, Read, Write};
use std::net::TcpStream;

use serde_json::Value;

use super::common::{Studio, head};

pub struct Socket {
    stream: BufReader<TcpStream>,
}

#[derive(Debug)]
pub enum Heard {
    Text(Value),
    /// A step, with the RGB bytes of game, reconstruction and dream.
    Moment {
        facts: Value,
        images: [Vec<u8>; 3],
    },
    Closed,
}

impl Socket {
    pub fn open(studio: &Studio) -> Socket {
        let mut stream = TcpStream::connect(&studio.address).unwrap();
        let (address, cookie) = (&studio.address, studio.cookie());
        write!(
            stream,
            "GET /api/play HTTP/1.1\r\nHost: {address}\r\nOrigin: http://{address}\r\nCookie: {cookie}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        .unwrap();
        let mut stream = BufReader::new(stream);
        let (status, _) = head(&mut stream);
        assert_eq!(status, 101);
        Socket { stream }
    }

    pub fn say(&mut self, message: &Value) {
        self.send(1, message.to_string().as_bytes());
    }

    /// A whole message of this kind (1 text, 2 binary). The mask of zeros leaves the bytes as they are.
    pub fn send(&mut self, kind: u8, bytes: &[u8]) {
        let mut frame = vec![0x80 | kind];
        match bytes.len() {
            short @ 0..126 => frame.push(0x80 | short as u8),
            long @ 126..65536 => {
                frame.push(0x80 | 126);
                frame.extend((long as u16).to_be_bytes());
            }
            longer => {
                frame.push(0x80 | 127);
                frame.extend((longer as u64).to_be_bytes());
            }
        }
        frame.extend([0; 4]);
        frame.extend(bytes);
        // The server may have hung up; then the next thing heard is that.
        let _ = self.stream.get_mut().write_all(&frame);
    }

    fn bytes(&mut self, count: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; count];
        self.stream.read_exact(&mut bytes).ok()?;
        Some(bytes)
    }

    fn frame(&mut self) -> Option<(u8, Vec<u8>)> {
        let start = self.bytes(2)?;
        let length = match start[1] & 127 {
            126 => u16::from_be_bytes(self.bytes(2)?.try_into().unwrap()) as usize,
            127 => u64::from_be_bytes(self.bytes(8)?.try_into().unwrap()) as usize,
            short => usize::from(short),
        };
        Some((start[0] & 15, self.bytes(length)?))
    }

    pub fn hear(&mut self) -> Heard {
        match self.frame() {
            Some((1, text)) => Heard::Text(serde_json::from_slice(&text).unwrap()),
            Some((2, bytes)) => moment(&bytes),
            _ => Heard::Closed,
        }
    }
}

fn moment(bytes: &[u8]) -> Heard {
    let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let u16_at = |at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    assert_eq!(u32_at(0), 1);
    let facts: Value = serde_json::from_slice(&bytes[24..24 + u32_at(8)]).unwrap();
    assert_eq!(facts["step"], u32_at(4));
    let mut at = 24 + u32_at(8);
    let images = [12, 16, 20].map(|place| {
        let length = u16_at(place) * u16_at(place + 2) * 3;
        at += length;
        bytes[at - length..at].to_vec()
    });
    assert_eq!(at, bytes.len());
    Heard::Moment { facts, images }
}
