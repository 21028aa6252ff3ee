//! The replay: what is written comes back, after crashes and damage too.

use std::time::Instant;

use engine::{Key, Rng};

use super::*;
use crate::testing::Scratch;

fn open(folder: &Scratch, max_steps: usize, table: Table) -> Result<Replay> {
    open_games(folder, max_steps, 1, table)
}

fn open_games(folder: &Scratch, max_steps: usize, games: usize, table: Table) -> Result<Replay> {
    let mut replay = Replay::with_shards(&folder.0, 4, max_steps, games, table, 4)?;
    replay.begin_writing()?;
    Ok(replay)
}

/// The first shard as older programs wrote it.
fn raw_shard(folder: &Scratch, frame_bytes: usize) -> shard::RawShard {
    let parts = shard::parts(&folder.0, 0, shard::RAW, Access::Write).unwrap();
    shard::RawShard::new(parts, 0, frame_bytes)
}

fn read(folder: &Scratch, table: &Table) -> Replay {
    Replay::with_shards(&folder.0, 4, 1000, 1, table.clone(), 4).unwrap()
}

/// A step that ends its episode, or does not.
fn step(action: u32, reward: f32, end: bool) -> Record {
    Record { action, reward, terminated: end, truncated: false }
}

fn fill(replay: &mut Replay, lengths: &[usize]) {
    for (episode, &len) in lengths.iter().enumerate() {
        replay.begin_episode(episode as u64, false);
        for i in 0..len {
            let number = replay.table().records as u8;
            let record = step(u32::from(number), 0.5, i + 1 == len);
            replay.push(&[number; 4], record).unwrap();
        }
    }
}

#[test]
fn steps_come_back_and_survive_reopening() {
    let folder = Scratch::new("reopen");
    let mut replay = open(&folder, 1000, Table::default()).unwrap();
    fill(&mut replay, &[3, 2]);
    replay.begin_episode(9, false);
    replay.push(&[7; 4], step(1, -1.0, false)).unwrap();
    let table = replay.table().clone();
    assert_eq!(replay.open_episode(0).unwrap().seed, 9);
    // Written after the checkpoint, then a crash.
    replay.push(&[8; 4], step(2, 0.0, true)).unwrap();
    drop(replay);
    let replay = open(&folder, 1000, table.clone()).unwrap();
    assert_eq!(replay.table(), &table);
    let mut frame = [0; 4];
    replay.frame(5, &mut frame).unwrap();
    assert_eq!((frame, replay.record(5).unwrap()), ([7; 4], step(1, -1.0, false)));
    assert!(replay.frame(6, &mut frame).is_err() && replay.frame(9, &mut frame).is_err());
    // Six records in shards of four; frames so small are not compressed.
    let newest = folder.0.join("000001.data");
    assert_eq!(std::fs::metadata(&newest).unwrap().len(), 8);
    assert!(replay.damaged_episodes().unwrap().is_empty());
    drop(replay);
    // A changed byte is noticed, and its episode can be forgotten.
    std::fs::write(&newest, [4, 4, 4, 4, 3, 3, 3, 2]).unwrap();
    let mut replay = open(&folder, 1000, table.clone()).unwrap();
    let damaged = replay.damaged_episodes().unwrap();
    assert!(matches!(damaged[..], [(2, ReplayError::Damaged { record: 5, .. })]), "{damaged:?}");
    assert!(matches!(replay.frame(5, &mut frame), Err(ReplayError::Damaged { record: 5, .. })));
    replay.frame(4, &mut frame).unwrap();
    replay.forget(&[2]);
    assert_eq!((replay.steps(), replay.open_episode(0)), (5, None));
    drop(replay);
    // So is a file that is gone, which a reader leaves so.
    std::fs::remove_file(&newest).unwrap();
    let damaged = read(&folder, &table).damaged_episodes().unwrap();
    assert!(matches!(damaged[..], [(1, ReplayError::CutOff { record: 4, .. }), _]), "{damaged:?}");
    assert!(!newest.exists());
    // So is one that lost its end.
    std::fs::write(&newest, [4, 4, 4, 4, 3, 3, 3]).unwrap();
    let damaged = open(&folder, 1000, table.clone()).unwrap().damaged_episodes().unwrap();
    assert!(matches!(damaged[..], [(2, ReplayError::CutOff { record: 5, .. })]), "{damaged:?}");
    assert!(damaged[0].1.to_string().contains("000001.data lacks record 5"), "{damaged:?}");
    // A key that is damaged takes with it what was packed relative to it.
    std::fs::write(&newest, [4, 4, 4, 5, 3, 3, 3, 3]).unwrap();
    let damaged = read(&folder, &table).damaged_episodes().unwrap();
    assert!(
        matches!(
            damaged[..],
            [(1, ReplayError::Damaged { record: 4, .. }), (2, ReplayError::Damaged { record: 4, .. })]
        ),
        "{damaged:?}"
    );
}

