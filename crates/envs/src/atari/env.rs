//! An Atari game as an environment: no-ops, lives, frame skip and time limits around the emulator.

use std::path::PathBuf;

use ale::{Action, AleError, Cartridge, Emulator, Settings};

use super::protocol::Protocol;
use super::roms;
use super::view::{self, View};
use crate::{Env, EnvError, Random, Step};

/// Seed of the emulator until the first reset. Without sticky actions it changes nothing.
const EMULATOR_SEED: u32 = 0;
/// A game begins as after this many others at most.
const GAMES_BEFORE: usize = 64;
/// Pixels of a frame's side where no other size is asked for: the paper's.
const SIZE: usize = 64;

/// A game on the emulator, in episodes and steps of several frames.
pub struct Atari {
    emulator: Emulator,
    protocol: Protocol,
    view: View,
    /// Height and width of a frame.
    size: (usize, usize),
    /// The last two raw frames of a step, resized. A step that ends early leaves those of the step before it.
    last: [Vec<u8>; 2],
    /// What the player sees.
    frame: Vec<u8>,
    /// Since the game began, with the no-ops.
    raw_frames: u32,
    lives: i32,
    life_lost: bool,
}

impl Atari {
    /// `title` is the game's name in the literature, such as `Breakout`.
    pub fn new(title: &str, protocol: Protocol) -> Result<Atari, EnvError> {
        let no_such_game = || EnvError::NoSuchGame { name: title.to_string(), suggestion: None };
        let cartridge = Cartridge::find(title).ok_or_else(no_such_game)?;
        let (path, rom) = roms::read(cartridge)?;
        Atari::with_rom(cartridge, path, &rom, protocol)
    }

    pub(super) fn with_rom(
        cartridge: &'static Cartridge,
        path: PathBuf,
        rom: &[u8],
        protocol: Protocol,
    ) -> Result<Atari, EnvError> {
        let (frame_skip, sticky) = (protocol.frames_per_act(), protocol.sticky);
        let settings = Settings { seed: EMULATOR_SEED, frame_skip, sticky };
        let emulator = Emulator::new(cartridge, rom, settings).map_err(|reason| match reason {
            AleError::WrongRom { .. } => EnvError::BadRom { path, reason: reason.to_string() },
            other => EnvError::Emulator { reason: other.to_string() },
        })?;
        let size = (SIZE, SIZE);
        Ok(Atari {
            protocol,
            view: View::new(&emulator, size),
            size,
            last: [blank_frame(size), blank_frame(size)],
            frame: blank_frame(size),
            raw_frames: 0,
            lives: emulator.lives(),
            life_lost: false,
            emulator,
        })
    }

    /// Starts an episode: a new game, the one that follows `games` others on a fresh console, unless only a life was lost.
    pub(super) fn start(&mut self, games: u32, noops: usize) -> Result<(), AleError> {
        if self.life_lost {
            // The frame of a step without an action, whatever that step brings.
            self.play(Action::Noop)?;
        } else {
            self.begin(games)?;
            for _ in 0..noops {
                self.act(Action::Noop)?;
                if self.over() {
                    self.begin(games)?;
                }
            }
            self.view.draw(&self.emulator, &mut self.frame);
        }
        self.lives = self.emulator.lives();
        self.life_lost = false;
        Ok(())
    }

    fn begin(&mut self, games: u32) -> Result<(), AleError> {
        self.raw_frames = 0;
        self.emulator.begin(games)
    }

    /// Gives the emulator an action once.
    fn act(&mut self, action: Action) -> Result<i32, AleError> {
        self.raw_frames = self.raw_frames.saturating_add(self.protocol.frames_per_act());
        self.emulator.act(action)
    }

    /// Whether the game is over or cut off.
    fn over(&self) -> bool {
        self.emulator.game_over() || self.raw_frames >= self.protocol.time_limit
    }

    /// Plays an action for a step's frames, or up to the game's end, and returns the points made.
    fn play(&mut self, action: Action) -> Result<i32, AleError> {
        let mut points = 0;
        for left in (0..self.protocol.acts()).rev() {
            points += self.act(action)?;
            if let Some(frame) = self.last.get_mut(left) {
                self.view.draw(&self.emulator, frame);
            }
            if self.over() {
                break;
            }
        }
        let [newest, before] = &self.last;
        for ((pixel, a), b) in self.frame.iter_mut().zip(newest).zip(before) {
            *pixel = *a.max(b);
        }
        Ok(points)
    }
}

impl Env for Atari {
    fn action_names(&self) -> Vec<String> {
        self.emulator.actions().iter().map(|action| action.name().to_string()).collect()
    }

    fn frame_size(&self) -> (usize, usize) {
        self.size
    }

