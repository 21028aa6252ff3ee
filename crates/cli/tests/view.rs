//! Looking at agents with the real binary: dreams of runs and of imported agents, contexts, reconstructions, recordings.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::path::{Path, PathBuf};
use std::process::Output;

use common::{Scratch, iris, stderr, train};

const GREEN: [u8; 3] = [0, 158, 115];

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A PNG's width and RGB pixels.
fn pixels(path: &Path) -> (usize, Vec<[u8; 3]>) {
    let file = std::fs::File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut reader = png::Decoder::new(std::io::BufReader::new(file)).read_info().unwrap();
    let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut bytes).unwrap();
    (info.width as usize, bytes.as_chunks::<3>().0.to_vec())
}

/// Which cells of a row of a strip have a green border: rows of 118 pixels (caption, border, frame of 96, bar), cells of 102.
fn given(path: &Path, row: usize) -> Vec<usize> {
    let (width, pixels) = pixels(path);
    (0..width / 102).filter(|cell| pixels[(row * 118 + 11) * width + cell * 102] == GREEN).collect()
}

fn imported(scratch: &Scratch) -> PathBuf {
    let agent = scratch.0.join("agent");
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints/tiny.pt");
    stdout(&iris().arg("import").arg(tiny).arg("--out").arg(&agent).output().unwrap());
    agent
}

#[test]
fn runs_dream_from_evaluation_games_and_contexts() {
    let scratch = Scratch::new("contexts");
    let run = scratch.0.join("run");
    assert!(train(&run, &["epochs=2"]).status.success());
    assert_eq!(given(&run.join("media/000002/foresight.png"), 0), [0, 1]);
    assert_eq!(given(&run.join("media/000002/foresight.png"), 1), [0, 1]);
    assert_eq!(given(&run.join("media/000002/dream.png"), 0), [0; 0]);
    let dream = |arguments: &[&str]| iris().arg("dream").arg(&run).args(arguments).output().unwrap();
    for (arguments, name, marked) in [
        (&["--from", "5"][..], "from5-seed0", &[][..]),
        (&["--from", "5", "--context", "3"], "from5-seed0-context3", &[0, 1, 2]),
        (&["--test", "--from", "2"], "test-from2-seed0", &[0]),
        (
            &["--test", "--from", "2", "--context", "2", "--actions", "recorded"],
            "test-from2-seed0-context2-recorded",
            &[0, 1],
        ),
        (
            &["--env", "arcade/catch", "--from", "0", "--context", "2"],
            "test-arcade-catch-from0-seed0-context2",
            &[0, 1],
        ),
    ] {
        let said = stdout(&dream(arguments));
        let picture = run.join("dreams").join(name).join("dream.png");
        assert!(said.starts_with("what followed  ") && said.contains("future 4"), "{said}");
        assert_eq!(given(&picture, 0), marked, "{arguments:?}");
        assert_eq!(given(&picture, 1), marked, "{arguments:?}");
        assert!(picture.with_extension("gif").exists());
    }
    // Another seed plays another game; the same one the same.
    let test = |seed: &str| {
        let out = scratch.0.join("out");
        let arguments = ["--test", "--from", "0", "--steps", "4", "--seed", seed, "--out"];
        stdout(&dream(&[&arguments[..], &[out.to_str().unwrap()]].concat()));
        std::fs::read(out.join("dream.png")).unwrap()
    };
    assert!(test("1") == test("1"));
    assert!(test("1") != test("2"));
    for (arguments, answer) in [
        (&["--context", "99"][..], "--context is at most"),
        (&["--test", "--from", "99999"], "--from 99999 is after the end of the game, which lasted"),
        (&["--env", "no/such"], "no/such"),
    ] {
        let output = dream(arguments);
        assert!(!output.status.success() && stderr(&output).contains(answer), "{}", stderr(&output));
    }
}

