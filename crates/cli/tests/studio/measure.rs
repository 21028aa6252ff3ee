//! How fast Play is. Measures time, so it runs only when asked for: `scripts/studio-measure`.

use std::path::Path;
use std::time::{Duration, Instant};

use agent::{Agent, AgentConfig};
use serde_json::json;

use crate::common::Scratch;
use crate::player::id;
use crate::playing::STEP;
use crate::server::{Studio, runs};
use crate::webdriver::{Browser, key};

const SECONDS: u64 = 10;
const KEYS: usize = 100;

#[test]
#[ignore = "measures time"]
fn measure() {
    let scratch = Scratch::new("studio-measure");
    let device = engine::Device::cpu(Some(1)).unwrap();
    // Of the paper's size, with fresh parameters: that takes as long as trained ones.
    let paper = Agent::new(&device, &AgentConfig { actions: 3, ..AgentConfig::default() }, 0).unwrap();
    std::fs::create_dir_all(scratch.0.join("paper")).unwrap();
    paper.save(None, &scratch.0.join("paper")).unwrap();
    println!("| what | measured |\n| --- | --- |");
    println!("| agent of the preset `tiny` | {} |", steps_per_second(runs(), "endless"));
    println!("| paper-size agent | {} |", steps_per_second(&scratch.0, "paper"));
    if let Some(browser) = Browser::start() {
        println!("| key to picture, the same agent | {} |", key_to_picture(&browser));
    }
}

/// Steps of game, reconstruction and dream by themselves, as fast as they go.
fn steps_per_second(folder: &Path, name: &str) -> String {
    let studio = Studio::start(folder);
    let mut page = studio.page();
    let start = json!({ "type": "start", "run": id(&studio, name), "env": "arcade/catch" });
    page.start(start);
    page.say(json!({
        "type": "settings", "rate": 240, "auto": true, "policy": true, "eyes": "game", "temperature": 0.5, "horizon": 0,
    }));
    let (since, first) = (Instant::now(), page.step().number());
    loop {
        let last = page.step().number();
        if since.elapsed() > Duration::from_secs(SECONDS) {
            let rate = (last - first) as f64 / since.elapsed().as_secs_f64();
            return format!("{rate:.1} steps/s, {} MiB", studio.memory() >> 20);
        }
    }
}

/// From the event of a key to the drawing of the dreamt frame that it led to, while the page waits for keys.
fn key_to_picture(browser: &Browser) -> String {
    let studio = Studio::start(runs());
    browser.open(&studio.url);
    let hash = format!("#/play?run={}&env=arcade%2Fcatch", id(&studio, "endless"));
    browser.run_with("location.hash = arguments[0]", json!([hash]));
    browser.wait(&format!("document.querySelector('.panel.dream canvas') && {STEP} === 0"));
    browser.run(
        "window.times = []; let pressed = null;
         document.addEventListener('keydown', (event) => { pressed = event.timeStamp; }, true);
         const draw = CanvasRenderingContext2D.prototype.putImageData;
         CanvasRenderingContext2D.prototype.putImageData = function (...image) {
           draw.apply(this, image);
           if (pressed == null || !this.canvas.closest('.dream')) return;
           window.times.push(performance.now() - pressed);
           pressed = null;
         };",
    );
    for i in 1..=KEYS {
        browser.press(&[if i % 2 == 0 { key::LEFT } else { key::RIGHT }]);
        browser.wait(&format!("window.times.length === {i}"));
    }
    let mut times: Vec<f64> = serde_json::from_value(browser.run("return window.times")).unwrap();
    times.sort_by(f64::total_cmp);
    format!(
        "median {:.0} ms, 95% within {:.0} ms, longest {:.0} ms",
        times[KEYS / 2],
        times[KEYS * 95 / 100],
        times[KEYS - 1]
    )
}