    fn set_frame_size(&mut self, size: (usize, usize)) -> bool {
        self.size = size;
        self.view = View::new(&self.emulator, size);
        self.last = [blank_frame(size), blank_frame(size)];
        self.frame = blank_frame(size);
        true
    }

    fn reset(&mut self, seed: u64) -> Result<(), EnvError> {
        let mut random = Random::new(seed);
        if !self.life_lost && self.protocol.sticky > 0.0 {
            self.emulator.seed(random.next_u64() as u32);
        }
        let noops = match self.protocol.most_noops {
            0 => 0,
            most => 1 + random.below(most),
        };
        let games = random.below(GAMES_BEFORE) as u32;
        self.start(games, noops).map_err(failed)
    }

    fn step(&mut self, action: usize) -> Result<Step, EnvError> {
        let actions = self.emulator.actions();
        let no_such_action = EnvError::NoSuchAction { action, count: actions.len() };
        let action = *actions.get(action).ok_or(no_such_action)?;
        let points = self.play(action).map_err(failed)?;
        let lives = self.emulator.lives();
        let life_lost = self.protocol.life_loss_ends && !self.over() && 0 < lives && lives < self.lives;
        self.life_lost = life_lost && self.protocol.lives_continue;
        self.lives = lives;
        let terminated = self.emulator.game_over() || life_lost;
        let points = if self.protocol.clip_rewards { points.signum() } else { points };
        Ok(Step { reward: points as f32, terminated, truncated: self.over() && !terminated })
    }

    fn render(&self, frame: &mut [u8]) {
        frame.copy_from_slice(&self.frame);
    }

    fn continues(&self) -> bool {
        self.life_lost
    }

    fn info(&self) -> Vec<(String, f64)> {
        vec![("lives".into(), f64::from(self.lives)), ("raw_frames".into(), f64::from(self.raw_frames))]
    }

    fn full_frame(&self) -> Option<(usize, usize, Vec<u8>)> {
        let (height, width) = self.emulator.size();
        let mut pixels = vec![0; height * width * 3];
        view::colour(&self.emulator, self.emulator.screen(), &mut pixels);
        Some((height, width, pixels))
    }
}

fn blank_frame((height, width): (usize, usize)) -> Vec<u8> {
    vec![0; height * width * 3]
}