#[test]
fn an_imported_agent_dreams() {
    let scratch = Scratch::new("imported-dream");
    let agent = imported(&scratch);
    let dream = |arguments: &[&str]| iris().arg("dream").arg(&agent).args(arguments).output().unwrap();
    let refused = dream(&[]);
    assert!(!refused.status.success() && stderr(&refused).contains("add --env GAME"), "{}", stderr(&refused));
    let said = stdout(&dream(&["--env", "arcade/catch", "--from", "1", "--context", "2"]));
    assert!(said.contains("future 4"), "{said}");
    let picture = agent.join("dreams/test-arcade-catch-from1-seed0-context2/dream.png");
    assert_eq!(given(&picture, 1), [0, 1]);
    for actions in ["recorded", "left,right", "policy"] {
        let said = stdout(&dream(&["--env", "arcade/catch", "--actions", actions, "--steps", "7"]));
        assert!(said.contains("future 1"), "{said}");
    }
}

#[test]
fn agents_reconstruct_the_same_frames() {
    let scratch = Scratch::new("reconstruct");
    let (run, other) = (scratch.0.join("run"), scratch.0.join("other"));
    assert!(train(&run, &["epochs=1"]).status.success());
    assert!(train(&other, &["epochs=1", "--seed", "3"]).status.success());
    let picture = scratch.0.join("new/figure9.png");
    let mut command = iris();
    command.arg("reconstruct").args([&run, &other, &run]).args(["--frames", "6", "--out"]).arg(&picture);
    let said = stdout(&command.output().unwrap());
    let lines: Vec<&str> = said.lines().collect();
    assert!(
        lines[0].starts_with("agent ") && lines[0].ends_with("L1  squared error  distinct tokens"),
        "{said}"
    );
    // The same agent twice, and another one.
    let numbers = |line: &str| line.split_whitespace().skip(1).map(String::from).collect::<Vec<_>>();
    assert!(lines[1] == lines[3] && numbers(lines[1]) != numbers(lines[2]), "{said}");
    let (width, drawn) = pixels(&picture);
    assert_eq!((width, drawn.len() / width), (6 * 102, 4 * 118 + 11));

    // The numbers are those of the picture, but for the rounding of its pixels to bytes.
    let frame = |row: usize, cell: usize| {
        let at = move |y: usize, x: usize| (row * 118 + 11 + 3 + y) * width + cell * 102 + 3 + x;
        (0..96).flat_map(move |y| (0..96).map(move |x| at(y, x)))
    };
    let values = |row: usize| -> Vec<f64> {
        let pixels = (0..6).flat_map(|cell| frame(row, cell)).flat_map(|at| drawn[at]);
        pixels.map(|byte| f64::from(byte) / 255.0).collect()
    };
    let (original, kept) = (values(0), values(1));
    let mean = |f: fn(f64) -> f64| {
        original.iter().zip(&kept).map(|(a, b)| f(a - b)).sum::<f64>() / original.len() as f64
    };
    let numbers: Vec<f64> = numbers(lines[1]).iter().take(2).map(|n| n.parse().unwrap()).collect();
    assert!((numbers[0] - mean(f64::abs)).abs() < 0.002, "{numbers:?}");
    assert!((numbers[1] - mean(|d| d * d)).abs() < 0.002, "{numbers:?}");

    // Frames of 8 and 32 pixels are not compared; an imported agent alone is drawn.
    let agent = imported(&scratch);
    let refused = iris().arg("reconstruct").args([&run, &agent]).arg("--out").arg(&picture).output().unwrap();
    assert!(stderr(&refused).contains("sees frames of 8 x 8 pixels"), "{}", stderr(&refused));
    let mut command = iris();
    command.arg("reconstruct").arg(&agent).args(["--env", "arcade/catch", "--out"]).arg(&picture);
    assert!(stdout(&command.output().unwrap()).contains(" of 5\n"));
    let refused = iris().arg("reconstruct").arg(&run).args(["--out", "a.gif"]).output().unwrap();
    assert!(stderr(&refused).contains("name a file that ends in .png, not a.gif"), "{}", stderr(&refused));
}

