//! Archives of episodes, as `export-episodes` writes them and `train --replay` reads them. Whatever is accepted has episodes that cover its steps, finite
//! rewards, and as many frames as the archive says, or an error for those that are missing.
#![no_main]

use agent::{Archive, EpisodesError, Record, Replay, Table, export_episodes};

const SIZE: usize = 2;
const NAMES: [&str; 6] =
    ["observations", "actions", "rewards", "terminations", "truncations", "episode_starts"];

/// An archive of the arrays that stand in the input, each after its length: checksums of a zip are hard to guess.
fn archive(data: &[u8]) -> Vec<u8> {
    let mut rest = data;
    let entries: Vec<(String, Vec<u8>)> = NAMES
        .iter()
        .filter_map(|name| {
            let (len, after) = rest.split_first_chunk::<2>()?;
            let (array, after) = after.split_at_checked(u16::from_le_bytes(*len).into())?;
            rest = after;
            Some((format!("{name}.npy"), array.to_vec()))
        })
        .collect();
    fuzz::zip(&entries)
}

/// The input that makes an archive of these bytes again.
fn arrays(zipped: &[u8]) -> Vec<u8> {
    let entries = fuzz::unzip(zipped);
    let array = |name: &&str| &entries.iter().find(|(entry, _)| *entry == format!("{name}.npy")).unwrap().1;
    NAMES
        .iter()
        .map(array)
        .flat_map(|array| [&(array.len() as u16).to_le_bytes(), &array[..]].concat())
        .collect()
}

fn read(archive: Archive) {
    assert!(archive.records().iter().all(|record| record.reward.is_finite()));
    let mut end = 0;
    for episode in archive.episodes() {
        assert!(episode.start == end && episode.end > end);
        end = episode.end;
    }
    assert_eq!(end, archive.records().len());
    // A large one is read as a small one is, for longer.
    if archive.size() > 64 {
        return;
    }
    let mut frames = 0;
    let read = archive.frames(0..end, |frame| -> Result<(), EpisodesError> {
        assert_eq!(frame.len(), archive.size().pow(2) * 3);
        frames += 1;
        Ok(())
    });
    assert!(read.is_err() || frames == end);
}

fuzz::target! {
    seeds: {
        let folder = fuzz::folder().join("seed");
        let frame = [7; SIZE * SIZE * 3];
        let mut replay = Replay::open(&folder, frame.len(), 100, 1, Table::default()).unwrap();
        replay.begin_writing().unwrap();
        for (episode, len) in [3, 2].into_iter().enumerate() {
            replay.begin_episode(episode as u64, false);
            for step in 0..len {
                let record = Record { action: 1, reward: 0.5, terminated: step + 1 == len, truncated: false };
                replay.push(&frame, record).unwrap();
            }
        }
        let episodes = replay.table().episodes.clone();
        let path = folder.join("episodes.npz");
        [&episodes[..], &episodes[..1]]
            .iter()
            .flat_map(|some| {
                export_episodes(&replay, some, SIZE, &path, |_| {}).unwrap();
                let zipped = std::fs::read(&path).unwrap();
                [arrays(&zipped), zipped]
            })
            .collect()
    },
    // Compressed a thousandfold at most, and parsed.
    factor: 1 << 13,
    // The zip crate's, for the entries that a zip can claim to have.
    constant: 16 << 20,
    |data: &[u8]| {
        for bytes in [data.to_vec(), archive(data)] {
            if let Ok(archive) = Archive::open(&fuzz::file(&bytes)) {
                read(archive);
            }
        }
    },
}