fn failed(reason: AleError) -> EnvError {
    EnvError::Emulator { reason: reason.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Game, Purpose, VectorEnv};

    /// Bytes of a frame.
    const BYTES: usize = SIZE * SIZE * 3;

    fn make(title: &str, purpose: Purpose) -> Atari {
        Atari::new(title, Protocol::new(purpose)).unwrap()
    }

    /// A mark of everything that an environment shows over so many steps with these actions, begun anew after each end.
    fn story(env: &mut dyn Env, seed: u64, steps: usize) -> Vec<(u64, Step)> {
        let (mut random, mut frame, mut records) = (Random::new(seed), vec![0; BYTES], Vec::new());
        env.reset(seed).unwrap();
        for _ in 0..steps {
            let step = env.step(random.below(env.action_names().len())).unwrap();
            env.render(&mut frame);
            let mix = |h: u64, byte: &u8| (h ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            records.push((frame.iter().fold(0xcbf2_9ce4_8422_2325, mix), step));
            if step.done() {
                env.reset(random.next_u64()).unwrap();
            }
        }
        records
    }

    #[test]
    fn a_seed_and_actions_make_the_game_whatever_was_played_before() {
        for title in ["Assault", "Pong", "UpNDown"] {
            let mut env = make(title, Purpose::Train);
            let first = story(&mut env, 5, 150);
            // Another game in between, left in the middle of a life.
            env.life_lost = false;
            story(&mut env, 6, 100);
            env.life_lost = false;
            assert_eq!(story(&mut env, 5, 150), first, "{title}");
            assert_eq!(story(&mut make(title, Purpose::Train), 5, 150), first, "{title}");
        }
    }

    #[test]
    fn v5_repeats_actions_as_its_seed_says() {
        let game = Game::find("ALE/Breakout-v5").unwrap();
        let play = |seed| story(game.make(Purpose::Evaluate, SIZE).unwrap().as_mut(), seed, 100);
        assert_eq!(play(1), play(1));
        assert_ne!(play(1), play(2));
        let mut env = game.make(Purpose::Evaluate, SIZE).unwrap();
        env.reset(0).unwrap();
        env.step(0).unwrap();
        // One no-op and one step, four raw frames each.
        assert_eq!(env.info(), [("lives".into(), 5.0), ("raw_frames".into(), 8.0)]);
    }

    #[test]
    fn a_lost_life_ends_a_training_episode_and_the_game_goes_on() {
        let mut env = make("Breakout", Purpose::Train);
        env.reset(0).unwrap();
        assert_eq!(env.action_names(), ["NOOP", "FIRE", "RIGHT", "LEFT"]);
        let mut episodes = 0;
        for lives in [5.0, 4.0, 3.0, 2.0, 1.0] {
            assert_eq!(env.info()[0], ("lives".into(), lives));
            assert!(!env.continues());
            while !env.step(1).unwrap().done() {}
            episodes += 1;
            let raw_frames = env.info()[1].1;
            assert_eq!(env.continues(), lives > 1.0);
            env.reset(0).unwrap();
            assert_eq!(env.info()[1].1 > raw_frames, lives > 1.0);
        }
        assert_eq!(episodes, 5);
        assert_eq!(env.info()[0], ("lives".into(), 5.0));

        let mut whole = make("Breakout", Purpose::Evaluate);
        whole.reset(0).unwrap();
        while !whole.step(1).unwrap().done() {}
        assert_eq!(whole.info()[0], ("lives".into(), 0.0));
        assert!(!whole.continues());
    }

    #[test]
    fn a_time_limit_cuts_the_game_off() {
        let mut env =
            Atari::new("Pong", Protocol { time_limit: 50, ..Protocol::new(Purpose::Evaluate) }).unwrap();
        env.reset(0).unwrap();
        let steps: Vec<Step> = std::iter::from_fn(|| Some(env.step(0).unwrap())).take(13).collect();
        assert!(steps[..12].iter().all(|step| !step.done()));
        // The no-op, twelve steps of four frames, and one frame of the thirteenth.
        assert_eq!(steps[12], Step { reward: steps[12].reward, terminated: false, truncated: true });
        assert_eq!(env.info()[1], ("raw_frames".into(), 50.0));
    }

    /// The first games of a protocol that differs from the paper's in training.
    fn changed(change: impl Fn(&mut Protocol)) -> Atari {
        let mut protocol = Protocol::new(Purpose::Train);
        change(&mut protocol);
        Atari::new("Breakout", protocol).unwrap()
    }

    #[test]
    fn every_number_of_the_protocol_counts() {
        let paper = story(&mut make("Breakout", Purpose::Train), 1, 100);
        assert_eq!(story(&mut changed(|_| {}), 1, 100), paper);
        let sticky = |seed| story(&mut changed(|protocol| protocol.sticky = 0.5), seed, 100);
        assert_eq!(sticky(1), sticky(1));
        assert_ne!(sticky(1), paper);
        for noops in [0, 1] {
            let mut env = changed(|protocol| protocol.most_noops = noops);
            env.reset(1).unwrap();
            assert_eq!(env.info()[1], ("raw_frames".into(), noops as f64));
        }
        let mut env = changed(|protocol| (protocol.most_noops, protocol.frame_skip) = (0, 7));
        env.reset(1).unwrap();
        env.step(1).unwrap();
        assert_eq!(env.info()[1], ("raw_frames".into(), 7.0));
    }

    #[test]
    fn clipped_rewards_are_signs() {
        let protocol = Protocol::new(Purpose::Evaluate);
        let rewards = |clip_rewards| -> Vec<f32> {
            let mut env = Atari::new("Alien", Protocol { clip_rewards, ..protocol }).unwrap();
            story(&mut env, 2, 200).iter().map(|(_, step)| step.reward).collect()
        };
        let (raw, clipped) = (rewards(false), rewards(true));
        assert!(raw.iter().any(|reward| *reward > 1.0), "{raw:?}");
        let signs: Vec<f32> = raw.iter().map(|r| if *r == 0.0 { 0.0 } else { r.signum() }).collect();
        assert_eq!(clipped, signs);
    }

    /// Whoever evaluates resets to the game of a seed, not to what is left of another.
    #[test]
    fn an_evaluation_that_ends_with_a_life_begins_a_new_game() {
        let protocol = Protocol { life_loss_ends: true, ..Protocol::new(Purpose::Evaluate) };
        let mut env = Atari::new("Breakout", protocol).unwrap();
        env.reset(0).unwrap();
        let mut last = env.step(1).unwrap();
        while !last.done() {
            last = env.step(1).unwrap();
        }
        assert!(last.terminated && !env.continues());
        assert_eq!(env.info()[0], ("lives".into(), 4.0));
        env.reset(0).unwrap();
        assert_eq!(env.info(), [("lives".into(), 5.0), ("raw_frames".into(), 1.0)]);
    }

    #[test]
    fn an_action_it_does_not_have_changes_nothing() {
        let mut env = make("Pong", Purpose::Train);
        env.reset(0).unwrap();
        let before = env.info();
        assert!(matches!(env.step(6), Err(EnvError::NoSuchAction { action: 6, count: 6 })));
        assert_eq!(env.info(), before);
    }

    #[test]
    fn the_full_frame_is_what_the_frame_was_made_from() {
        let mut env = make("Seaquest", Purpose::Evaluate);
        env.reset(0).unwrap();
        let (height, width, pixels) = env.full_frame().unwrap();
        assert_eq!((height, width), (210, 160));
        let mut resized = vec![0; BYTES];
        crate::Resize::new((height, width), (SIZE, SIZE)).apply(&pixels, &mut resized, &mut Vec::new());
        assert_eq!(resized, env.frame);
    }

    /// The maximum of resized screens is not the resized maximum, nor the resized frame of another size.
    #[test]
    fn every_size_is_resized_from_the_screen_before_the_maximum() {
        let one_frame = Protocol { frame_skip: 1, ..Protocol::new(Purpose::Evaluate) };
        for (title, size) in [("Pong", 32), ("Seaquest", 96), ("Breakout", 256)] {
            let game = Game::find(&format!("atari/{title}")).unwrap();
            let mut env = game.make(Purpose::Evaluate, size).unwrap();
            assert_eq!(env.frame_size(), (size, size));
            // The same game frame by frame, so that each of its screens is seen.
            let mut raw = Atari::new(title, one_frame).unwrap();
            env.reset(3).unwrap();
            raw.reset(3).unwrap();
            let resize = crate::Resize::new((210, 160), (size, size));
            let (mut shown, mut differ) = (vec![0; size * size * 3], false);
            for step in 0..60 {
                let action = step % env.action_names().len();
                env.step(action).unwrap();
                let mut screens = Vec::new();
                for _ in 0..4 {
                    raw.step(action).unwrap();
                    let mut screen = vec![0; size * size * 3];
                    resize.apply(&raw.full_frame().unwrap().2, &mut screen, &mut Vec::new());
                    screens.push(screen);
                }
                let expected: Vec<u8> = screens[2].iter().zip(&screens[3]).map(|(a, b)| *a.max(b)).collect();
                env.render(&mut shown);
                assert!(shown == expected, "{title} at {size} pixels, step {step}");
                differ |= screens[2] != screens[3];
            }
            assert!(differ, "nothing moved in {title}");
        }
    }

    #[test]
    fn a_wrong_rom_is_refused_by_its_path() {
        let qbert = Cartridge::find("Qbert").unwrap();
        let protocol = Protocol::new(Purpose::Train);
        let error =
            Atari::with_rom(qbert, "some/qbert.bin".into(), &[0; 4096], protocol).map(|_| ()).unwrap_err();
        assert!(
            error.to_string().starts_with("some/qbert.bin cannot be used: this is not the ROM of Qbert"),
            "{error}"
        );
    }

    /// Eight games on eight threads, `steps` steps in all, against the same one after the other.
    fn side_by_side(steps: usize) {
        let titles = ["Breakout", "UpNDown", "Assault", "Seaquest", "Pong", "Alien", "Frostbite", "Boxing"];
        let play = |i: usize| story(&mut make(titles[i], Purpose::Train), i as u64, steps / titles.len());
        let together: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..titles.len()).map(|i| scope.spawn(move || play(i))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for (i, records) in together.iter().enumerate() {
            assert!(*records == play(i), "{} differs", titles[i]);
        }
    }

    #[test]
    fn eight_games_on_eight_threads_are_those_played_alone() {
        side_by_side(2_400);
    }

    /// 756 s of processor time when measured; most of it on one core.
    #[test]
    #[ignore = "long"]
    fn a_million_steps_on_eight_threads_are_those_played_alone_and_leak_nothing() {
        let resident = || -> usize {
            let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
            status.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0)
        };
        // Consoles come and go: what one leaves behind would add up.
        let switch_on_and_off = || (0..50).for_each(|_| drop(make("Breakout", Purpose::Train)));
        side_by_side(8_000);
        switch_on_and_off();
        let before = resident();
        switch_on_and_off();
        // A page is 4 KiB or more, and a console has more than 200 KiB.
        assert!(resident() < before + 500, "memory grew from {before} to {} pages", resident());
        side_by_side(1_000_000);
    }

    #[test]
    fn a_vector_of_games_plays_them() {
        let game = Game::find("atari/Pong").unwrap();
        let mut envs = VectorEnv::new((0..2).map(|_| game.make(Purpose::Train, SIZE).unwrap()).collect());
        envs.reset(&[Some(1), Some(2)]).unwrap();
        let steps = envs.step(&[Some(0), Some(2)]).unwrap();
        assert_eq!(steps, [Some(Step { reward: 0.0, terminated: false, truncated: false }); 2]);
        let mut frames = vec![0; 2 * BYTES];
        envs.render(&mut frames);
        assert_ne!(frames[..BYTES], frames[BYTES..]);
    }
}
