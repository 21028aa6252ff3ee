//! The studio as a person starts it, with tiny runs to show.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::OnceLock;

use crate::common::{self, iris, stderr};
use crate::http::{Answer, request};
use crate::page::Page;

/// `iris studio`, until it is dropped.
pub struct Studio {
    child: Child,
    /// The printed address, token included.
    pub url: String,
    pub port: u16,
    pub token: String,
}

impl Studio {
    pub fn start(runs: &Path) -> Studio {
        let mut command = iris();
        command.arg("studio").arg(runs).args(["--port", "0"]);
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let url = said.find_map(|line| Some(line[line.find("http://")?..].trim().to_string())).unwrap();
        std::thread::spawn(move || said.for_each(drop));
        let errors = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        std::thread::spawn(move || errors.for_each(|line| println!("studio: {line}")));
        Studio::at(child, url)
    }

    /// `iris train --studio`, which says on stderr where it is; the rest of that goes to `said`.
    pub fn train(run: &Path, arguments: &[&str], said: std::sync::mpsc::Sender<String>) -> Studio {
        let mut command = iris();
        command.args(["train", "--studio"]).args(common::SMALL).args(arguments).arg("--out").arg(run);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let url = lines.find_map(|line| Some(line.split_once("watch it in a browser: ")?.1.to_string()));
        std::thread::spawn(move || lines.for_each(|line| drop(said.send(line))));
        Studio::at(child, url.unwrap())
    }

    fn at(child: Child, url: String) -> Studio {
        let (address, token) = url.split_once("/?token=").unwrap();
        let (port, token) = (address.rsplit_once(':').unwrap().1.parse().unwrap(), token.to_string());
        Studio { child, url, port, token }
    }

    /// Sends a signal, as Ctrl-C does.
    pub fn signal(&self, name: &str) {
        let sent =
            std::process::Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    /// Waits until the process ends by itself, and returns its status.
    pub fn status(&mut self) -> std::process::ExitStatus {
        self.child.wait().unwrap()
    }

    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The cookie that the token was exchanged for.
    pub fn cookie(&self) -> String {
        let line = format!("GET /?token={}", self.token);
        let answer = request(self.port, &line, &[("Host", &self.host()), ("Connection", "close")], b"");
        assert_eq!(answer.status, 303, "{answer:?}");
        answer.header("set-cookie").unwrap().split(';').next().unwrap().to_string()
    }

    /// What a page of the studio gets.
    pub fn get(&self, path: &str) -> Answer {
        let headers = [("Host", &*self.host()), ("Cookie", &self.cookie()), ("Connection", "close")];
        request(self.port, &format!("GET {path}"), &headers, b"")
    }

    /// A page that plays.
    pub fn page(&self) -> Page {
        Page::open(self.port, &self.cookie())
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Bytes of memory the process holds at present.
    pub fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() << 10
    }
}

impl Drop for Studio {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Three tiny runs, trained once for all tests: `one` and `two` differ in the seed, `three` in the game as well. And `endless`, the agent of `one` with
/// dreams that practically never end, so that they can be compared for long.
pub fn runs() -> &'static Path {
    static RUNS: OnceLock<PathBuf> = OnceLock::new();
    RUNS.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("studio");
        let _ = std::fs::remove_dir_all(&folder);
        for (name, extra) in
            [("one", ["--seed", "1"]), ("two", ["--seed", "2"]), ("three", ["--env", "arcade/pong"])]
        {
            let trained = common::train(&folder.join(name), &extra);
            assert!(trained.status.success(), "{}", stderr(&trained));
        }
        let device = engine::Device::cpu(Some(1)).unwrap();
        let (_, agent) = agent::train::Run::newest_agent(&device, &folder.join("one"), |_| {}).unwrap();
        agent.world_model.network.params.set("head_ends.head_module.2.bias", &[20.0, -20.0]).unwrap();
        std::fs::create_dir_all(folder.join("endless")).unwrap();
        agent.save(None, &folder.join("endless")).unwrap();
        folder
    })
}
