//! The pictures of the documentation: `scripts/studio-screenshots`.

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::playing::STEP;
use crate::server::Studio;
use crate::webdriver::{Browser, key};

/// Of a picture.
const MOST_BYTES: usize = 150_000;
/// Steps of the game that is played.
const PLAYED: usize = 17;
/// Pixels of the longest page, and of a phone's, where the rest is a list of settings.
const MOST_HEIGHT: u64 = 2400;
const PHONE_HEIGHT: u64 = 1150;

/// Needs a folder with the trained run `catch` and runs of several seeds in `seeds`, so it runs only when asked for.
#[test]
#[ignore = "needs trained runs"]
fn screenshots() {
    let folder =
        |name: &str| PathBuf::from(std::env::var_os(name).unwrap_or_else(|| panic!("{name} is not set")));
    let (runs, out) = (folder("IRIS_STUDIO_RUNS"), folder("IRIS_STUDIO_IMAGES"));
    let Some(browser) = Browser::start() else { panic!("there is no browser") };
    let (alone, several) = (Studio::start(&runs.join("catch")), Studio::start(&runs.join("seeds")));
    for studio in [&alone, &several] {
        browser.open(&studio.url);
    }
    let ids = |studio: &Studio| {
        let listed = studio.get("/api/runs").json();
        let ids = listed.as_array().unwrap().iter().map(|run| run["id"].as_str().unwrap().to_string());
        ids.collect::<Vec<_>>().join(",")
    };
    let (run, trained) = (ids(&alone), ids(&several));
    let press = |text: &str| {
        let script = "[...document.querySelectorAll('#screen button')].find((button) => button.textContent.startsWith(arguments[0])).click()";
        browser.run_with(script, json!([text]));
    };
    // Steps of the policy, always the same ones.
    let play = || {
        browser.wait(&format!("{STEP} === 0"));
        for step in 1..=PLAYED {
            browser.press(&['e']);
            browser.wait(&format!("{STEP} === {step}"));
        }
    };
    let charts = || {
        drop(browser.wait("document.querySelectorAll('.u-over').length >= Math.min(2, document.querySelectorAll('.chart').length)"))
    };
    let look = || {
        browser.wait("document.querySelectorAll('.past').length > 4");
        browser.click(".token:nth-child(3)");
    };
    let replay = || {
        browser.wait("document.querySelector('.told-line')?.textContent.startsWith('Action')");
        press("Dream");
        browser.wait("document.querySelectorAll('.panel:not([hidden])').length === 3");
        press("Measure surprise");
        browser.wait("document.querySelector('.told-line').textContent.includes('nats')");
        browser.run("document.activeElement.blur()");
        browser.press(&[key::RIGHT; 4]);
    };
    let teach = || {
        browser.wait("document.querySelector('.told-line')?.textContent.includes('step 0')");
        browser.press(&[key::UP; 3]);
        browser.wait("document.querySelector('.told-line')?.textContent.includes('step 3')");
    };
    let episode = alone.get(&format!("/api/replay/{run}")).json()[0]["id"].as_str().unwrap().to_string();
    let recorded = format!("run={run}&episode={episode}&step=12");
    let about = || drop(browser.wait("document.querySelector('.facts')"));
    let pages: [(&str, String, &str, &dyn Fn()); 10] = [
        ("runs", "#/runs?sort=name".into(), "light", &|| {
            drop(browser.wait("document.querySelectorAll('.runs tbody tr').length"))
        }),
        (
            "curves",
            format!("#/curves?runs={trained}&metrics=evaluation,reward_per_step,world_model"),
            "light",
            &charts,
        ),
        ("dark", format!("#/curves?runs={trained}&metrics=world_model"), "dark", &charts),
        ("compare", format!("#/compare?runs={trained}"), "light", &charts),
        ("look", format!("#/look?run={run}&episode={episode}&step=7"), "light", &look),
        ("play", format!("#/play?run={run}&rate=20"), "light", &play),
        ("replay", format!("#/replay?{recorded}"), "light", &replay),
        ("teach", "#/teach?env=arcade%2Fpong".into(), "light", &teach),
        ("about", "#/about".into(), "light", &about),
        ("phone", format!("#/play?run={run}&rate=20"), "light", &play),
    ];
    for (name, hash, scheme, prepare) in pages {
        let phone = name == "phone";
        let width = if phone { 390 } else { 1280 };
        browser.prefer(scheme, "no-preference");
        browser.resize(width, 800, phone);
        let one = ["look", "play", "replay", "teach", "phone"].contains(&name);
        let studio = if one { &alone } else { &several };
        browser.open(&format!("http://{}/", studio.host()));
        browser.run_with("location.hash = arguments[0]", json!([hash]));
        prepare();
        // The whole page; what is larger with more room may need a second look.
        for _ in 0..2 {
            let height = browser.run("return document.documentElement.scrollHeight").as_u64().unwrap();
            browser.resize(
                width,
                height.clamp(800, if phone { PHONE_HEIGHT } else { MOST_HEIGHT }) as u32,
                phone,
            );
            browser.run(
                "return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))",
            );
        }
        let drawn = "[...document.querySelectorAll('.chart:not([hidden]) .plot')].every((plot) => plot.querySelector('canvas'))";
        browser.wait(drawn);
        browser.run("scrollTo(0, 0); return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))");
        save(&out.join(format!("studio-{name}.png")), &browser.screenshot());
    }
}

/// Writes a screenshot, as small as it gets without loss, or in 256 colours if that is too large.
fn save(path: &Path, screenshot: &[u8]) {
    let mut reader = png::Decoder::new(std::io::Cursor::new(screenshot)).read_info().unwrap();
    let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut bytes).unwrap();
    let rgb: Vec<u8> = match info.color_type {
        png::ColorType::Rgba => {
            bytes.as_chunks::<4>().0.iter().flat_map(|[r, g, b, _]| [*r, *g, *b]).collect()
        }
        _ => bytes,
    };
    let encode = |colour: png::ColorType, palette: Option<Vec<u8>>, pixels: &[u8]| {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, info.width, info.height);
        encoder.set_color(colour);
        encoder.set_compression(png::Compression::High);
        if let Some(palette) = palette {
            encoder.set_palette(palette);
            encoder.set_filter(png::Filter::NoFilter);
        }
        encoder.write_header().unwrap().write_image_data(pixels).unwrap();
        file
    };
    let mut file = encode(png::ColorType::Rgb, None, &rgb);
    if file.len() > MOST_BYTES {
        let frame = gif::Frame::from_rgb_speed(info.width as u16, info.height as u16, &rgb, 1);
        file = encode(png::ColorType::Indexed, frame.palette.clone(), &frame.buffer);
    }
    println!("{} {} bytes", path.display(), file.len());
    assert!(file.len() <= MOST_BYTES, "{} is too large", path.display());
    std::fs::write(path, file).unwrap();
}