/// The game's two ends are kept apart, also over a restart. Older programs wrote one flag for both.
#[test]
fn terminated_and_truncated_are_kept_apart() {
    let folder = Scratch::new("ends");
    let mut replay = open(&folder, 1000, Table::default()).unwrap();
    let ends = [(false, false), (true, false), (false, true), (true, true)];
    let records =
        ends.map(|(terminated, truncated)| Record { action: 2, reward: 1.0, terminated, truncated });
    for record in records {
        if replay.open_episode(0).is_none() {
            replay.begin_episode(0, false);
        }
        replay.push(&[0; 4], record).unwrap();
    }
    replay.flush().unwrap();
    let table = replay.table().clone();
    assert_eq!(
        table.episodes.iter().map(|e| (e.len, e.ended)).collect::<Vec<_>>(),
        [(2, true), (1, true), (1, true)]
    );
    drop(replay);
    let replay = read(&folder, &table);
    assert_eq!([0, 1, 2, 3].map(|record| replay.record(record).unwrap()), records);
    assert!(replay.damaged_episodes().unwrap().is_empty());
    let flag = |byte: u8| Record::from_bytes(&[2, 0, 0, 0, 0, 0, 128, 63, byte]);
    assert_eq!([0, 1].map(flag), [records[0], records[1]]);
    assert_eq!(records.map(|record| record.to_bytes()[8]), [0, 1, 2, 3]);
}

/// Whatever bit changes in the files, what is read is what was written, or an error.
#[test]
fn no_changed_bit_goes_unnoticed() {
    let folder = Scratch::new("bits");
    let mut replay = open(&folder, 1000, Table::default()).unwrap();
    fill(&mut replay, &[3, 4]);
    let table = replay.table().clone();
    for name in ["000000.index", "000000.data", "000001.index", "000001.data"] {
        let path = folder.0.join(name);
        let good = std::fs::read(&path).unwrap();
        for bit in 0..8 * good.len() {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, bytes).unwrap();
            let changed = read(&folder, &table);
            let damaged = changed.damaged_episodes().unwrap();
            assert!(
                !damaged.is_empty() && damaged[0].1.to_string().contains(name),
                "{name}, {bit}: {damaged:?}"
            );
            for record in 0..table.records {
                let mut frame = [0; 4];
                let same = |found: Result<Record>, written: Result<Record>| {
                    found.is_err() || found.unwrap() == written.unwrap()
                };
                assert!(same(changed.record(record), Ok(step(record as u32, 0.5, [2, 6].contains(&record)))));
                assert!(changed.frame(record, &mut frame).is_err() || frame == [record as u8; 4]);
            }
        }
        std::fs::write(&path, good).unwrap();
    }
    // Another run's replay has its own checksums, but not those of the episodes.
    let other = Scratch::new("other");
    let mut replay = open(&other, 1000, Table::default()).unwrap();
    fill(&mut replay, &[4, 3]);
    let damaged = read(&other, &table).damaged_records().unwrap();
    assert!(
        matches!(damaged[..], [(0, ReplayError::Foreign { .. }), (1, ReplayError::Foreign { .. })]),
        "{damaged:?}"
    );
    assert!(read(&folder, &table).damaged_records().unwrap().is_empty());
}

