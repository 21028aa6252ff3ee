//! A real Chromium, driven through chromedriver: the W3C's WebDriver protocol, spoken directly.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::http::{PATIENCE, request};

/// Between two looks at a condition.
const PAUSE: Duration = Duration::from_millis(20);

/// The name WebDriver has for a reference to an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// Keys by WebDriver's code points.
pub mod key {
    pub const BACKSPACE: char = '\u{e003}';
    pub const TAB: char = '\u{e004}';
    pub const ENTER: char = '\u{e006}';
    pub const SHIFT: char = '\u{e008}';
    pub const SPACE: char = ' ';
    pub const LEFT: char = '\u{e012}';
    pub const UP: char = '\u{e013}';
    pub const RIGHT: char = '\u{e014}';
}

/// One browser at a time: each takes as much of a small machine as all else together.
static ONE: Mutex<()> = Mutex::new(());

pub struct Browser {
    driver: Child,
    port: u16,
    session: String,
    profile: PathBuf,
    _one: MutexGuard<'static, ()>,
}

impl Browser {
    /// A fresh browser, or none where there is no chromedriver: the test then says so and ends.
    pub fn start() -> Option<Browser> {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut command = Command::new("chromedriver");
        command.arg("--port=0").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut driver = match command.spawn() {
            Ok(driver) => driver,
            Err(missing) => {
                assert!(std::env::var_os("IRIS_BROWSER").is_none(), "chromedriver: {missing}");
                println!("SKIPPED: there is no chromedriver ({missing}); scripts/chromium installs it");
                return None;
            }
        };
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines().map_while(Result::ok);
        let started = "started successfully on port ";
        let port =
            lines.find_map(|line| Some(line.split_once(started)?.1.trim_end_matches('.').parse().unwrap()));
        // It must not wait for somebody to read what else it says.
        std::thread::spawn(move || lines.for_each(drop));
        let profile =
            std::env::temp_dir().join(format!("iris-browser-{}-{}", std::process::id(), driver.id()));
        let mut browser = Browser { driver, port: port.unwrap(), session: String::new(), profile, _one: one };
        let flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--force-color-profile=srgb",
            "--hide-scrollbars",
            "--window-size=1280,800",
            &format!("--user-data-dir={}", browser.profile.display()),
        ];
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": {"args": flags},
            "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let session = browser.ask("POST", "/session", &wanted);
        browser.session = format!("/session/{}", session["sessionId"].as_str().unwrap());
        Some(browser)
    }

    /// One request to the driver: its value, or what it says went wrong.
    fn try_ask(&self, method: &str, path: &str, body: &Value) -> Result<Value, String> {
        let body = if method == "POST" { body.to_string() } else { String::new() };
        let host = format!("127.0.0.1:{}", self.port);
        let length = body.len().to_string();
        let headers = [("Host", &*host), ("Content-Length", &length), ("Connection", "close")];
        let answer = request(self.port, &format!("{method} {path}"), &headers, body.as_bytes());
        let value = answer.json()["value"].take();
        if answer.status == 200 { Ok(value) } else { Err(format!("{method} {path}: {value}")) }
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        self.try_ask(method, path, body).unwrap_or_else(|problem| panic!("{problem}"))
    }

    fn post(&self, path: &str, body: Value) -> Value {
        self.ask("POST", &format!("{}{path}", self.session), &body)
    }

    fn get(&self, path: &str) -> Value {
        self.ask("GET", &format!("{}{path}", self.session), &Value::Null)
    }

    /// Opens a page and waits until it is loaded.
    pub fn open(&self, url: &str) {
        self.post("/url", json!({ "url": url }));
    }

    pub fn url(&self) -> String {
        self.get("/url").as_str().unwrap().to_string()
    }

    /// What a function with this body returns in the page; a promise is waited for.
    pub fn run(&self, body: &str) -> Value {
        self.run_with(body, json!([]))
    }

    /// The same, with `arguments`.
    pub fn run_with(&self, body: &str, arguments: Value) -> Value {
        self.post("/execute/sync", json!({ "script": body, "args": arguments }))
    }

    /// Waits until an expression is true in the page, and returns it.
    pub fn wait(&self, condition: &str) -> Value {
        let since = Instant::now();
        let path = format!("{}/execute/sync", self.session);
        let script = json!({ "script": format!("return ({condition});"), "args": [] });
        loop {
            // A page that is being replaced has no answer for a moment.
            let value = self.try_ask("POST", &path, &script);
            if let Ok(value) = &value
                && !matches!(value, Value::Null | Value::Bool(false))
                && value != 0
                && value != ""
            {
                return value.clone();
            }
            if since.elapsed() > PATIENCE / 3 {
                panic!(
                    "waited in vain for {condition}: {value:?}\n{}\n{}",
                    self.text("body"),
                    self.console().join("\n")
                );
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Waits for an element and returns WebDriver's name of it.
    pub fn find(&self, selector: &str) -> String {
        self.wait(&format!("!!document.querySelector({})", json!(selector)));
        let found = self.post("/element", json!({ "using": "css selector", "value": selector }));
        found[ELEMENT].as_str().unwrap().to_string()
    }

    /// Clicks with the mouse, after scrolling there.
    pub fn click(&self, selector: &str) {
        let element = self.find(selector);
        self.post(&format!("/element/{element}/click"), json!({}));
    }

    /// Empties a field and types into it.
    pub fn fill(&self, selector: &str, text: &str) {
        let element = self.find(selector);
        self.post(&format!("/element/{element}/clear"), json!({}));
        self.post(&format!("/element/{element}/value"), json!({ "text": text }));
    }

    /// Chooses an option of a list by its value, as a person does: with events.
    pub fn choose(&self, selector: &str, value: &str) {
        self.wait(&format!(
            "!!document.querySelector({} + {})",
            json!(selector),
            json!(format!(" option[value={value:?}]"))
        ));
        self.run_with(
            "const list = document.querySelector(arguments[0]); list.value = arguments[1];
             for (const kind of ['input', 'change']) list.dispatchEvent(new Event(kind, { bubbles: true }));",
            json!([selector, value]),
        );
    }

    pub fn text(&self, selector: &str) -> String {
        let script = "return document.querySelector(arguments[0])?.innerText ?? '';";
        self.run_with(script, json!([selector])).as_str().unwrap().to_string()
    }

    /// Presses and releases keys, one after the other.
    pub fn press(&self, keys: &[char]) {
        let one = |key: &char| [("keyDown", *key), ("keyUp", *key)];
        self.key_actions(keys.iter().flat_map(one));
    }

    /// Presses keys together.
    pub fn chord(&self, keys: &[char]) {
        let (down, up) =
            (keys.iter().map(|key| ("keyDown", *key)), keys.iter().rev().map(|key| ("keyUp", *key)));
        self.key_actions(down.chain(up));
    }

    pub fn hold(&self, key: char) {
        self.key_actions([("keyDown", key)]);
    }

    pub fn let_go(&self, key: char) {
        self.key_actions([("keyUp", key)]);
    }

    fn key_actions(&self, actions: impl IntoIterator<Item = (&'static str, char)>) {
        let actions: Vec<Value> =
            actions.into_iter().map(|(kind, key)| json!({ "type": kind, "value": key })).collect();
        self.post(
            "/actions",
            json!({ "actions": [{ "type": "key", "id": "keyboard", "actions": actions }] }),
        );
    }

    /// Drags the mouse across an element, from one share of its width to another.
    pub fn drag(&self, selector: &str, from: f64, to: f64) {
        let element = self.find(selector);
        let width = self.run_with(
            "const element = document.querySelector(arguments[0]);
             element.scrollIntoView({ block: 'center' });
             return element.clientWidth;",
            json!([selector]),
        );
        let to_share = |share: f64| {
            let x = ((share - 0.5) * width.as_f64().unwrap()) as i64;
            json!({ "type": "pointerMove", "origin": { ELEMENT: element }, "x": x, "y": 0, "duration": 50 })
        };
        let actions = json!([to_share(from), { "type": "pointerDown", "button": 0 }, to_share(to), { "type": "pointerUp", "button": 0 }]);
        self.post(
            "/actions",
            json!({ "actions": [{ "type": "pointer", "id": "mouse", "actions": actions }] }),
        );
    }

    /// A command of the DevTools protocol.
    fn devtools(&self, command: &str, parameters: Value) -> Value {
        self.post("/goog/cdp/execute", json!({ "cmd": command, "params": parameters }))
    }

    /// Light or dark, with or without motion, as the person's system is set.
    pub fn prefer(&self, scheme: &str, motion: &str) {
        let features = json!([
            { "name": "prefers-color-scheme", "value": scheme },
            { "name": "prefers-reduced-motion", "value": motion },
        ]);
        self.devtools("Emulation.setEmulatedMedia", json!({ "features": features }));
    }

    /// Size of the page in CSS pixels; a phone has a touch screen.
    pub fn resize(&self, width: u32, height: u32, phone: bool) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone });
        self.devtools("Emulation.setDeviceMetricsOverride", size);
        self.devtools("Emulation.setTouchEmulationEnabled", json!({ "enabled": phone }));
    }

    /// Where downloads go.
    pub fn download_to(&self, folder: &std::path::Path) {
        self.devtools("Browser.setDownloadBehavior", json!({ "behavior": "allow", "downloadPath": folder }));
    }

    /// What is visible, as a PNG.
    pub fn screenshot(&self) -> Vec<u8> {
        decode_base64(self.get("/screenshot").as_str().unwrap())
    }

    /// Errors and warnings of the page's console since it was last asked.
    pub fn console(&self) -> Vec<String> {
        let entries = self.post("/se/log", json!({ "type": "browser" }));
        let worth = |entry: &&Value| entry["level"] == "SEVERE" || entry["level"] == "WARNING";
        let texts =
            entries.as_array().unwrap().iter().filter(worth).map(|entry| entry["message"].to_string());
        // Tests read canvases more often than any page does.
        texts.filter(|text| !text.contains("willReadFrequently")).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Ends the browser; the driver alone would leave it behind.
        if !self.session.is_empty() {
            let _ = self.try_ask("DELETE", &self.session, &Value::Null);
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
        let _ = std::fs::remove_dir_all(&self.profile);
    }
}

pub fn decode_base64(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => panic!("{byte} in base64"),
    };
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b'=').map(digit).collect();
    let group = |group: &[u8]| {
        let bits =
            group.iter().fold(0u32, |bits, digit| bits << 6 | u32::from(*digit)) << (6 * (4 - group.len()));
        bits.to_be_bytes()[1..group.len()].to_vec()
    };
    digits.chunks(4).flat_map(group).collect()
}
