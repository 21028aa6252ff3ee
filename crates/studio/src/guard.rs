//! Who may talk to the studio: pages that it served itself, opened with its token.
//!
//! Browsers send requests of any page to loopback addresses. Against them stand the checks of Host (DNS rebinding), Origin and Sec-Fetch-Site (requests of other
//! pages, also WebSockets, which no CORS protects), and a token, which also keeps other users of the machine out.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::Studio;
use crate::problem::Problem;

/// On every answer: the page uses nothing but its own files, and nobody embeds it.
const HEADERS: [(HeaderName, &str); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; media-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

/// The secret in the printed address, which a browser exchanges for a cookie.
pub struct Token {
    text: String,
    /// Browsers send the cookies of one port to the others: the name tells them apart.
    cookie: String,
}

impl Token {
    /// 128 random bits.
    pub fn random(port: u16) -> Result<Token, getrandom::Error> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes)?;
        let text = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Token { text, cookie: format!("iris-studio-{port}") })
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// Compares in a time that says nothing about where the two differ.
    fn is(&self, other: &str) -> bool {
        let (mine, other) = (self.text.as_bytes(), other.as_bytes());
        mine.len() == other.len() && mine.iter().zip(other).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
    }

    fn is_in_cookies(&self, headers: &HeaderMap) -> bool {
        let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut pairs =
            cookies.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
        pairs.any(|(name, value)| name == self.cookie && self.is(value))
    }
}

/// Lets a request pass if it comes from the studio's own page.
pub async fn check(State(studio): State<Arc<Studio>>, request: Request, next: Next) -> Response {
    let accepted = request.headers().get(header::ACCEPT).and_then(|kinds| kinds.to_str().ok());
    let for_people = accepted.is_some_and(|kinds| kinds.contains("text/html"));
    let mut answer = match admit(&studio, &request) {
        Ok(None) => next.run(request).await,
        Ok(Some(redirect)) => redirect,
        Err(problem) if for_people => (problem.status, problem.message).into_response(),
        Err(problem) => problem.into_response(),
    };
    for (name, value) in HEADERS {
        answer.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    answer
}

/// A request with the token in its address is answered with the cookie.
fn admit(studio: &Studio, request: &Request) -> Result<Option<Response>, Problem> {
    let forbidden = |message| Problem::new(StatusCode::FORBIDDEN, message);
    let headers = request.headers();
    let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let host = text(header::HOST).unwrap_or_default();
    if headers.get_all(header::HOST).iter().count() != 1 || !is_known(host, studio.host.as_deref()) {
        return Err(forbidden("the request names another host than this one"));
    }
    let origin = text(header::ORIGIN);
    let own = |origin: &str| origin.strip_prefix("http://").or(origin.strip_prefix("https://")) == Some(host);
    if origin.is_some_and(|origin| !own(origin)) {
        return Err(forbidden("the request comes from another page"));
    }
    let changes = !matches!(*request.method(), Method::GET | Method::HEAD);
    if (changes || headers.contains_key(header::UPGRADE)) && origin.is_none() {
        return Err(forbidden("the request does not say which page it comes from"));
    }
    let path = request.uri().path();
    let site = text(HeaderName::from_static("sec-fetch-site")).unwrap_or("none");
    if path != "/" && !matches!(site, "same-origin" | "none") {
        return Err(forbidden("the request comes from another page"));
    }
    let query = request.uri().query().unwrap_or_default();
    let given = query.split('&').find_map(|pair| pair.strip_prefix("token="));
    if path == "/" && given.is_some_and(|token| studio.token.is(token)) {
        return Ok(Some(exchange(&studio.token)));
    }
    match studio.token.is_in_cookies(headers) {
        true => Ok(None),
        false => Err(Problem::new(
            StatusCode::UNAUTHORIZED,
            "this page needs the token of its studio: open the address that the studio printed when it was started",
        )),
    }
}

/// Sends the browser to the page without the token, which then is in no history and no bookmark.
fn exchange(token: &Token) -> Response {
    let cookie = format!("{}={}; HttpOnly; SameSite=Strict; Path=/", token.cookie, token.text);
    (StatusCode::SEE_OTHER, [(header::LOCATION, "/".to_string()), (header::SET_COOKIE, cookie)])
        .into_response()
}

/// Whether a Host header names this machine: loopback, or what the user chose to listen on.
fn is_known(host: &str, named: Option<&str>) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    // Brackets belong around an IPv6 address, and only there.
    let name = match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        Some(inside) if inside.parse::<Ipv6Addr>().is_ok() => inside,
        _ => name,
    };
    let name = name.to_ascii_lowercase();
    let address = name.parse::<IpAddr>().ok();
    let listens_everywhere =
        || named.and_then(|named| named.parse::<IpAddr>().ok()).is_some_and(|named| named.is_unspecified());
    name == "localhost"
        || name == "127.0.0.1"
        || name == "::1"
        || named.is_some_and(|named| named.eq_ignore_ascii_case(&name))
        // DNS rebinding needs a name.
        || (address.is_some() && listens_everywhere())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_loopback_or_what_the_user_named() {
        for (host, named, known) in [
            ("localhost:4747", None, true),
            ("[::1]:4747", None, true),
            // No browser leaves the brackets out.
            ("::1", None, false),
            ("192.168.0.7:4747", None, false),
            ("mybox:4747", Some("mybox"), true),
            ("MyBox", Some("mybox"), true),
            ("other:4747", Some("mybox"), false),
            ("192.168.0.7:4747", Some("192.168.0.7"), true),
            ("192.168.0.8:4747", Some("192.168.0.7"), false),
            // Whoever listens everywhere may be addressed by number, but not by any name.
            ("192.168.0.7:4747", Some("0.0.0.0"), true),
            ("[fe80::1]:4747", Some("::"), true),
            ("evil.example:4747", Some("0.0.0.0"), false),
            ("localhost:", None, false),
            (":4747", None, false),
        ] {
            assert_eq!(is_known(host, named), known, "{host} for {named:?}");
        }
    }
}
