//! The replay: a table of episodes as JSON up to the first zero byte, a byte that is 1 for compressed shards, and the two files of a
//! shard, the length of the first before it in two bytes. Whatever is accepted can be sampled and read.
#![no_main]

use agent::{Record, Replay, Table};
use engine::{Key, Rng};

const FRAME: usize = 48;

/// The files of older programs, and of this one.
const FILES: [[&str; 2]; 2] = [["000000.steps", "000000.frames"], ["000000.index", "000000.data"]];

fn input(table: &Table, packed: u8, files: [Vec<u8>; 2]) -> Vec<u8> {
    let table = serde_json::to_vec(table).unwrap();
    [&table[..], &[0, packed], &(files[0].len() as u16).to_le_bytes(), &files[0], &files[1]].concat()
}

fuzz::target! {
    seeds: {
        let folder = fuzz::folder().join("seed");
        let mut replay = Replay::open(&folder, FRAME, 100, 1, Table::default()).unwrap();
        replay.begin_writing().unwrap();
        for (episode, len) in [3, 2].into_iter().enumerate() {
            replay.begin_episode(episode as u64, false);
            for step in 0..len {
                let record = Record { action: 1, reward: 0.5, terminated: episode == 0 && step + 1 == len, truncated: false };
                replay.push(&[7; FRAME], record).unwrap();
            }
        }
        replay.flush().unwrap();
        let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
        let packed = input(replay.table(), 1, FILES[1].map(read));
        let (mut table, mut steps) = (replay.table().clone(), Vec::new());
        table.episodes.iter_mut().for_each(|episode| episode.checksum = None);
        for record in 0..5 {
            let step = [1, 0, 0, 0, 0, 0, 0, 63, u8::from(record == 2)];
            steps.extend([&step[..], &crc32fast::hash(&[&[7; FRAME], &step[..]].concat()).to_le_bytes()].concat());
        }
        vec![packed, input(&table, 0, [steps, vec![7; 5 * FRAME]])]
    },
    factor: 64,
    constant: 1 << 16,
    |data: &[u8]| {
        let zero = data.iter().position(|&byte| byte == 0).unwrap_or(data.len());
        let Ok(table) = serde_json::from_slice::<Table>(&data[..zero]) else { return };
        let games = table.episodes.first().map_or(1, |episode| episode.stride).clamp(1, 8);
        if table.check(games).is_err() {
            return;
        }
        let rest = data.get(zero + 1..).unwrap_or_default();
        let &[packed, low, high, ref rest @ ..] = rest else { return };
        let (first, second) = rest.split_at(usize::from(u16::from_le_bytes([low, high])).min(rest.len()));
        let folder = fuzz::folder();
        let [this, other] = if packed == 1 { [1, 0] } else { [0, 1] };
        for (name, bytes) in FILES[this].into_iter().zip([first, second]) {
            std::fs::write(folder.join(name), bytes).unwrap();
        }
        for name in FILES[other] {
            let _ = std::fs::remove_file(folder.join(name));
        }
        let Ok(mut replay) = Replay::open(folder, FRAME, 100, games, table) else { return };
        let Ok(damaged) = replay.damaged_episodes() else { return };
        replay.forget(&damaged.iter().map(|(episode, _)| *episode).collect::<Vec<_>>());
        assert!(replay.table().check(games).is_ok(), "{:?}", replay.table());
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
