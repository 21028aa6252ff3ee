//! Games that people played, as episodes to learn from.

use std::path::Path;

use envs::{Env, EnvError, Game, Purpose};

use crate::EpisodesError;
use crate::episodes::{Frames, write};
use crate::replay::Record;

/// A game that somebody played in an environment for training: it is played again from its seed and actions, so that its frames need not be kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlayedGame {
    pub seed: u64,
    /// An action after the end of an episode belongs to the next one, where the game goes on with another life.
    pub actions: Vec<usize>,
}

/// A game that is being played again.
struct Again<'a> {
    env: Box<dyn Env>,
    game: &'a PlayedGame,
    frame: Vec<u8>,
    /// The next step.
    next: usize,
    over: bool,
}

impl<'a> Again<'a> {
    fn new(game: &Game, size: usize, played: &'a PlayedGame) -> Result<Again<'a>, EnvError> {
        let env = game.make(Purpose::Train, size)?;
        Ok(Again { env, game: played, frame: vec![0; size * size * 3], next: 0, over: true })
    }

    /// The next step and, in `frame`, what it began with; none when all were played, or the game is over before.
    fn step(&mut self) -> Result<Option<Record>, EnvError> {
        let Some(action) = self.game.actions.get(self.next).copied() else { return Ok(None) };
        if self.over {
            if self.next > 0 && !self.env.continues() {
                return Ok(None);
            }
            self.env.reset(self.game.seed)?;
        }
        self.env.render(&mut self.frame);
        let outcome = self.env.step(action)?;
        (self.next, self.over) = (self.next + 1, outcome.done());
        Ok(Some(Record::new(action as u32, outcome)))
    }
}

impl PlayedGame {
    /// Writes the game to a NumPy archive with frames of `size` x `size` pixels. An episode that nobody finished is cut off after its last step.
    /// Returns the number of episodes and of steps.
    pub fn write(&self, game: &Game, size: usize, path: &Path) -> Result<(usize, usize), EpisodesError> {
        let mut lengths = Vec::new();
        let (mut again, mut open) = (Again::new(game, size, self)?, 0);
        while let Some(record) = again.step()? {
            open += 1;
            if record.ended() {
                lengths.push(std::mem::take(&mut open));
            }
        }
        lengths.extend((open > 0).then_some(open));
        let mut again = Again::new(game, size, self)?;
        let read = |number: usize, frames: &mut Frames| {
            let mut records = Vec::with_capacity(lengths[number]);
            while records.len() < lengths[number] {
                let Some(mut record) = again.step()? else { break };
                frames(&again.frame)?;
                record.truncated |= records.len() + 1 == lengths[number] && !record.terminated;
                records.push(record);
            }
            Ok(records)
        };
        write(path, size, &lengths, read, |_| {})?;
        Ok((lengths.len(), lengths.iter().sum()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Archive;
    use crate::testing::Scratch;

    #[test]
    fn a_game_is_written_as_it_was_played_and_read_back() {
        let scratch = Scratch::new("by-hand");
        let path = scratch.0.join("game.npz");
        let game = Game::find("arcade/catch").unwrap();
        // Catch ends after some drops, so that some of these actions come after the end.
        let played = PlayedGame { seed: 7, actions: (0..30).map(|i| i % 3).collect() };
        let (episodes, steps) = played.write(&game, 32, &path).unwrap();
        let archive = Archive::open(&path).unwrap();
        assert_eq!((episodes, archive.size(), archive.records().len()), (1, 32, steps));
        assert!(
            archive.records()[steps - 1].ended() && !archive.records()[..steps - 1].iter().any(Record::ended)
        );

        let mut env = game.make(Purpose::Train, 32).unwrap();
        env.reset(7).unwrap();
        let mut frame = vec![0; 32 * 32 * 3];
        let mut frames = Vec::new();
        let keep = |frame: &[u8]| -> Result<(), EpisodesError> {
            frames.push(frame.to_vec());
            Ok(())
        };
        archive.frames(0..steps, keep).unwrap();
        for (step, seen) in frames.iter().enumerate() {
            env.render(&mut frame);
            assert!(frame == *seen, "step {step}");
            let outcome = env.step(played.actions[step]).unwrap();
            let record = archive.records()[step];
            assert_eq!((record.action as usize, record.reward), (played.actions[step], outcome.reward));
        }
        // A part of it.
        let mut some = Vec::new();
        archive
            .frames(2..4, |frame| -> Result<(), EpisodesError> {
                some.push(frame.to_vec());
                Ok(())
            })
            .unwrap();
        assert!(some[..] == frames[2..4]);

        // Whatever byte is another one: the same episodes, or an error.
        let good = std::fs::read(&path).unwrap();
        for at in (0..good.len()).step_by(7) {
            let mut damaged = good.clone();
            damaged[at] ^= 0x41;
            std::fs::write(&path, damaged).unwrap();
            let read = Archive::open(&path);
            assert!(read.is_err() || read.is_ok_and(|read| read.records() == archive.records()), "byte {at}");
        }

        // Nobody finished this one.
        let short = PlayedGame { actions: vec![1, 1], ..played };
        assert_eq!(short.write(&game, 32, &path).unwrap(), (1, 2));
        let cut = Archive::open(&path).unwrap().records()[1];
        assert!(cut.truncated && !cut.terminated);
    }
}
