//! Nobody but the studio's own page gets an answer.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::Studio;
use engine::Device;
use studio::{Port, Server, StudioError};

/// What a browser sends for a WebSocket.
const UPGRADE: [&str; 4] = [
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-Fetch-Mode: websocket",
];

#[test]
fn the_token_becomes_a_cookie() {
    let studio = Studio::new("token", |_| {});
    let host = format!("Host: {}", studio.address);
    assert_eq!(studio.token.len(), 32, "128 bits in hexadecimal");
    let without = studio.send("GET /", &[&host]);
    assert_eq!(without.status, 401);
    assert!(without.text().contains("open the address that the studio printed"), "{}", without.text());
    for wrong in ["0".repeat(32), String::new(), studio.token[1..].to_string(), studio.token.repeat(2)] {
        let answer = studio.send(&format!("GET /?token={wrong}"), &[&host]);
        assert_eq!((answer.status, answer.header("set-cookie")), (401, None), "{wrong}");
    }
    let right = studio.send(&format!("GET /?token={}", studio.token), &[&host]);
    assert_eq!((right.status, right.header("location")), (303, Some("/")));
    let cookie = format!("{}; HttpOnly; SameSite=Strict; Path=/", studio.cookie());
    assert_eq!(right.header("set-cookie"), Some(cookie.as_str()));
    assert_eq!(studio.get("/", &[]).status, 200);
    // The token counts in the address of the page only, so that it does not end up in links.
    let elsewhere = studio.send(&format!("GET /api/runs?token={}", studio.token), &[&host]);
    assert_eq!(elsewhere.status, 401);
    let other = format!("Cookie: iris-studio-{}={}", studio.port(), "0".repeat(32));
    assert_eq!(studio.send("GET /api/runs", &[&host, &other]).status, 401);
}

#[test]
fn other_hosts_are_refused() {
    let studio = Studio::new("host", |_| {});
    let cookie = format!("Cookie: {}", studio.cookie());
    let status = |host: &str| studio.send("GET /api/runs", &[host, &cookie]).status;
    let port = studio.port();
    for own in ["127.0.0.1", "localhost", "LOCALHOST", "[::1]"] {
        assert_eq!(status(&format!("Host: {own}:{port}")), 200, "{own}");
    }
    // Through `ssh -L` the port is another.
    assert_eq!(status("Host: localhost:9999"), 200);
    for foreign in [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "192.168.0.7",
        "127.0.0.1@evil.example",
        "evil.example:80:127.0.0.1",
        "",
        "[::1",
        "localhost:80x",
    ] {
        assert_eq!(status(&format!("Host: {foreign}")), 403, "{foreign}");
    }
    let twice = ["Host: localhost", "Host: evil.example", &cookie];
    assert!(matches!(studio.send("GET /api/runs", &twice).status, 400 | 403));
    assert!(matches!(studio.send("GET /api/runs", &[&cookie]).status, 400 | 403));
    // Also with the token, which an attacker cannot have anyway.
    let exchange = format!("GET /?token={}", studio.token);
    assert_eq!(studio.send(&exchange, &["Host: evil.example"]).status, 403);
}

#[test]
fn other_pages_are_refused() {
    let studio = Studio::new("origin", |_| {});
    let own = format!("Origin: http://{}", studio.address);
    for path in ["/", "/api/runs", "/api/live", "/app.js"] {
        for foreign in ["http://evil.example", "null", "http://localhost:1", "file://", ""] {
            let origin = format!("Origin: {foreign}");
            assert_eq!(studio.get(path, &[&origin]).status, 403, "{path} {foreign}");
            let upgrade = [&UPGRADE[..], &[origin.as_str()]].concat();
            assert_eq!(studio.get(path, &upgrade).status, 403, "WebSocket {path} {foreign}");
        }
        // Browsers always say where a WebSocket comes from.
        assert_eq!(studio.get(path, &UPGRADE).status, 403, "{path}");
    }
    assert_eq!(studio.get("/api/runs", &[&own]).status, 200);
    // Another port of this machine is the same site, and gets the cookie.
    for site in ["same-site", "cross-site"] {
        assert_eq!(studio.get("/api/runs", &[&format!("Sec-Fetch-Site: {site}")]).status, 403, "{site}");
    }
    assert_eq!(studio.get("/api/runs", &["Sec-Fetch-Site: same-origin"]).status, 200);
    // A link from anywhere may lead to the page itself.
    assert_eq!(studio.get("/", &["Sec-Fetch-Site: cross-site"]).status, 200);
}