/// What is written after a crash is what was written before it, also in the middle of a group of frames.
#[test]
fn the_same_bytes_are_written_again() {
    let folder = Scratch::new("again");
    let files = || {
        KINDS[..2]
            .iter()
            .map(|kind| std::fs::read(shard::path(&folder.0, 0, kind)).unwrap())
            .collect::<Vec<_>>()
    };
    let big = |max: usize, table: Table| {
        let mut replay = Replay::with_shards(&folder.0, 192, max, 1, table, 64).unwrap();
        replay.begin_writing().unwrap();
        replay
    };
    let push = |replay: &mut Replay, number: u8| {
        if replay.open_episode(0).is_none() {
            replay.begin_episode(0, false);
        }
        let mut frame = [7; 192];
        frame[usize::from(number)] = number;
        replay.push(&frame, step(0, 0.0, false)).unwrap();
    };
    let mut replay = big(1000, Table::default());
    let mut tables = vec![replay.table().clone()];
    for number in 0..30 {
        push(&mut replay, number);
        tables.push(replay.table().clone());
    }
    drop(replay);
    let whole = files();
    assert!(whole[1].len() < 30 * 40, "{} bytes", whole[1].len());
    for (cut, table) in tables.iter().enumerate() {
        let mut replay = big(1000, table.clone());
        (cut..30).for_each(|number| push(&mut replay, number as u8));
        assert_eq!(replay.table(), &tables[30]);
        assert!(files() == whole, "cut at {cut}");
        assert!(replay.damaged_episodes().unwrap().is_empty());
    }
    // Steps after a record and a key that are lost can be read, and what lies before them stays.
    let mut table = tables[30].clone();
    table.episodes.clear();
    std::fs::write(folder.0.join("000000.index"), &whole[0][..20 * whole[0].len() / 30]).unwrap();
    let mut replay = big(1000, table);
    (30..40).for_each(|number| push(&mut replay, number));
    assert!(replay.damaged_episodes().unwrap().is_empty());
    assert_eq!((replay.steps(), replay.table().episodes[0].start), (10, 30));
    assert!(files()[1].starts_with(&whole[1]));
}

/// A run of an older program goes on in its last shard as it was, and then with compressed ones.
#[test]
fn shards_of_older_programs_are_read_and_filled() {
    let folder = Scratch::new("raw");
    std::fs::create_dir_all(&folder.0).unwrap();
    let old = raw_shard(&folder, 4);
    let record = |number: u8| step(u32::from(number), 0.5, number == 1);
    for number in 0..3 {
        old.push(usize::from(number), &[number; 4], record(number)).unwrap();
    }
    let table = Table { episodes: vec![Episode::plain(0, 2, true)], records: 2 };
    let mut replay = open(&folder, 1000, table).unwrap();
    fill(&mut replay, &[4]);
    let mut names: Vec<_> = std::fs::read_dir(&folder.0).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["000000.frames", "000000.steps", "000001.data", "000001.index"]);
    assert!(replay.damaged_episodes().unwrap().is_empty());
    for number in 0..6 {
        let mut frame = [0; 4];
        replay.frame(number, &mut frame).unwrap();
        assert_eq!((frame, replay.record(number).unwrap().action), ([number as u8; 4], number as u32));
    }
    // Its records are not believed either, and a checkpoint that ends an episode elsewhere is noticed.
    let table = replay.table().clone();
    let path = folder.0.join("000000.steps");
    let good = std::fs::read(&path).unwrap();
    for bit in 0..8 * 13 {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&path, bytes).unwrap();
        let error = read(&folder, &table).record(0).unwrap_err();
        assert!(error.to_string().contains("000000.frames or .steps is damaged: record 0"), "{error}");
    }
    std::fs::write(&path, good).unwrap();
    let mut short = table.clone();
    short.episodes[0].len = 1;
    let damaged = read(&folder, &short).damaged_episodes().unwrap();
    assert!(matches!(damaged[..], [(0, ReplayError::Foreign { start: 0, last: 0, .. })]), "{damaged:?}");
}

