//! Look, Replay and Teach in a real browser.

use serde_json::json;

use crate::common::{SMALL, Scratch, iris, stderr};
use crate::player::{arrays, id};
use crate::server::{Studio, runs};
use crate::webdriver::{Browser, key};

fn open(hash: &str) -> Option<(Studio, Browser)> {
    let browser = Browser::start()?;
    let studio = Studio::start(runs());
    browser.open(&studio.url);
    browser.run_with("location.hash = arguments[0]", json!([hash.replace("ONE", &id(&studio, "one"))]));
    Some((studio, browser))
}

#[test]
fn look_shows_tokens_surprise_and_attention() {
    let Some((_studio, browser)) = open("#/look?run=ONE") else { return };
    // The first frame of an episode: nothing was expected of it.
    browser.wait("document.querySelectorAll('.token').length === 16");
    browser.wait("document.querySelector('.told-line').textContent.includes('first frame of the episode')");
    browser.run("document.activeElement.blur()");
    browser.press(&[key::RIGHT, key::RIGHT, key::RIGHT]);
    browser.wait("location.hash.includes('step=3') && document.querySelectorAll('.past').length === 4");
    browser.wait("document.querySelector('.told-line').textContent.includes('was expected with')");
    // Every weight of the chosen token is somewhere in the past: the shares of frames and actions sum to 1.
    let shares = "[...document.querySelectorAll('.past figcaption')].map((caption) => caption.innerText).join(' ').match(/[\\d.]+%/g).map(parseFloat)";
    let sum =
        browser.run(&format!("return {shares}.reduce((sum, share) => sum + share, 0)")).as_f64().unwrap();
    assert!((sum - 100.0).abs() < 5.0, "{sum}");
    // Another token by keyboard.
    browser.click(".token");
    browser.press(&[key::RIGHT]);
    browser.wait("document.activeElement.getAttribute('aria-label').startsWith('Row 1, column 2')");
    browser.wait("document.querySelector('.told-line').textContent.startsWith('Token 2:')");
    // The view is in the address, and comes back with it.
    browser.choose("#look-layer", "2");
    browser.choose("#look-head", "1");
    browser.wait("['token=2', 'layer=2', 'head=1', 'step=3'].every((part) => location.hash.includes(part))");
    browser.run("location.reload()");
    browser.wait("document.querySelectorAll('.past').length === 4 && document.querySelector('#look-layer').value === '2' && document.querySelector('#look-head').value === '1'");
    browser.wait("document.querySelector('.told-line').textContent.startsWith('Token 2:')");
    let error = browser.text(".panels");
    assert!(error.contains("mean") && error.contains("nats per token"), "{error}");
    browser.run("[...document.querySelectorAll('#screen button')].find((button) => button.textContent.startsWith('Count codes')).click()");
    browser.wait("/\\d+ of 32 codes are used/.test(document.querySelector('#screen').innerText)");
    assert_eq!(browser.console(), [""; 0]);
}

#[test]
fn replay_shows_everything_that_was_seen() {
    let Some((studio, browser)) = open("#/replay?run=ONE") else { return };
    let run = id(&studio, "one");
    browser.wait("document.querySelector('.told-line')?.textContent.startsWith('Action')");
    let listed = studio.get(&format!("/api/replay/{run}")).json();
    let options = browser.run("return document.querySelectorAll('#replay-episode option').length");
    assert_eq!(options, listed.as_array().unwrap().len());
    browser.run("document.activeElement.blur()");
    browser.press(&[key::RIGHT, key::RIGHT]);
    browser.wait("location.hash.includes('step=2')");
    // The canvas shows the recorded frame, to the bit.
    let episode = browser.run("return document.querySelector('#replay-episode').value");
    let path = format!("/api/replay/{run}/{}/frames?from=2&count=1", episode.as_str().unwrap());
    let shown = browser.run(
        "const canvas = document.querySelector('.panel canvas');
         const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
         return [...data.filter((_, i) => i % 4 < 3)];",
    );
    assert_eq!(shown, json!(studio.get(&path).body));
    // Marks lie under the slider.
    let sides = |what: &str| {
        browser.run(&format!("const {{ left, right }} = document.querySelector('{what}').getBoundingClientRect(); return [left, right]"))
    };
    assert_eq!(sides(".marks"), sides("#replay-step"));
    // The dream of the same stretch, and the steps that surprised the world model.
    let press = |text: &str| {
        let script = "[...document.querySelectorAll('#screen button')].find((button) => button.textContent.startsWith(arguments[0])).click()";
        browser.run_with(script, json!([text]));
    };
    press("Dream");
    browser.wait("document.querySelectorAll('.panel:not([hidden])').length === 3");
    press("Most surprising");
    browser.wait("document.querySelector('.told-line').textContent.includes('nats per token')");
    press("End");
    browser.wait("Number(document.querySelector('#replay-step').value) === Number(document.querySelector('#replay-step').max)");
    // Play and Look go on from the step that is shown.
    browser.click("a[href^='#/play?']");
    browser.wait("document.querySelector('h1').textContent === 'Play' && document.querySelector('.panel.dream canvas') && Number(document.querySelector('.told dd')?.textContent) === 0");
    assert_eq!(
        browser.run("return document.querySelector('.problem').hidden"),
        true,
        "{}",
        browser.text(".problem")
    );
    assert_eq!(browser.console(), [""; 0]);
}

