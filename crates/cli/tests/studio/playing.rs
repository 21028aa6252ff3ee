//! Play in a real browser.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::json;

use crate::common::Scratch;
use crate::http::PATIENCE;
use crate::play::{ACTIONS, hundred};
use crate::player::{SIZE, arrays, dreamt, id};
use crate::server::{Studio, runs};
use crate::webdriver::{Browser, decode_base64, key};

/// The keys of left, stay and right.
const KEYS: [char; 3] = [key::LEFT, '2', key::RIGHT];

/// From frame to frame of a recording, and to the first.
const CELL: usize = 102;
const BORDER: usize = 3;

/// The number of the step that is shown.
pub const STEP: &str = "Number(document.querySelector('.told dd')?.textContent)";

/// A browser that plays with an agent, paused at the first frame.
fn open(hash: &str) -> Option<(Studio, Browser)> {
    let browser = Browser::start()?;
    let studio = Studio::start(runs());
    browser.open(&studio.url);
    go(&studio, &browser, hash);
    Some((studio, browser))
}

/// `ENDLESS` and `ONE` in an address stand for ids.
fn go(studio: &Studio, browser: &Browser, hash: &str) {
    let hash = hash.replace("ENDLESS", &id(studio, "endless")).replace("ONE", &id(studio, "one"));
    browser.run_with("location.hash = arguments[0]", json!([hash]));
    browser.wait(&format!(
        "document.querySelector('.panel.dream canvas') && document.querySelector('.told') && {STEP} === 0"
    ));
}

/// RGB bytes of what a canvas shows.
fn pixels(browser: &Browser, panel: &str) -> Vec<u8> {
    let text = browser.run_with(
        "const canvas = document.querySelector(arguments[0]);
         const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
         return btoa(String.fromCharCode(...data.filter((_, i) => i % 4 < 3)));",
        json!([format!(".panel.{panel} canvas")]),
    );
    decode_base64(text.as_str().unwrap())
}

/// Presses a key and waits until the next step is shown.
fn act(browser: &Browser, action: usize, step: usize) {
    browser.press(&[KEYS[action]]);
    browser.wait(&format!("{STEP} === {step}"));
}

#[test]
fn a_hundred_steps_by_keys_are_dreamt_as_iris_dream_does() {
    let Some((_studio, browser)) = open("#/play?run=ENDLESS&env=arcade%2Fcatch&seed=5") else { return };
    let names: Vec<&str> = hundred().into_iter().map(|action| ACTIONS[action]).collect();
    let expected = dreamt(&runs().join("endless"), "arcade/catch", 5, &names);
    assert!(pixels(&browser, "dream") == expected[0]);
    assert!(pixels(&browser, "seen") == expected[0]);
    let mut slid = 0;
    for (i, action) in hundred().into_iter().enumerate() {
        act(&browser, action, i + 1);
        assert!(pixels(&browser, "dream") == expected[i + 1], "step {}", i + 1);
        slid += usize::from(browser.run("return !document.querySelector('.slid').hidden") == true);
    }
    assert!(slid > 0, "the page never said that the context window slid");
    assert!(browser.text(".told").contains(&format!("{} (person)", names[99])), "{}", browser.text(".told"));

    // Back, and the same action again leads to the same frame.
    for step in [99, 98] {
        browser.press(&['b']);
        browser.wait(&format!("{STEP} === {step}"));
        assert!(pixels(&browser, "dream") == expected[step]);
    }
    act(&browser, hundred()[98], 99);
    assert!(pixels(&browser, "dream") == expected[99]);
    // Another one from an earlier frame is a branch: what came after is gone.
    browser.click(".thumb[aria-label='Step 32']");
    browser.wait(&format!("{STEP} === 32"));
    assert!(pixels(&browser, "dream") == expected[32]);
    act(&browser, (hundred()[32] + 1) % 3, 33);
    browser.wait("document.querySelector('#play-scrub').max === '33'");
    // Reality put back: the dream shows what the agent sees of the game.
    browser.press(&['p']);
    browser.wait("document.querySelector('.panel.dream .note').textContent === 'shown reality'");
    assert!(pixels(&browser, "dream") == pixels(&browser, "seen"));
    assert_eq!(browser.console(), [""; 0]);
}