#[test]
fn a_change_needs_cookie_and_origin() {
    let studio = Studio::new("post", |_| {});
    let (host, cookie) = (format!("Host: {}", studio.address), format!("Cookie: {}", studio.cookie()));
    let own = format!("Origin: http://{}", studio.address);
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"] {
        let status = |headers: &[&str]| studio.send(&format!("{method} /api/runs"), headers).status;
        assert_eq!(status(&[&host, &cookie]), 403, "{method} without Origin");
        assert_eq!(status(&[&host, &own]), 401, "{method} without cookie");
        // Nothing is there that could be changed this way.
        assert_eq!(status(&[&host, &cookie, &own]), 405, "{method}");
    }
}

#[test]
fn every_answer_has_the_headers() {
    let studio = Studio::new("headers", |_| {});
    let host = format!("Host: {}", studio.address);
    let answers = [
        studio.get("/", &[]),
        studio.get("/app.js", &[]),
        studio.get("/api/runs", &[]),
        studio.get("/nothing", &[]),
        studio.send("GET /", &[&host]),
        studio.send("GET /", &["Host: evil.example"]),
        studio.send(&format!("GET /?token={}", studio.token), &[&host]),
    ];
    for answer in answers {
        let policy = answer.header("content-security-policy").unwrap();
        for rule in
            ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "form-action 'none'"]
        {
            assert!(policy.contains(rule), "{policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.header("referrer-policy"), Some("no-referrer"));
        assert_eq!(answer.header("cross-origin-resource-policy"), Some("same-origin"));
        assert_eq!(answer.header("access-control-allow-origin"), None);
    }
    assert_eq!(studio.get("/", &[]).header("content-type"), Some("text/html; charset=utf-8"));
}

#[test]
fn no_path_leads_out_of_the_page() {
    let studio = Studio::new("traversal", |root| std::fs::write(root.join("secret.txt"), "secret").unwrap());
    for path in [
        "/../secret.txt",
        "/..%2fsecret.txt",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/secret.txt",
        "//etc/passwd",
        "/page/../secret.txt",
        "/vendor/uplot/../../index.html",
        "/etc/passwd%00.js",
        "/api/runs/..%2f..%2fetc",
        "/api/runs/%2e%2e",
        "/app.js/",
        "/App.js",
    ] {
        let answer = studio.get(path, &[]);
        assert_eq!(answer.status, 404, "{path}: {}", answer.text());
    }
}

#[test]
fn nonsense_harms_nobody() {
    let studio = Studio::new("nonsense", |_| {});
    let long = format!("GET /{} HTTP/1.1", "x".repeat(1 << 20));
    let host = format!("Host: {}", studio.address);
    let header = format!("X-Long: {}", "x".repeat(1 << 20));
    for (request, header) in [
        ("", ""),
        ("\0\0\0", ""),
        ("GET", ""),
        ("GET / HTTP/9.9", ""),
        (long.as_str(), ""),
        ("GET / HTTP/1.1", &header),
        ("GET /%zz HTTP/1.1", ""),
        ("GET /api/runs?x=%ff HTTP/1.1", ""),
        ("POST / HTTP/1.1", "Content-Length: -1"),
    ] {
        // The server may hang up before everything is sent.
        let mut stream = std::net::TcpStream::connect(&studio.address).unwrap();
        let _ = std::io::Write::write_all(
            &mut stream,
            format!("{request}\r\n{host}\r\n{header}\r\nConnection: close\r\n\r\n").as_bytes(),
        );
        let mut answer = Vec::new();
        let _ = std::io::Read::read_to_end(&mut stream, &mut answer);
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{request:.20}: {answer}");
    }
    assert_eq!(studio.get("/api/runs", &[]).status, 200);
}

#[test]
fn a_port_that_is_taken_is_named() {
    let studio = Studio::new("taken", |_| {});
    let port = studio.port();
    let error = Port::take(None, port).map(|_| ()).unwrap_err();
    assert!(matches!(error, StudioError::PortTaken { .. }), "{error}");
    assert_eq!(error.to_string(), format!("port {port} of 127.0.0.1 is taken"));
    let missing = studio.root.join("missing");
    let error = Server::new(Port::take(None, 0).unwrap(), missing, Device::cpu(Some(1)).unwrap())
        .map(|_| ())
        .unwrap_err();
    assert!(matches!(error, StudioError::NoFolder { .. }), "{error}");
    assert!(Port::take(Some("no-such-host.invalid".into()), 0).is_err());
}
