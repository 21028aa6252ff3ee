//! Runs, Curves, Compare and About in a real browser.

use std::process::{Child, Stdio};

use serde_json::json;

use crate::common::{SMALL, Scratch, iris};
use crate::player::id;
use crate::server::{Studio, runs};
use crate::webdriver::{Browser, key};

/// A browser with the studio open, if there is one.
fn open() -> Option<(Studio, Browser)> {
    let browser = Browser::start()?;
    let studio = Studio::start(runs());
    browser.open(&studio.url);
    Some((studio, browser))
}

/// Nothing went wrong that only the console tells.
fn quiet(browser: &Browser) {
    assert_eq!(browser.console(), [""; 0]);
}

const NAMES: &str =
    "[...document.querySelectorAll('.runs tbody td.name > a')].map((link) => link.textContent)";

/// Waits until the table lists these runs, in this order.
fn listed(browser: &Browser, names: &[&str]) {
    browser.wait(&format!("JSON.stringify({NAMES}) === {}", json!(json!(names).to_string())));
}

#[test]
fn runs_are_sorted_filtered_and_grouped() {
    let Some((_studio, browser)) = open() else { return };
    browser.wait("document.querySelectorAll('.runs tbody tr').length === 4");
    assert!(!browser.url().contains("token"), "{}", browser.url());
    let sorted = |key: &str| browser.click(&format!("th[data-key={key}] button"));
    sorted("name");
    listed(&browser, &["endless", "one", "three", "two"]);
    assert_eq!(browser.run("return document.querySelector('th[data-key=name]').ariaSort"), "ascending");
    sorted("name");
    listed(&browser, &["two", "three", "one", "endless"]);
    // An agent without a run has no seed: it comes last in either direction.
    sorted("seed");
    listed(&browser, &["three", "one", "two", "endless"]);
    sorted("seed");
    listed(&browser, &["two", "one", "three", "endless"]);

    browser.fill("#filter", "catch finished");
    listed(&browser, &["two", "one"]);
    // The address holds the view.
    browser.wait("location.hash.includes('filter=catch')");
    browser.open(&browser.url());
    browser.run("location.reload()");
    listed(&browser, &["two", "one"]);
    browser.fill("#filter", "no such run");
    browser.wait("document.querySelector('#screen').innerText.includes('No run fits the filter')");
    browser.fill("#filter", "x");
    browser.press(&[key::BACKSPACE]);
    browser.wait("document.querySelectorAll('.runs tbody td.name').length === 4");

    browser.choose("#group", "settings");
    browser.wait("document.querySelectorAll('.group-row').length === 3");
    let groups = browser.text(".runs");
    assert!(groups.contains("arcade/catch · 2 runs, mean score"), "{groups}");
    browser.choose("#group", "game");
    browser.wait("document.querySelector('.runs').innerText.includes('arcade/pong · 1 run')");

    // Chosen runs go on to the other screens.
    for name in ["one", "two"] {
        browser.click(&format!("input[aria-label='Choose {name}']"));
    }
    let two =
        "[...document.querySelectorAll('.tools a')].some((link) => link.textContent === 'Compare of 2')";
    browser.wait(two);
    browser.run("location.reload()");
    browser.wait(two);
    browser.click(".tools a[href^='#/compare']");
    browser.wait("document.querySelector('h1').textContent === 'Compare'");
    quiet(&browser);
}