#[test]
fn a_reader_leaves_alone_what_is_being_written() {
    let folder = Scratch::new("reader");
    let mut replay = open(&folder, 1000, Table::default()).unwrap();
    fill(&mut replay, &[3]);
    let table = replay.table().clone();
    fill(&mut replay, &[6]);
    let reader = read(&folder, &table);
    assert_eq!(reader.table(), &table);
    let mut frame = [0; 4];
    replay.frame(8, &mut frame).unwrap();
    assert_eq!(frame, [8; 4]);
}

#[test]
fn a_game_that_lost_a_life_is_not_played_on() {
    let folder = Scratch::new("lives");
    let mut replay = open(&folder, 1000, Table::default()).unwrap();
    fill(&mut replay, &[2, 1]);
    for end in [true, true, false] {
        replay.begin_episode(0, true);
        replay.push(&[0; 4], step(0, 0.0, end)).unwrap();
    }
    let starts =
        |replay: &Replay| -> Vec<usize> { replay.whole_newest_game(0).iter().map(|e| e.start).collect() };
    assert_eq!((starts(&replay), replay.open_episode(0).is_some()), (vec![2, 3, 4, 5], true));
    let table = replay.table().clone();
    // Its first life, one in the middle, the newest, another game's.
    for (forgotten, whole) in [(1, false), (3, false), (4, false), (0, true)] {
        let mut replay = open(&folder, 1000, table.clone()).unwrap();
        replay.forget(&[forgotten]);
        assert_eq!((!starts(&replay).is_empty(), replay.open_episode(0).is_some()), (whole, whole));
    }
}

#[test]
fn the_oldest_episodes_go_first() {
    let folder = Scratch::new("evict");
    let mut replay = open(&folder, 6, Table::default()).unwrap();
    fill(&mut replay, &[4, 3, 3, 2]);
    assert_eq!(replay.table().episodes.iter().map(|e| e.start).collect::<Vec<_>>(), [4, 7, 10]);
    assert_eq!(replay.steps(), 8);
    // Their bytes go when the caller says that no checkpoint needs them.
    replay.discard_before(replay.table().episodes[0].start).unwrap();
    assert!(!folder.0.join("000000.index").exists() && !folder.0.join("000000.data").exists());
    let table = replay.table().clone();
    drop(replay);
    let mut replay = open(&folder, 6, table).unwrap();
    let mut frame = [0; 4];
    replay.frame(4, &mut frame).unwrap();
    assert_eq!(frame, [4; 4]);
    // The lives of the game being played stay together.
    for _ in 0..3 {
        replay.begin_episode(0, true);
        (0..5).for_each(|i| {
            let record = step(0, 0.0, i == 4);
            replay.push(&[0; 4], record).unwrap();
        });
    }
    assert_eq!(replay.table().episodes.iter().map(|e| e.start).collect::<Vec<_>>(), [10, 12, 17, 22]);
}

