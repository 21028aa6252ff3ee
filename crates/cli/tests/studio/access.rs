//! Everybody can use the studio: by keyboard alone, in light and dark, on a phone, and with axe-core finding nothing serious.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::server::{Studio, runs};
use crate::webdriver::{Browser, key};

/// The accessibility checker, where scripts/chromium could fetch it.
fn axe() -> Option<String> {
    let folder = std::env::var_os("IRIS_AXE").filter(|folder| !folder.is_empty());
    let Some(folder) = folder.map(PathBuf::from) else {
        println!(
            "SKIPPED: accessibility is not checked; IRIS_AXE=$(scripts/chromium) says where axe-core is"
        );
        return None;
    };
    Some(std::fs::read_to_string(folder.join("axe.min.js")).unwrap())
}

/// What axe-core finds on the page, of which it says that it is serious or worse.
fn serious(browser: &Browser, axe: &str) -> Vec<String> {
    if browser.run("return !window.axe") == true {
        browser.run(axe);
    }
    let found = browser.run(
        "return axe.run(document, { resultTypes: ['violations'] }).then(({ violations }) => violations.map(
           ({ id, impact, help, nodes }) => ({ id, impact, help, nodes: nodes.map((node) => node.html + ' ' + node.any.map((check) => check.message)) })))",
    );
    let worse = |entry: &&Value| matches!(entry["impact"].as_str(), Some("serious" | "critical"));
    found.as_array().unwrap().iter().filter(worse).map(|entry| format!("{entry:#}")).collect()
}

#[test]
fn axe_finds_nothing_serious_on_any_screen() {
    let Some(axe) = axe() else { return };
    let Some(browser) = Browser::start() else { return };
    let studio = Studio::start(runs());
    browser.open(&studio.url);
    let mut found = Vec::new();
    for (name, path) in screens(&studio, &browser) {
        for (scheme, width, phone) in [("light", 1280, false), ("dark", 1280, false), ("light", 390, true)] {
            browser.prefer(scheme, "reduce");
            browser.resize(width, 800, phone);
            show(&browser, &path);
            let problems = serious(&browser, &axe);
            found.extend(
                problems
                    .into_iter()
                    .map(|problem| format!("{name}, {scheme}, {width} pixels wide: {problem}")),
            );
            let wider = browser.run(
                "const { scrollWidth, clientWidth } = document.documentElement;
                 return scrollWidth <= clientWidth ? [] : [...document.querySelectorAll('main *')]
                   .filter((e) => e.getBoundingClientRect().right > clientWidth).map((e) => e.outerHTML.slice(0, 100))",
            );
            if wider != json!([]) {
                found.push(format!("{name} is wider than a screen of {width} pixels: {wider:#}"));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert_eq!(browser.console(), [""; 0]);
}

/// Every screen with something to show, by name and address.
fn screens(studio: &Studio, browser: &Browser) -> Vec<(String, String)> {
    browser.wait("document.querySelectorAll('nav a').length");
    let links = browser
        .run("return [...document.querySelectorAll('nav a')].map((link) => [link.textContent, link.hash])");
    let id = &studio.get("/api/runs").json()[0]["id"];
    let path = |link: &Value| format!("{}?run={}", link[1].as_str().unwrap(), id.as_str().unwrap());
    links.as_array().unwrap().iter().map(|link| (link[0].as_str().unwrap().to_string(), path(link))).collect()
}

/// Goes to a screen afresh and waits until it shows something.
fn show(browser: &Browser, path: &str) {
    browser.run_with("location.hash = '#/about'; return new Promise(requestAnimationFrame)", json!([]));
    browser.run_with("location.hash = arguments[0]", json!([path]));
    browser.wait("document.querySelector('#screen > * > *') && !document.querySelector('[aria-busy=true]')");
}

/// Tab leads to every control of every screen and shows where it is.
#[test]
fn every_control_is_reached_by_keyboard() {
    let Some(browser) = Browser::start() else { return };
    let studio = Studio::start(runs());
    browser.open(&studio.url);
    for (name, path) in screens(&studio, &browser) {
        show(&browser, &path);
        browser.run(
            "window.controls = () => [...document.querySelectorAll('a[href], button, input, select, textarea, summary, [tabindex=\"0\"]')]
               .filter((e) => !e.disabled && e.tabIndex >= 0 && e.checkVisibility({ visibilityProperty: true }));
             window.reached = new Set(); window.unseen = [];
             document.addEventListener('focusin', ({ target }) => {
               window.reached.add(target);
               const style = getComputedStyle(target);
               if (style.outlineStyle === 'none' && style.boxShadow === 'none') window.unseen.push(target.outerHTML.slice(0, 200));
             });",
        );
        // Of a group of radio buttons Tab reaches one, arrows the others. More may come while the page is walked through.
        let missed = "return window.controls().filter((e) => e.type !== 'radio' && !window.reached.has(e)).map((e) => e.outerHTML.slice(0, 200))";
        let mut rounds = 0;
        let missed = loop {
            browser.press(&[key::TAB; 20]);
            let missed = browser.run(missed);
            rounds += 1;
            if missed == json!([]) || rounds == 25 {
                break missed;
            }
        };
        assert_eq!(missed, json!([]), "{name}: not reached by Tab");
        assert_eq!(browser.run("return window.unseen"), json!([]), "{name}: focus is not visible");
    }
}
