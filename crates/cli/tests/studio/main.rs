//! The studio from outside: the real program, plain connections, and a real browser where there is one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod access;
#[path = "../common/mod.rs"]
mod common;
#[path = "../../../studio/tests/common/http.rs"]
mod http;
mod load;
mod measure;
#[path = "../../../studio/tests/common/page.rs"]
mod page;
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
#[path = "../../../studio/tests/common/websocket.rs"]
mod websocket;