#[test]
fn dreams_are_compared_with_what_followed() {
    let scratch = Scratch::new("foresee");
    let run = scratch.0.join("run");
    assert!(train(&run, &["epochs=2"]).status.success());
    let agent = imported(&scratch);
    let foresee = |on: &Path, arguments: &[&str]| {
        iris().arg("foresee").arg(on).args(["--games", "2"]).args(arguments).output().unwrap()
    };
    let said = stdout(&foresee(&run, &["--stretches", "5", "--steps", "3"]));
    let lines: Vec<&str> = said.lines().collect();
    let first = "arcade/catch, 5 stretches of 2 games: 2 frames given, 3 steps dreamt with the actions that were taken";
    assert_eq!(lines[0], first);
    assert!(lines[1].starts_with("tokens of the next frame: ") && lines.len() == 3 + 4, "{said}");
    let numbers = |on: &Path, arguments: &[&str]| -> serde_json::Value {
        serde_json::from_str(&stdout(&foresee(on, &[&["--json"], arguments].concat()))).unwrap()
    };
    let measured = numbers(&run, &["--stretches", "70", "--steps", "3"]);
    assert_eq!(measured["steps"].as_array().unwrap().len(), 3);
    assert_eq!((&measured["stretches"], &measured["steps"][0]["dreams"]), (&70.into(), &70.into()));
    // A game of catch has 35 steps, every seventh with a reward, the last with the end.
    let count = |what: &str, of: &str| measured["steps"][0][what][of].as_u64().unwrap();
    assert!((5..=15).contains(&count("rewards", "came")) && (1..=4).contains(&count("ends", "came")));
    assert!(measured["all"]["kept_error"].as_f64().unwrap() > 0.0);
    // The same every time and on any number of threads, another seed plays other games.
    assert_eq!(measured, numbers(&run, &["--stretches", "70", "--steps", "3", "--threads", "1"]));
    assert_ne!(measured["all"], numbers(&run, &["--stretches", "70", "--steps", "3", "--seed", "7"])["all"]);
    // Longer than the world model remembers; and an agent without a run.
    let imported = numbers(&agent, &["--env", "arcade/catch", "--stretches", "3", "--steps", "6"]);
    assert_eq!(imported["steps"].as_array().unwrap().len(), 6);
    for (arguments, answer) in [
        (&["--context", "1000"][..], "error: the world model remembers "),
        (&["--steps", "5000"], "For more information, try '--help'."),
    ] {
        let refused = foresee(&run, arguments);
        assert!(!refused.status.success());
        assert!(stderr(&refused).lines().last().unwrap().starts_with(answer), "{}", stderr(&refused));
    }
}

/// Width, height, delays in hundredths of a second.
fn gif_shape(path: &Path) -> (usize, usize, Vec<u16>) {
    let mut reader = gif::DecodeOptions::new().read_info(std::fs::File::open(path).unwrap()).unwrap();
    let (width, height) = (reader.width() as usize, reader.height() as usize);
    let mut delays = Vec::new();
    while let Some(frame) = reader.read_next_frame().unwrap() {
        delays.push(frame.delay);
    }
    (width, height, delays)
}

#[test]
fn recordings_have_three_panels_and_a_header() {
    let scratch = Scratch::new("panels");
    let agent = imported(&scratch);
    let record = |name: &str, arguments: &[&str]| {
        let out = scratch.0.join(name);
        let mut command = iris();
        command.arg("record").arg(&agent).args(["--env", "arcade/catch", "--steps", "5"]);
        let output = command.args(arguments).arg("--out").arg(&out).output().unwrap();
        (output, out)
    };
    let shape = |name: &str, arguments: &[&str]| {
        let (output, out) = record(name, arguments);
        (stdout(&output).lines().next().unwrap().to_string(), gif_shape(&out))
    };
    let (said, plain) = shape("plain.gif", &[]);
    // Three frames of 8 pixels, each twelve times as large, in three pixels of border.
    assert_eq!(plain, (3 * 96 + 4 * 3, 11 + 96 + 6 + 5 + 11, vec![7; 5]));
    let (again, with) = shape("header.gif", &["--header", "--fps", "10"]);
    assert_eq!(with, (plain.0, plain.1 + 2 * 11, vec![10; 5]));
    // The header changes nothing about the game.
    assert_eq!(again, said);
    let (refused, out) = record("fast.gif", &["--fps", "51"]);
    assert!(stderr(&refused).contains("51 is not in 1..=50") && !out.exists(), "{}", stderr(&refused));
}

