//! The replay: a table of episodes as JSON up to the first zero byte, the length of `000000.steps` in two bytes, that file, and
//! `000000.frames`. Whatever is accepted can be sampled and read.
#![no_main]

use agent::{Record, Replay, Table};
use engine::{Key, Rng};

const FRAME: usize = 12;

fuzz::target! {
    seeds: {
        let folder = fuzz::folder().join("seed");
        let mut replay = Replay::open(&folder, FRAME, 100, Table::default()).unwrap();
        replay.begin_writing().unwrap();
        for (episode, len) in [3, 2].into_iter().enumerate() {
            replay.begin_episode(episode as u64, false);
            for step in 0..len {
                let record = Record { action: 1, reward: 0.5, end: episode == 0 && step + 1 == len };
                replay.push(&[7; FRAME], record).unwrap();
            }
        }
        replay.flush().unwrap();
        let [steps, frames] = ["steps", "frames"].map(|kind| std::fs::read(folder.join(format!("000000.{kind}"))).unwrap());
        let table = serde_json::to_vec(replay.table()).unwrap();
        vec![[&table[..], &[0], &(steps.len() as u16).to_le_bytes(), &steps, &frames].concat()]
    },
    factor: 64,
    constant: 1 << 16,
    |data: &[u8]| {
        let zero = data.iter().position(|&byte| byte == 0).unwrap_or(data.len());
        let Ok(table) = serde_json::from_slice::<Table>(&data[..zero]) else { return };
        if table.check().is_err() {
            return;
        }
        let rest = data.get(zero + 1..).unwrap_or_default();
        let Some((len, rest)) = rest.split_at_checked(2) else { return };
        let (steps, frames) = rest.split_at(usize::from(u16::from_le_bytes([len[0], len[1]])).min(rest.len()));
        let folder = fuzz::folder();
        std::fs::write(folder.join("000000.steps"), steps).unwrap();
        std::fs::write(folder.join("000000.frames"), frames).unwrap();
        let Ok(mut replay) = Replay::open(folder, FRAME, 100, table) else { return };
        let Ok(damaged) = replay.damaged_episodes() else { return };
        replay.forget(&damaged.iter().map(|(episode, _)| *episode).collect::<Vec<_>>());
        assert!(replay.table().check().is_ok(), "{:?}", replay.table());
        if replay.steps() == 0 {
            return;
        }
        let (mut rng, mut frame) = (Rng::new(Key::new(0, 0)), [0; FRAME]);
        for _ in 0..4 {
            for segment in [replay.sample_starting(&mut rng, 3), replay.sample_ending(&mut rng, 3)] {
                for record in segment.records() {
                    replay.frame(record, &mut frame).unwrap();
                    replay.record(record).unwrap();
                }
            }
        }
    },
}