#[test]
fn the_policy_plays_until_a_key_is_held() {
    let Some((_studio, browser)) = open("#/play?run=ENDLESS&env=arcade%2Fpong&rate=30") else { return };
    let action = "document.querySelector('.told').innerText";
    browser.press(&['.']);
    browser.wait(&format!("{STEP} > 5 && {action}.includes('(policy)')"));
    // By hand for as long as a key is held.
    browser.hold(key::UP);
    browser.wait(&format!("{action}.includes('(person)')"));
    browser.let_go(key::UP);
    browser.wait(&format!("{action}.includes('(policy)')"));
    browser.press(&['.']);
    browser.wait("document.querySelector('.controls .primary').textContent.startsWith('Play')");
    // One step of the policy.
    let before = browser.wait(STEP).as_u64().unwrap();
    browser.press(&['e']);
    browser.wait(&format!("{STEP} > {before}"));
    // What it says about the step.
    let told = browser.text("#screen");
    for name in ["Value", "Context window", "Reward in the dream", "End of the dream", "Policy"] {
        assert!(told.to_lowercase().contains(&name.to_lowercase()), "{name} is not in {told}");
    }
    browser.wait("document.querySelector('#live').textContent.startsWith('Step')");
    // A new game.
    browser.run("document.activeElement.blur()");
    browser.press(&[key::ENTER]);
    browser.wait(&format!("{STEP} === 0"));
    assert_eq!(browser.console(), [""; 0]);
}

/// The file that a download ends as.
fn downloaded(browser: &Browser, folder: &Path, ending: &[&str]) -> PathBuf {
    let since = Instant::now();
    loop {
        assert!(since.elapsed() < PATIENCE, "no {ending:?} was saved");
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let ends = |path: &PathBuf| {
            ending.iter().any(|ending| path.extension().is_some_and(|found| found == *ending))
        };
        if let Some(path) = files.filter(|path| path.metadata().is_ok_and(|file| file.len() > 0)).find(ends) {
            return path;
        }
        // Waits a little; the page must not have complained.
        assert_eq!(
            browser.run("return document.querySelector('.problem')?.hidden ?? true"),
            true,
            "{}",
            browser.text(".problem")
        );
    }
}