#[test]
fn comparisons_show_what_differs() {
    let Some((studio, browser)) = open() else { return };
    let ids = ["one", "two", "three"].map(|name| id(&studio, name)).join(",");
    browser.run_with("location.hash = arguments[0]", json!([format!("#/compare?runs={ids}")]));
    browser.wait("document.querySelectorAll('table.settings tbody tr').length");
    let settings = browser.run(
        "return [...document.querySelectorAll('table.settings tr')].map((row) => [...row.cells].map((cell) => cell.innerText.trim()))",
    );
    assert_eq!(
        settings,
        json!([
            ["Setting", "one", "two", "three"],
            ["actor_critic.schedule.final_learning_rate", "0", "0", "0.0002"],
            ["env", "arcade/catch", "arcade/catch", "arcade/pong"],
            ["seed", "1", "2", "0"],
        ])
    );
    // Two seeds of a game have an interval, one has none.
    let scores = browser.text("#screen table");
    assert!(scores.contains(" to ") && scores.contains("one seed"), "{scores}");
    browser.wait("document.querySelector('.plot canvas')");
    browser.click("#screen .check input");
    browser.wait("document.querySelectorAll('table.settings tbody tr').length > 30");
    // On a phone words stay whole, and the navigation shows where one is.
    browser.resize(390, 844, true);
    browser.run("location.hash = '#/about'");
    browser.wait("document.querySelector('.facts')");
    browser.run_with("location.hash = arguments[0]", json!([format!("#/compare?runs={ids}")]));
    browser.wait("document.querySelectorAll('table.settings tbody tr').length");
    let lines = "[...document.querySelectorAll('.scores th, .settings td')].map((cell) => cell.getBoundingClientRect().height)";
    let highest = browser.run(&format!("return Math.max(...{lines})")).as_f64().unwrap();
    assert!(highest < 150.0, "{highest}");
    let seen = "const [tab, nav] = ['nav [aria-current]', 'nav'].map((what) => document.querySelector(what).getBoundingClientRect()); return tab.left >= nav.left && tab.right <= nav.right";
    assert_eq!(browser.run(seen), true);
    quiet(&browser);
}

/// Somebody goes on while a screen still waits for the server: what it makes of the answer is nowhere to be seen.
#[test]
fn a_screen_that_is_left_while_it_loads_stays_away() {
    let Some((_studio, browser)) = open() else { return };
    browser.wait("document.querySelectorAll('.runs tbody tr').length === 4");
    browser.run(
        "const { fetch } = window;
         window.fetch = (path) => path !== 'api/games' ? fetch(path) : new Promise((give) => {
           window.answer = () => fetch(path).then((answer) => { give(answer); return new Promise((seen) => setTimeout(seen, 100)); });
         });
         location.hash = '#/teach';",
    );
    browser.wait("window.answer");
    browser.run("location.hash = '#/about'");
    browser.wait("document.querySelector('.facts')");
    browser.run("return window.answer()");
    let left = "[document.querySelectorAll('#screen > *').length, document.querySelectorAll('#teach-game').length, location.hash]";
    assert_eq!(browser.run(&format!("return {left}")), json!([1, 0, "#/about"]));
    quiet(&browser);
}

#[test]
fn about_describes_program_and_machine() {
    let Some((_studio, browser)) = open() else { return };
    browser.click("nav a[href='#/about']");
    browser.wait("document.querySelector('.facts')");
    let facts = browser.text(".facts");
    assert!(facts.contains(env!("CARGO_PKG_VERSION")) && facts.contains("arcade/catch"), "{facts}");
    quiet(&browser);
}

#[test]
fn curves_have_bands_tables_and_csv() {
    let Some((studio, browser)) = open() else { return };
    let ids = ["one", "two", "three"].map(|name| id(&studio, name)).join(",");
    browser.run_with(
        "location.hash = arguments[0]",
        json!([format!(
            "#/curves?runs={ids}&metrics=evaluation%2Freturn&table=evaluation%2Freturn&band=range"
        )]),
    );
    let rows = "[...document.querySelectorAll('.chart:not([hidden]) .numbers tr')].map((row) => [...row.cells].map((cell) => cell.innerText.trim()))";
    browser.wait(&format!("{rows}.length > 2"));
    browser.wait("document.querySelector('.chart:not([hidden]) canvas')");
    let rows = browser.run(&format!("return {rows}"));
    // Mean and band of the two seeds, and the run of the other game; evaluations after epochs 2 and 4.
    assert_eq!(rows[0].as_array().unwrap().len(), 5, "{rows}");
    assert_eq!((&rows[1][0], &rows[2][0]), (&json!("4"), &json!("2")));
    // What is shown, as a file.
    let csv = browser.run("return fetch(document.querySelector('.chart:not([hidden]) a[download]').href).then((answer) => answer.text())");
    let csv = csv.as_str().unwrap();
    assert!(
        csv.starts_with("epoch,") && csv.lines().count() == 3 && csv.lines().next().unwrap().contains("one"),
        "{csv}"
    );
    // Settings are in the address, and survive a reload.
    browser.run("[...document.querySelectorAll('.tools .check')].find((label) => label.textContent.includes('by itself')).click()");
    browser.wait("location.hash.includes('single=1')");
    browser.wait("document.querySelector('.chart:not([hidden]) .numbers').innerText.includes('three')");
    browser.run("location.reload()");
    browser.wait("document.querySelector('.chart:not([hidden]) .numbers')?.innerText.includes('three')");
    quiet(&browser);
}