#[test]
fn segments_stay_inside_their_episode() {
    let folder = Scratch::new("segments");
    let mut replay = open(&folder, 1000, Table::default()).unwrap();
    fill(&mut replay, &[3, 10]);
    let mut rng = Rng::new(Key::new(0, 0));
    let mut seen = [0; 13];
    for _ in 0..5000 {
        let ending = replay.sample_ending(&mut rng, 5);
        assert_eq!(ending.pad_before + ending.len, 5);
        let segment = replay.sample_starting(&mut rng, 5);
        assert!(segment.len >= 1 && segment.pad_before + segment.len <= 5);
        for s in [ending, segment] {
            let episode = if s.first < 3 { 0..3 } else { 3..13 };
            assert!(episode.contains(&s.first) && s.first + s.len <= episode.end);
        }
        seen[replay.sample_step(&mut rng)] += 1;
    }
    // Episodes are equally likely, so steps of the short one are more so.
    let short: usize = seen[..3].iter().sum();
    assert!((2300..2700).contains(&short), "{seen:?}");
    assert!(seen.iter().all(|&n| n > 100), "{seen:?}");
}

/// Three games in turns, with episodes of lengths 2, 3 and 4; each frame and action says game and step.
fn fill_in_turns(replay: &mut Replay, rounds: usize) {
    for _ in 0..3 * rounds {
        let (record, game) = (replay.table().records, replay.table().records % 3);
        if replay.open_episode(game).is_none() {
            replay.begin_episode(record as u64, false);
        }
        let done = replay.open_episode(game).unwrap().len;
        let (frame, action) = ([(10 * game + done) as u8; 4], game as u32);
        replay.push(&frame, step(action, done as f32, done == game + 1)).unwrap();
    }
}

#[test]
fn games_in_turns_have_episodes_of_their_own() {
    let folder = Scratch::new("turns");
    let mut replay = open_games(&folder, 1000, 3, Table::default()).unwrap();
    fill_in_turns(&mut replay, 7);
    let table = replay.table().clone();
    assert_eq!(table.check(3), Ok(()));
    let episodes = |game| -> Vec<(usize, usize, bool)> {
        let of = table.episodes.iter().filter(|e| e.game() == game);
        of.map(|e| (e.start, e.len, e.ended)).collect()
    };
    assert_eq!(episodes(0), [(0, 2, true), (6, 2, true), (12, 2, true), (18, 1, false)]);
    assert_eq!(episodes(1), [(1, 3, true), (10, 3, true), (19, 1, false)]);
    assert_eq!(episodes(2), [(2, 4, true), (14, 3, false)]);
    // No sample leaves its episode: frames show the game and successive steps.
    let mut rng = Rng::new(Key::new(0, 0));
    let mut frame = [0; 4];
    let mut seen = [0; 21];
    for _ in 0..3000 {
        for segment in [replay.sample_starting(&mut rng, 3), replay.sample_ending(&mut rng, 3)] {
            let records: Vec<usize> = segment.records().collect();
            let number = |record: &usize| replay.record(*record).map(|r| (r.action, r.reward)).unwrap();
            let first = number(&records[0]);
            for (i, record) in records.iter().enumerate() {
                assert_eq!(number(record), (first.0, first.1 + i as f32));
                replay.frame(*record, &mut frame).unwrap();
                assert_eq!(frame[0], (10 * first.0) as u8 + first.1 as u8 + i as u8);
            }
        }
        seen[replay.sample_step(&mut rng)] += 1;
    }
    assert!(seen.iter().all(|&n| n > 40), "{seen:?}");
    for (record, step) in [(14, Some(0)), (17, Some(1)), (20, Some(2)), (15, None), (11, None), (23, None)] {
        assert_eq!(replay.open_episode(2).unwrap().step_of(record), step, "{record}");
    }
    replay.flush().unwrap();
    drop(replay);
    // After a crash each goes on where it was.
    let mut replay = open_games(&folder, 1000, 3, table.clone()).unwrap();
    assert!(replay.damaged_episodes().unwrap().is_empty() && replay.damaged_records().unwrap().is_empty());
    assert_eq!(replay.whole_newest_game(2).iter().map(|e| e.start).collect::<Vec<_>>(), [14]);
    fill_in_turns(&mut replay, 1);
    assert_eq!([0, 1, 2].map(|game| replay.newest_episode(game).unwrap().len), [2, 2, 4]);
    assert_eq!([0, 1, 2].map(|game| replay.open_episode(game).is_some()), [false, true, false]);
    // A game that lost its open episode is not played on; the others are.
    let mut replay = open_games(&folder, 1000, 3, table.clone()).unwrap();
    let lost = table.episodes.iter().position(|e| e.start == 19).unwrap();
    replay.forget(&[lost]);
    assert_eq!([0, 1, 2].map(|game| replay.open_episode(game).is_some()), [true, false, true]);
    assert_eq!(replay.table().check(3), Ok(()));
    drop(replay);
    // The oldest go first, but none that is being played.
    let mut replay = open_games(&folder, 6, 3, table).unwrap();
    fill_in_turns(&mut replay, 1);
    let starts: Vec<usize> = replay.table().episodes.iter().map(|e| e.start).collect();
    assert_eq!((starts, replay.steps()), (vec![14, 18, 19], 8));
}