#[test]
fn recordings_are_saved() {
    let Some((_studio, browser)) = open("#/play?run=ENDLESS&env=arcade%2Fcatch&seed=3") else { return };
    let scratch = Scratch::new("studio-downloads");
    browser.download_to(&scratch.0);
    let mut frames = pixels(&browser, "dream");
    browser.press(&['r']);
    browser.wait("document.querySelector('.controls button[aria-pressed=true]')");
    for i in 0..20 {
        act(&browser, i % 3, i + 1);
        frames.extend(pixels(&browser, "dream"));
    }
    browser.press(&['r']);
    let video = std::fs::read(downloaded(&browser, &scratch.0, &["mp4", "webm"])).unwrap();
    assert!(&video[4..8] == b"ftyp" || video.starts_with(&[0x1a, 0x45, 0xdf, 0xa3]), "{:?}", &video[..16]);
    browser.click("a[data-file='recording.npz']");
    let file = downloaded(&browser, &scratch.0, &["npz"]);
    assert!(arrays(&std::fs::read(file).unwrap())["dream.npy"] == frames);
    let file = |ending: &str| {
        browser.click(&format!("a[data-file='recording.{ending}']"));
        std::fs::read(downloaded(&browser, &scratch.0, &[ending])).unwrap()
    };
    let sides: Vec<&[u8]> = frames.chunks(SIZE * SIZE * 3).collect();
    // A picture per step, the dream in the last of three columns.
    let animation = file("gif");
    let mut options = gif::DecodeOptions::new();
    options.set_color_output(gif::ColorOutput::RGBA);
    let mut reader = options.read_info(&animation[..]).unwrap();
    let (width, height) = (usize::from(reader.width()), usize::from(reader.height()));
    let mut screen = vec![0; width * height * 4];
    let mut shown = 0;
    while let Some(part) = reader.read_next_frame().unwrap() {
        let (left, top) = (usize::from(part.left), usize::from(part.top));
        for (y, row) in part.buffer.chunks(usize::from(part.width) * 4).enumerate() {
            for (x, pixel) in row.as_chunks::<4>().0.iter().enumerate().filter(|(_, pixel)| pixel[3] > 0) {
                screen[((top + y) * width + left + x) * 4..][..4].copy_from_slice(pixel);
            }
        }
        shown += 1;
    }
    assert_eq!(shown, sides.len());
    // 256 colours are fewer than three noisy frames have.
    let difference = off(&screen, width, 2 * CELL + BORDER, sides[20]);
    assert!(difference < 10.0, "the last dream is {difference} off");
    // The same frames beside each other.
    let strip = file("png");
    let mut reader = png::Decoder::new(std::io::Cursor::new(&strip)).read_info().unwrap();
    let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut bytes).unwrap();
    assert_eq!(info.color_type, png::ColorType::Rgb);
    let pixels: Vec<u8> = bytes.as_chunks::<3>().0.iter().flat_map(|[r, g, b]| [*r, *g, *b, 255]).collect();
    for (step, frame) in sides.iter().enumerate() {
        let difference = off(&pixels, info.width as usize, step * CELL + BORDER, frame);
        assert_eq!(difference, 0.0, "the dream of step {step}");
    }
    assert_eq!(browser.console(), [""; 0]);
}

/// How far the frame that stands at `left` in a picture of RGBA bytes is from the one that should, wherever it is from top to bottom: the mean
/// difference of a byte. Recordings draw every pixel three times as large, and captions and borders around the frames.
fn off(picture: &[u8], width: usize, left: usize, frame: &[u8]) -> f64 {
    const SCALE: usize = 96 / SIZE;
    let height = picture.len() / 4 / width;
    let pixel = |top: usize, i: usize| {
        let (x, y) = (left + i % SIZE * SCALE + 1, top + i / SIZE * SCALE + 1);
        &picture[(y * width + x) * 4..][..3]
    };
    let mean = |top: usize| {
        let difference = |i: usize| -> u32 {
            let pairs = pixel(top, i).iter().zip(&frame[i * 3..]);
            pairs.map(|(one, other)| u32::from(one.abs_diff(*other))).sum()
        };
        f64::from((0..SIZE * SIZE).map(difference).sum::<u32>()) / frame.len() as f64
    };
    (0..=height - SIZE * SCALE).map(mean).fold(f64::INFINITY, f64::min)
}

/// The plain game without an agent, with buttons for fingers.
#[test]
fn a_game_is_played_by_hand_on_a_phone() {
    let Some(browser) = Browser::start() else { return };
    let studio = Studio::start(runs());
    browser.resize(390, 844, true);
    browser.open(&studio.url);
    browser.run("location.hash = '#/play?run=&env=arcade%2Fcatch'");
    browser.wait(&format!("document.querySelectorAll('.pad button').length === 3 && {STEP} === 0"));
    browser.click(".pad button[data-action='2']");
    browser.wait(&format!(
        "{STEP} === 1 && document.querySelector('.told').innerText.includes('right (person)')"
    ));
    let small = browser.run(
        "return [...document.querySelectorAll('.pad button, .controls button')].filter((button) => button.checkVisibility())
           .map((button) => button.getBoundingClientRect()).filter(({ width, height }) => width < 44 || height < 44).length",
    );
    assert_eq!(small, 0, "buttons smaller than a fingertip");
    assert_eq!(browser.console(), [""; 0]);
}
