//! The studio from outside: the real program, plain connections, and a real browser where there is one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod access;
#[path = "../common/mod.rs"]
mod common;
mod http;
mod load;
mod measure;
mod pictures;
mod play;
mod player;
mod playing;
mod recorded;
mod requests;
mod screens;
mod server;
mod training;
mod webdriver;
mod websocket;