/// How long it takes to read a batch of frames, from shards of older programs and from packed ones:
/// `cargo test --release -p agent --lib reading_a_batch -- --ignored --nocapture`, with IRIS_ALE_DIR and `--features envs/atari` on Atari's frames.
#[test]
#[ignore = "measures time"]
fn reading_a_batch() {
    let atari = envs::Game::find("atari/Boxing").and_then(|game| game.make(envs::Purpose::Train, 64)).is_ok();
    let games = if atari {
        ["atari/Breakout", "atari/Pong", "atari/Boxing"]
    } else {
        ["arcade/catch", "arcade/pong", "arcade/breakout"]
    };
    for (name, size, batch) in games.into_iter().flat_map(|name| [(name, 32, 64), (name, 64, 256)]) {
        let bytes = size * size * 3;
        let folders = [Scratch::new("time-raw"), Scratch::new("time-packed")];
        folders.iter().for_each(|folder| std::fs::create_dir_all(&folder.0).unwrap());
        let mut raw = Shard::Raw(raw_shard(&folders[0], bytes));
        let mut packed = Shard::open(&folders[1].0, 0, 0, bytes, Access::Write).unwrap();
        let mut env = envs::Game::find(name).unwrap().make(envs::Purpose::Train, size).unwrap();
        let mut rng = Rng::new(Key::new(0, 0));
        let mut frame = vec![0; bytes];
        env.reset(0).unwrap();
        let mut writing = [0.0; 2];
        for at in 0..SHARD {
            env.render(&mut frame);
            let outcome = env.step(rng.below(env.action_names().len() as u32) as usize).unwrap();
            let record = Record::new(0, outcome);
            for (shard, seconds) in [&mut raw, &mut packed].into_iter().zip(&mut writing) {
                let started = Instant::now();
                shard.push(at, &frame, record).unwrap();
                *seconds += started.elapsed().as_secs_f64();
            }
            if outcome.done() {
                env.reset(at as u64).unwrap();
            }
        }
        let mut scratch = packed::Scratch::default();
        let mut time = |shard: &Shard| {
            let mut best = f64::MAX;
            for _ in 0..20 {
                let records: Vec<usize> = (0..batch).map(|_| rng.below(SHARD as u32) as usize).collect();
                let started = Instant::now();
                for at in records {
                    shard.read(at, &mut frame, &mut scratch).unwrap();
                }
                best = best.min(started.elapsed().as_secs_f64());
            }
            1e6 * best
        };
        let (raw, packed) = (time(&raw), time(&packed));
        let len = |path: &str| std::fs::metadata(folders[1].0.join(path)).unwrap().len() as usize;
        let step = (len("000000.data") + len("000000.index")) / SHARD;
        println!(
            "{name}, {batch} frames of {size} pixels: {raw:.0} us as they are, {packed:.0} us packed; {step} bytes per step; writing one {:.1} and {:.1} us",
            1e6 * writing[0] / SHARD as f64,
            1e6 * writing[1] / SHARD as f64
        );
    }
}