/// The pictures of an animated PNG, and the time of each as a fraction of a second.
fn apng(path: &Path) -> (Vec<Vec<u8>>, (u16, u16)) {
    let file = std::fs::File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut reader = png::Decoder::new(std::io::BufReader::new(file)).read_info().unwrap();
    let count = reader.info().animation_control.unwrap().num_frames;
    let mut time = (0, 0);
    let mut picture = |_| {
        let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
        reader.next_frame(&mut bytes).unwrap();
        let frame = reader.info().frame_control.unwrap();
        time = (frame.delay_num, frame.delay_den);
        bytes
    };
    ((0..count).map(&mut picture).collect(), time)
}

/// Figure 7 of the paper: chosen steps of the game that is recorded otherwise.
#[test]
fn stills_are_steps_of_the_recorded_game() {
    let scratch = Scratch::new("stills");
    let agent = imported(&scratch);
    let record = |name: &str, arguments: &[&str]| {
        let out = scratch.0.join(name);
        let mut command = iris();
        command.arg("record").arg(&agent).args(["--env", "arcade/catch"]).args(arguments);
        (command.arg("--out").arg(&out).output().unwrap(), out)
    };
    let (output, film) = record("film.png", &["--steps", "6"]);
    stdout(&output);
    let (output, stills) = record("stills.png", &["--stills", "5,0,2"]);
    assert!(stdout(&output).starts_with("6 steps of arcade/catch, return "));
    // Frames of 8 pixels, each twelve times as large, in three pixels of border under two lines of text.
    let (width, drawn) = pixels(&stills);
    assert_eq!((width, drawn.len() / width), (3 * (96 + 3) + 3, 2 * 11 + 96 + 3));
    let frame = |pixels: &[[u8; 3]], width: usize, (x, y): (usize, usize)| -> Vec<[u8; 3]> {
        (0..96).flat_map(|row| pixels[(y + row) * width + x..][..96].to_vec()).collect()
    };
    let film: Vec<Vec<[u8; 3]>> =
        apng(&film).0.iter().map(|bytes| bytes.as_chunks::<3>().0.to_vec()).collect();
    for (place, step) in [0, 2, 5].into_iter().enumerate() {
        let still = frame(&drawn, width, (3 + place * 99, 22));
        assert!(still == frame(&film[step], 3 * 96 + 4 * 3, (3, 11 + 3)), "step {step}");
    }
    assert!(frame(&drawn, width, (3, 22)) != frame(&drawn, width, (3 + 99, 22)));

    for (name, arguments, answer) in [
        ("a.gif", &["--stills", "1"][..], "stills are written as a PNG: add --out FILE.png"),
        (
            "a.png",
            &["--stills", "1,29999"],
            "before step 29999: ask for earlier stills, or try another --seed",
        ),
        ("a.png", &["--stills", "30000"], "30000 is not in 0..30000"),
        ("a.png", &["--stills", "1", "--fps", "9"], "cannot be used with"),
    ] {
        let (refused, out) = record(name, arguments);
        assert!(!refused.status.success() && stderr(&refused).contains(answer), "{}", stderr(&refused));
        assert!(!out.exists(), "{name}");
    }
}

