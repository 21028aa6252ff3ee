//! Requests that no page of the studio sends, on the paths that lead to runs and games: each is refused, and the studio goes on. What every path has in
//! common (token, Host, Origin, headers) is tested in `crates/studio/tests/guard.rs`.

use std::io::Write;

use crate::http::{self, Answer, connect, request};
use crate::page::PLAY;
use crate::player::id;
use crate::server::{Studio, runs};
use crate::websocket::WebSocket;

/// Refused; and the studio answers its own page as before.
fn refused(studio: &mut Studio, answer: &Answer, what: &str) {
    assert!((400..500).contains(&answer.status), "{what}: {answer:?}");
    let listed = studio.get("/api/runs");
    assert_eq!(listed.status, 200, "after {what}: {listed:?}");
    assert!(studio.is_running(), "after {what}");
}

#[test]
fn sockets_of_other_pages_are_refused() {
    let mut studio = Studio::start(runs());
    let (host, cookie) = (studio.host(), studio.cookie());
    let (own, cookie, host) = (format!("http://{host}"), ("Cookie", &*cookie), ("Host", &*host));
    for headers in [
        &[host, cookie, ("Origin", "http://evil.example")][..],
        &[host, cookie, ("Origin", "null")],
        &[host, cookie],
        &[host, ("Origin", &own)],
        &[("Host", "evil.example"), ("Origin", "http://evil.example"), cookie],
    ] {
        let answer = WebSocket::open(studio.port, PLAY, headers).err().unwrap();
        assert!(matches!(answer.status, 401 | 403), "{headers:?}: {answer:?}");
        refused(&mut studio, &answer, &format!("{headers:?}"));
    }
}

#[test]
fn paths_lead_to_runs_alone() {
    let mut studio = Studio::start(runs());
    std::fs::write(runs().join("secret.txt"), "root: not the page's to see").unwrap();
    let run = id(&studio, "one");
    let up = ["..", "..%2f..", "%2e%2e%2fsecret.txt", "one", "%00", "..%5c..", &"x".repeat(5000)];
    let mut paths = Vec::new();
    for up in up {
        for area in ["replay", "look"] {
            paths.push(format!("/api/{area}/{up}"));
            paths.push(format!("/api/{area}/{up}/0/frames?from=0&count=1"));
            paths.push(format!("/api/{area}/{run}/{up}/0"));
            paths.push(format!("/api/{area}/{run}/{up}/frames?from=0&count=1"));
        }
        paths.push(format!("/api/play/{up}/recording.npz"));
        paths.push(format!("/api/play/0000000000000000/{up}"));
        paths.push(format!("/api/play/0000000000000000/recording.{up}"));
    }
    for part in [
        "from=0&count=0",
        "from=0&count=99999999999",
        "from=18446744073709551615&count=1",
        "from=-1&count=1",
        "",
    ] {
        for what in ["frames", "dream", "surprise"] {
            paths.push(format!("/api/replay/{run}/999999/{what}?{part}"));
        }
    }
    for path in &paths {
        let answer = studio.get(path);
        assert!(!answer.text().contains("root:"), "{path}: {}", answer.text());
        refused(&mut studio, &answer, path);
    }
    // Runs that do not exist are nothing to draw.
    let empty = studio.get("/api/curves?metric=evaluation%2Freturn&runs=..%2f..,%00,one");
    assert_eq!(empty.json()["groups"], serde_json::json!([]));
}

#[test]
fn large_bodies_and_half_requests_hold_up_nobody() {
    let mut studio = Studio::start(runs());
    let (host, cookie) = (studio.host(), studio.cookie());
    let origin = format!("http://{host}");
    let own = [("Host", &*host), ("Cookie", &*cookie), ("Origin", &*origin), ("Connection", "close")];
    let large = vec![b'['; 8 << 20];
    let length = large.len().to_string();
    for path in ["/api/runs", PLAY, "/"] {
        let line = format!("POST {path}");
        // Announced and never sent, and sent.
        let answer =
            request(studio.port, &line, &[&own[..], &[("Content-Length", "99999999999999")]].concat(), b"");
        refused(&mut studio, &answer, "a body that never comes");
        let answer =
            request(studio.port, &line, &[&own[..], &[("Content-Length", &length)]].concat(), &large);
        refused(&mut studio, &answer, "a large body");
    }
    let mut slow = connect(studio.port);
    slow.write_all(b"GET / HTTP/1.1\r\nHost: ").unwrap();
    assert_eq!(studio.get("/api/runs").status, 200);
    slow.write_all(format!("{host}\r\n\r\n").as_bytes()).unwrap();
    assert_eq!(http::answer(slow).status, 401);
}

/// No list names a folder of the machine.
#[test]
fn runs_are_known_by_ids_and_not_by_paths() {
    let studio = Studio::start(runs());
    let run = id(&studio, "one");
    for path in ["/api/runs".into(), format!("/api/replay/{run}"), format!("/api/compare?runs={run}")] {
        let answer = studio.get(&path);
        assert!(
            answer.status == 200 && !answer.text().contains(env!("CARGO_TARGET_TMPDIR")),
            "{}",
            answer.text()
        );
    }
}