/// A run that trains until it is dropped.
struct Training(Child);

impl Drop for Training {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn curves_grow_while_a_run_trains() {
    let Some(browser) = Browser::start() else { return };
    let scratch = Scratch::new("studio-live");
    let studio = Studio::start(&scratch.0);
    browser.open(&studio.url);
    // The page is there before the run is.
    browser.wait("document.querySelector('#screen').innerText.includes('No runs yet')");
    let mut command = iris();
    command.arg("train").args(SMALL).args(["epochs=100000", "--out"]).arg(scratch.0.join("live"));
    let training = Training(command.stderr(Stdio::null()).spawn().unwrap());
    browser.wait("document.querySelector('.state.running')");
    let metric = "collection%2Fsteps";
    let hash = format!("#/curves?metrics={metric}&table={metric}");
    browser.run_with("location.hash = arguments[0]", json!([hash]));
    let points = "document.querySelectorAll('.chart:not([hidden]) .numbers tbody tr').length";
    browser.wait(&format!("{points} >= 4 && document.querySelector('.chart:not([hidden]) .u-over')"));
    browser.drag(".chart:not([hidden]) .u-over", 0.2, 0.8);
    let zoom = browser.wait("new URLSearchParams(location.hash.split('?')[1]).get('zoom')");
    browser.run("document.querySelector('.chart:not([hidden]) button').focus(); window.focused = document.activeElement");
    // Without a touch of the page; focus and what is enlarged stay.
    let seen = browser.wait(points).as_u64().unwrap();
    browser.wait(&format!("{points} >= {}", seen + 2));
    assert_eq!(browser.run("return new URLSearchParams(location.hash.split('?')[1]).get('zoom')"), zoom);
    assert_eq!(browser.run("return document.activeElement === window.focused"), true);
    // The studio ends, the run does not notice.
    drop(studio);
    let epochs = || std::fs::read_to_string(scratch.0.join("live/metrics.jsonl")).unwrap().lines().count();
    let before = epochs();
    while epochs() < before + 2 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    drop(training);
}

/// By keyboard alone: from the address to the curves of two runs.
#[test]
fn runs_are_chosen_by_keyboard() {
    let Some((_studio, browser)) = open() else { return };
    browser.wait("document.querySelectorAll('.runs tbody tr').length === 4");
    let tab_to = |what: &str| {
        for _ in 0..60 {
            browser.press(&[key::TAB]);
            if browser.run_with("return document.activeElement.matches(arguments[0])", json!([what])) == true
            {
                return;
            }
        }
        panic!("Tab does not lead to {what}");
    };
    browser.press(&[key::TAB]);
    assert_eq!(browser.run("return document.activeElement.className"), "skip");
    browser.press(&[key::ENTER]);
    browser.wait("document.activeElement.id === 'main'");
    tab_to("#filter");
    browser.press(&['c', 'a', 't', 'c', 'h', ' ', 's', 'e', 'e', 'd']);
    browser.wait("document.querySelectorAll('.runs tbody tr').length === 2");
    for name in ["one", "two"] {
        tab_to(&format!("input[aria-label='Choose {name}']"));
        browser.press(&[key::SPACE]);
    }
    for _ in 0..40 {
        browser.chord(&[key::SHIFT, key::TAB]);
        if browser.run("return document.activeElement.matches(\".tools a[href^='#/curves']\")") == true {
            break;
        }
    }
    browser.press(&[key::ENTER]);
    browser.wait(
        "document.querySelector('h1').textContent === 'Curves' && document.querySelector('.chart canvas')",
    );
    quiet(&browser);
}