/// A folder with a program `ffmpeg` that does this.
#[cfg(unix)]
fn fake_ffmpeg(scratch: &Scratch, name: &str, script: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let folder = scratch.0.join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let program = folder.join("ffmpeg");
    std::fs::write(&program, format!("#!/bin/sh\n[ \"$1\" = -version ] && exit 0\n{script}\n")).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

#[cfg(unix)]
#[test]
fn animations_have_the_format_of_their_ending() {
    let scratch = Scratch::new("formats");
    let agent = imported(&scratch);
    let show = |command: &str, name: &str, extra: &[&str], path: Option<&Path>| {
        let out = scratch.0.join(name);
        let mut iris = iris();
        iris.arg(command).arg(&agent).args(["--env", "arcade/catch", "--steps", "5"]).args(extra);
        if let Some(path) = path {
            iris.env("PATH", path);
        }
        (iris.arg("--out").arg(&out).output().unwrap(), out)
    };
    // The pictures of both are the same game.
    let (output, out) = show("record", "game.png", &["--fps", "12"], None);
    assert!(stdout(&output).contains("game.png"));
    let (pictures, time) = apng(&out);
    assert_eq!((pictures.len(), time), (5, (1, 12)));
    assert!(pictures.windows(2).all(|pair| pair[0] != pair[1]));
    let (width, height) = (3 * 96 + 4 * 3, 11 + 96 + 6 + 5 + 11);
    assert!(pictures.iter().all(|picture| picture.len() == width * height * 3));
    let (output, out) = show("dream", "new/dream.apng", &["--from", "0"], None);
    assert!(stdout(&output).contains("future 4") && apng(&out).1 == (1, 4));
    assert!(!apng(&out).0.is_empty() && std::fs::read_dir(out.parent().unwrap()).unwrap().count() == 1);
    let (output, out) = show("dream", "dream.gif", &["--from", "0"], None);
    assert!(stdout(&output).ends_with("dream.gif\n") && gif_shape(&out).2.iter().all(|delay| *delay == 25));

    // The program gets the pixels of every picture, and writes a file that is renamed.
    let script = "for last; do :; done\nprintf '%s ' \"$@\" > \"${last#file:}\"\nwc -c | tr -d ' ' >> \"${last#file:}\"";
    let tools = std::env::var("PATH").unwrap();
    let with = |folder: &Path| PathBuf::from(format!("{}:{tools}", folder.display()));
    let fake = with(&fake_ffmpeg(&scratch, "fake", script));
    let (output, out) = show("record", "game.mp4", &["--fps", "12"], Some(&fake));
    assert!(stdout(&output).contains("game.mp4"));
    let written = std::fs::read_to_string(&out).unwrap();
    let asked = format!("-f rawvideo -pixel_format rgb24 -video_size {width}x{height} -framerate 12/1 -i - ");
    assert!(written.contains(&asked) && written.contains(" -pix_fmt yuv420p "), "{written}");
    assert!(written.ends_with(&format!("game.mp4.partial {}\n", 5 * width * height * 3)), "{written}");
    assert!(!scratch.0.join("game.mp4.partial").exists());
    assert!(show("dream", "dream.mp4", &["--from", "0"], Some(&fake)).0.status.success());

    // One that fails is quoted, and leaves nothing behind.
    let failing =
        with(&fake_ffmpeg(&scratch, "failing", "cat > /dev/null\necho 'no such encoder' >&2\nexit 3"));
    let (output, out) = show("record", "failed.mp4", &[], Some(&failing));
    let said = stderr(&output);
    assert!(
        !output.status.success()
            && said.contains("failed.mp4: ffmpeg failed (exit status: 3): no such encoder"),
        "{said}"
    );
    assert!(!out.exists() && !scratch.0.join("failed.mp4.partial").exists());
    // Without it the game is not even played.
    for command in ["record", "dream"] {
        let (output, out) = show(command, "none/none.mp4", &[], Some(&scratch.0.join("empty")));
        let said = stderr(&output);
        assert!(!output.status.success() && !out.parent().unwrap().exists());
        assert!(
            said.contains("none.mp4 needs the program ffmpeg, which does not run: install it, or name"),
            "{said}"
        );
    }
}
