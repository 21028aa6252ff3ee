//! What `iris dream` shows for the actions that a page played, and what the studio writes of them.

use std::collections::BTreeMap;
use std::io::{Cursor, Read};
use std::path::Path;

use crate::common::{iris, stderr};
use crate::server::Studio;

/// Side of a tiny agent's frames.
pub const SIZE: usize = 32;

/// The id of a run or an agent.
pub fn id(studio: &Studio, name: &str) -> String {
    let listed = studio.get("/api/runs").json();
    let entry = listed.as_array().unwrap().iter().find(|entry| entry["name"] == name);
    entry.unwrap_or_else(|| panic!("{name} is not in {listed}"))["id"].as_str().unwrap().to_string()
}

/// What `iris dream` shows from the beginning of the evaluation game of a seed, frame by frame.
pub fn dreamt(agent: &Path, game: &str, seed: u64, actions: &[&str]) -> Vec<Vec<u8>> {
    let out = agent.join("strip");
    let mut command = iris();
    command.arg("dream").arg(agent).args(["--env", game, "--from", "0", "--futures", "1"]);
    // The last action leads to a frame that is not drawn.
    let (steps, seed) = ((actions.len() + 1).to_string(), seed.to_string());
    command.args(["--seed", &seed, "--steps", &steps, "--actions", &actions.join(","), "--out"]).arg(&out);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let file = std::fs::File::open(out.join("dream.png")).unwrap();
    let mut reader = png::Decoder::new(std::io::BufReader::new(file)).read_info().unwrap();
    let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
    let width = reader.next_frame(&mut bytes).unwrap().width as usize;
    // The second row: rows of 118 pixels (caption, border, frame of 96, bar), cells of 102.
    let (scale, top) = (96 / SIZE, 118 + 11 + 3);
    let frame = |cell: usize| {
        let pixel = |i: usize| ((top + i / SIZE * scale) * width + cell * 102 + 3 + i % SIZE * scale) * 3;
        (0..SIZE * SIZE).flat_map(|i| bytes[pixel(i)..pixel(i) + 3].to_vec()).collect()
    };
    (0..=actions.len()).map(frame).collect()
}

/// The arrays of an npz file, without their headers.
pub fn arrays(file: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let mut archive = zip::ZipArchive::new(Cursor::new(file)).unwrap();
    let names: Vec<String> = archive.file_names().map(String::from).collect();
    let mut array = |name: &String| {
        let mut bytes = Vec::new();
        archive.by_name(name).unwrap().read_to_end(&mut bytes).unwrap();
        let header = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
        bytes.split_off(header)
    };
    names.iter().map(|name| (name.clone(), array(name))).collect()
}