/// An address that names a run or an episode which is gone says so, and shows another one.
#[test]
fn what_is_gone_is_said() {
    let Some((studio, browser)) = open("#/look?run=0123456789abcdef") else { return };
    let said = "(document.querySelector('.problem:not([hidden])')?.textContent ?? '')";
    browser.wait(&format!("{said}.startsWith('There is no run 0123456789abcdef')"));
    browser.wait("document.querySelectorAll('.token').length === 16");
    for screen in ["look", "replay"] {
        let hash = format!("#/{screen}?run={}&episode=nowhere&step=3", id(&studio, "one"));
        browser.run_with("location.hash = arguments[0]", json!([hash]));
        browser.wait(&format!("{said}.startsWith('There is no episode nowhere')"));
        browser.wait("location.hash.includes('step=0')");
    }
    // A step of no episode is one of the first.
    browser.run_with(
        "location.hash = arguments[0]",
        json!([format!("#/look?run={}&step=3", id(&studio, "one"))]),
    );
    browser.wait("location.hash.includes('episode=') && location.hash.includes('step=3')");
    // Look is for runs, Play for agents, too.
    browser.run("location.hash = '#/runs'");
    browser.wait("document.querySelector('a[aria-label=\"Play of endless\"]')");
    assert_eq!(
        browser.run("return document.querySelector('a[aria-label=\"Look of endless\"]')"),
        json!(null)
    );
    browser.run("location.hash = '#/play?run=0123456789abcdef'");
    browser.wait(&format!("{said}.startsWith('There is no run 0123456789abcdef')"));
    assert_eq!(browser.console(), [""; 0]);
}

/// Play by hand becomes a run.
#[test]
fn a_run_learns_from_what_was_taught() {
    let Some(browser) = Browser::start() else { return };
    let scratch = Scratch::new("studio-teach");
    let studio = Studio::start(&scratch.0);
    browser.open(&studio.url);
    browser.run("location.hash = '#/teach?env=arcade%2Fcatch'");
    let told = "(document.querySelector('.told-line')?.textContent ?? '')";
    browser.wait(&format!("{told}.includes('step 0')"));
    for step in 1..=30 {
        browser.press(&[if step % 2 == 0 { key::LEFT } else { key::RIGHT }]);
        browser.wait(&format!("/step {step},/.test({told}) || /Game 2/.test({told})"));
    }
    // Nothing that was played is lost without a question.
    browser
        .run("window.confirm = (text) => { window.asked = text; return false; }; location.hash = '#/about'");
    browser.wait("window.asked?.includes('not saved')");
    assert_eq!(
        browser.run("return [location.hash.split('&')[0], document.querySelector('h1').textContent]"),
        json!(["#/teach?env=arcade%2Fcatch", "Teach"])
    );
    browser.run("window.asked = null; document.activeElement.blur()");
    browser.press(&[key::ENTER]);
    browser.wait("window.asked");
    assert_eq!(browser.run(&format!("return {told}.includes('step 0')")), false);
    browser.run("[...document.querySelectorAll('#screen button')].find((button) => button.textContent.startsWith('Save')).click()");
    browser.wait("document.querySelector('.pane:not([hidden]) code')");
    let said = browser.text(".pane");
    let taught = scratch.0.join("taught/arcade/catch");
    assert!(said.contains(&format!("iris train --env arcade/catch --replay {}", taught.display())), "{said}");
    let episode = arrays(&std::fs::read(taught.join("0001.npz")).unwrap());
    assert_eq!(episode["observations.npy"].len() % (32 * 32 * 3), 0);
    browser.run("window.asked = null; location.hash = '#/about'");
    browser.wait("document.querySelector('.facts')");
    assert_eq!(browser.run("return window.asked"), json!(null));
    drop((studio, browser));
    let run = scratch.0.join("run");
    let mut command = iris();
    command.arg("train").args(SMALL).arg("--replay").arg(&taught).arg("--out").arg(&run);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
}
