//! A safe API over the C++ shim.

use std::ffi::{CStr, c_char, c_int};
use std::ptr::{NonNull, null_mut};

use crate::{Action, Cartridge};

/// A game console with a ROM in it.
pub struct Emulator {
    console: NonNull<ffi::Console>,
    actions: Vec<Action>,
    palette: Box<[[u8; 3]; 256]>,
    size: (usize, usize),
}

// SAFETY: a console is only reached through the pointer that this value owns, and nothing in it belongs to a thread.
unsafe impl Send for Emulator {}

/// How a console runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Seed of the sticky actions; without them it changes nothing.
    pub seed: u32,
    /// Frames that an action lasts.
    pub frame_skip: u32,
    /// Probability that a frame is played with the action of the one before it.
    pub sticky: f32,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AleError {
    #[error("this is not the ROM of {game} that ALE knows: its MD5 is {found}, not {expected}")]
    WrongRom { game: &'static str, found: String, expected: &'static str },

    #[error("a frame skip of {0} is not possible; it must be from 1 to 1000")]
    FrameSkip(u32),

    #[error("{0} is not a probability; sticky actions need one, from 0 to 1")]
    Sticky(String),

    #[error("the emulator failed: {0}")]
    Emulator(String),
}

impl Emulator {
    /// Switches a console on with the ROM of `cartridge`, given as the bytes of its file.
    pub fn new(cartridge: &'static Cartridge, rom: &[u8], settings: Settings) -> Result<Emulator, AleError> {
        if !(1..=1000).contains(&settings.frame_skip) {
            return Err(AleError::FrameSkip(settings.frame_skip));
        }
        if !(0.0..=1.0).contains(&settings.sticky) {
            return Err(AleError::Sticky(settings.sticky.to_string()));
        }
        let found = md5(rom)?;
        if found != cartridge.md5 {
            return Err(AleError::WrongRom { game: cartridge.game, found, expected: cartridge.md5 });
        }
        let (frame_skip, mut console) = (settings.frame_skip as c_int, null_mut());
        // ALE takes a signed seed, of which -1 would mean the time of day.
        let seed = (settings.seed & 0x7fff_ffff) as c_int;
        checked(|error, size| {
            // SAFETY: the ROM outlives the call, which copies it; its name ends with a zero; `console` has room for the answer.
            unsafe {
                let (bytes, count, name) = (rom.as_ptr(), rom.len(), cartridge.rom.as_ptr());
                ffi::iris_ale_new(
                    bytes,
                    count,
                    name,
                    seed,
                    frame_skip,
                    settings.sticky,
                    &mut console,
                    error,
                    size,
                )
            }
        })?;
        let console =
            NonNull::new(console).ok_or_else(|| AleError::Emulator("no console was made".into()))?;
        // From here on `console` is dropped with the emulator.
        let mut emulator =
            Emulator { console, actions: Vec::new(), palette: Box::new([[0; 3]; 256]), size: (0, 0) };
        emulator.describe()?;
        Ok(emulator)
    }

    /// Asks the console once for what does not change.
    fn describe(&mut self) -> Result<(), AleError> {
        let console = self.console.as_ptr();
        let mut numbers = [0; Action::ALL.len()];
        // SAFETY: the console is alive, and `numbers` has the 18 places that the shim may fill.
        let count = unsafe { ffi::iris_ale_actions(console, numbers.as_mut_ptr()) };
        let action = |number: &c_int| usize::try_from(*number).ok().and_then(|i| Action::ALL.get(i)).copied();
        let numbers = usize::try_from(count).ok().and_then(|count| numbers.get(..count));
        self.actions = numbers
            .and_then(|numbers| numbers.iter().map(action).collect())
            .ok_or_else(|| AleError::Emulator("the game's actions are not those of a joystick".into()))?;
        // SAFETY: the console is alive.
        self.size = unsafe { (ffi::iris_ale_height(console), ffi::iris_ale_width(console)) };
        for (number, colour) in (0..=u8::MAX).zip(self.palette.iter_mut()) {
            // SAFETY: the console is alive, and its palette has 256 entries.
            let [_, rgb @ ..] = unsafe { ffi::iris_ale_colour(console, number) }.to_be_bytes();
            *colour = rgb;
        }
        Ok(())
    }

    /// The actions that do something in this game: ALE's minimal set, in its order.
    pub fn actions(&self) -> &[Action] {
        &self.actions
    }

    /// Height and width of the screen.
    pub fn size(&self) -> (usize, usize) {
        self.size
    }

    /// Begins the game that follows `games` others on a console just switched on. Which that is matters to few games, through
    /// numbers that the console draws at random; what was really played before does not matter.
    pub fn begin(&mut self, games: u32) -> Result<(), AleError> {
        // SAFETY: the console is alive and not in use elsewhere.
        checked(|error, size| unsafe { ffi::iris_ale_begin(self.console.as_ptr(), games, error, size) })
    }

    /// Seeds the sticky actions anew.
    pub fn seed(&mut self, seed: u32) {
        // SAFETY: the console is alive and not in use elsewhere.
        unsafe { ffi::iris_ale_seed(self.console.as_ptr(), seed) }
    }

    /// Plays an action for `frame_skip` frames and returns the points it made. Nothing happens when the game is over.
    pub fn act(&mut self, action: Action) -> Result<i32, AleError> {
        let mut reward = 0;
        checked(|error, size| {
            // SAFETY: the console is alive and not in use elsewhere, and an `Action` is one of those ALE knows.
            unsafe { ffi::iris_ale_act(self.console.as_ptr(), action as c_int, &mut reward, error, size) }
        })?;
        Ok(reward)
    }

    pub fn lives(&self) -> i32 {
        // SAFETY: the console is alive; this only reads.
        unsafe { ffi::iris_ale_lives(self.console.as_ptr()) }
    }

    pub fn game_over(&self) -> bool {
        // SAFETY: the console is alive; this only reads.
        unsafe { ffi::iris_ale_game_over(self.console.as_ptr()) != 0 }
    }

    /// The screen, row by row, as numbers of colours in the palette.
    pub fn screen(&self) -> &[u8] {
        let (height, width) = self.size;
        // SAFETY: ALE keeps a screen of this size at one place for as long as the console lives, and changes it only in calls
        // that take the emulator mutably.
        unsafe { std::slice::from_raw_parts(ffi::iris_ale_screen(self.console.as_ptr()), height * width) }
    }

    /// Red, green and blue of each number.
    pub fn palette(&self) -> &[[u8; 3]; 256] {
        &self.palette
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        // SAFETY: the console was made by `iris_ale_new` and is not used after this.
        unsafe { ffi::iris_ale_free(self.console.as_ptr()) }
    }
}

/// The MD5 of a ROM, as ALE computes it.
fn md5(rom: &[u8]) -> Result<String, AleError> {
    // ALE counts in 32 bits; its largest ROM has half a megabyte.
    if rom.len() > 512 * 1024 {
        return Ok("that of a larger file".into());
    }
    let mut digits = [0u8; 33];
    checked(|error, size| {
        // SAFETY: `digits` has room for 32 digits and a zero.
        unsafe { ffi::iris_ale_md5(rom.as_ptr(), rom.len(), digits.as_mut_ptr().cast(), error, size) }
    })?;
    Ok(text(&digits))
}

/// Calls a function that answers 0, or leaves a message in the buffer it is given.
fn checked(call: impl FnOnce(*mut c_char, usize) -> c_int) -> Result<(), AleError> {
    let mut message = [0u8; 256];
    match call(message.as_mut_ptr().cast(), message.len()) {
        0 => Ok(()),
        _ => Err(AleError::Emulator(text(&message))),
    }
}

/// The text up to the first zero.
fn text(bytes: &[u8]) -> String {
    CStr::from_bytes_until_nul(bytes)
        .map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned())
}

/// The shim's functions: `shim/shim.cpp`.
mod ffi {
    use std::ffi::{c_char, c_int, c_uint};

    #[repr(C)]
    pub struct Console {
        private: [u8; 0],
    }

    unsafe extern "C" {
        pub fn iris_ale_md5(
            rom: *const u8,
            size: usize,
            digits: *mut c_char,
            error: *mut c_char,
            error_size: usize,
        ) -> c_int;
        pub fn iris_ale_new(
            rom: *const u8,
            size: usize,
            name: *const c_char,
            seed: c_int,
            frame_skip: c_int,
            sticky: f32,
            out: *mut *mut Console,
            error: *mut c_char,
            error_size: usize,
        ) -> c_int;
        pub fn iris_ale_free(console: *mut Console);
        pub fn iris_ale_begin(
            console: *mut Console,
            games: c_uint,
            error: *mut c_char,
            error_size: usize,
        ) -> c_int;
        pub fn iris_ale_seed(console: *mut Console, seed: u32);
        pub fn iris_ale_act(
            console: *mut Console,
            action: c_int,
            reward: *mut c_int,
            error: *mut c_char,
            error_size: usize,
        ) -> c_int;
        pub fn iris_ale_actions(console: *mut Console, actions: *mut c_int) -> c_int;
        pub fn iris_ale_lives(console: *mut Console) -> c_int;
        pub fn iris_ale_game_over(console: *const Console) -> c_int;
        pub fn iris_ale_height(console: *const Console) -> usize;
        pub fn iris_ale_width(console: *const Console) -> usize;
        pub fn iris_ale_screen(console: *const Console) -> *const u8;
        pub fn iris_ale_colour(console: *const Console, number: u8) -> u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CARTRIDGES, PREPARED, ROMS};

    const PLAIN: Settings = Settings { seed: 0, frame_skip: 1, sticky: 0.0 };

    fn rom(cartridge: &Cartridge) -> Vec<u8> {
        std::fs::read(std::path::Path::new(PREPARED).join(ROMS).join(cartridge.file_name())).unwrap()
    }

    fn make(game: &str, settings: Settings) -> Emulator {
        let cartridge = Cartridge::find(game).unwrap();
        Emulator::new(cartridge, &rom(cartridge), settings).unwrap()
    }

    /// Screens (as FNV-1a) and rewards of `frames` frames, a new action every four.
    fn play(emulator: &mut Emulator, frames: u64, seed: u64) -> Vec<(u64, i32)> {
        let mut records = Vec::new();
        for frame in 0..frames {
            let draw = (seed + frame / 4).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
            let action = emulator.actions()[draw as usize % emulator.actions().len()];
            let reward = emulator.act(action).unwrap();
            let mix = |h: u64, byte: &u8| (h ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            records.push((emulator.screen().iter().fold(0xcbf2_9ce4_8422_2325, mix), reward));
        }
        records
    }

    #[test]
    fn every_game_starts_with_its_screen_and_actions() {
        for cartridge in &CARTRIDGES {
            let emulator = make(cartridge.game, PLAIN);
            assert_eq!(emulator.size(), (210, 160), "{}", cartridge.game);
            assert_eq!(emulator.actions()[0], Action::Noop);
            assert!((3..=18).contains(&emulator.actions().len()), "{}", cartridge.game);
            assert!(!emulator.game_over());
        }
        assert_eq!(
            make("Breakout", PLAIN).actions(),
            [Action::Noop, Action::Fire, Action::Right, Action::Left]
        );
        assert_eq!(make("Breakout", PLAIN).lives(), 5);
    }

    /// Assault is the one whose start depends on the console's random numbers.
    #[test]
    fn a_game_begins_as_after_so_many_others() {
        for game in ["Assault", "Breakout", "PrivateEye"] {
            let (mut one_after_the_other, mut at_once) = (make(game, PLAIN), make(game, PLAIN));
            let mut starts = Vec::new();
            for games in 0..4 {
                // SAFETY: the console is alive.
                checked(|e, size| unsafe { iris_ale_reset(one_after_the_other.console.as_ptr(), e, size) })
                    .unwrap();
                starts.push(play(&mut one_after_the_other, 400, games));
            }
            for games in [2, 0, 3, 1] {
                at_once.begin(games).unwrap();
                assert_eq!(
                    play(&mut at_once, 400, games.into()),
                    starts[games as usize],
                    "{game} after {games}"
                );
            }
        }
    }

    unsafe extern "C" {
        fn iris_ale_reset(console: *mut ffi::Console, error: *mut c_char, error_size: usize) -> c_int;
    }

    #[test]
    fn emulators_on_threads_are_those_played_alone() {
        let games = ["Pong", "UpNDown", "Seaquest", "Assault"];
        let alone: Vec<_> = games.iter().map(|game| play(&mut make(game, PLAIN), 500, 3)).collect();
        let threads: Vec<_> = (0..8)
            .map(|i| std::thread::spawn(move || play(&mut make(games[i % 4], PLAIN), 500, 3)))
            .collect();
        for (i, thread) in threads.into_iter().enumerate() {
            assert_eq!(thread.join().unwrap(), alone[i % 4]);
        }
    }

    #[test]
    fn sticky_actions_follow_their_seed() {
        let sticky = |seed| play(&mut make("Breakout", Settings { seed, sticky: 0.25, ..PLAIN }), 400, 1);
        assert_eq!(sticky(1), sticky(1));
        assert_ne!(sticky(1), sticky(2));
        let mut again = make("Breakout", Settings { sticky: 0.25, ..PLAIN });
        again.seed(1);
        assert_eq!(play(&mut again, 400, 1), sticky(1));
    }

    #[test]
    fn what_would_end_the_program_is_an_error() {
        let pong = Cartridge::find("Pong").unwrap();
        let breakout = rom(Cartridge::find("Breakout").unwrap());
        let error =
            |rom: &[u8], settings| Emulator::new(pong, rom, settings).map(|_| ()).unwrap_err().to_string();
        assert_eq!(
            error(&breakout, PLAIN),
            "this is not the ROM of Pong that ALE knows: its MD5 is f34f08e5eb96e500e851a80be3277a56, not 60e0ea3cbe0913d39803477945e9e5ec"
        );
        for other in [vec![], vec![7; 4096], vec![0; 3_000_000]] {
            assert!(error(&other, PLAIN).contains("not the ROM of Pong"));
        }
        let rom = rom(pong);
        for frame_skip in [0, u32::MAX] {
            assert!(error(&rom, Settings { frame_skip, ..PLAIN }).contains("frame skip"));
        }
        for sticky in [-0.1, 1.1, f32::NAN] {
            assert!(error(&rom, Settings { sticky, ..PLAIN }).contains("is not a probability"));
        }
        assert_eq!(Cartridge::find("Chess"), None);
    }

    #[test]
    fn an_action_the_game_has_no_use_for_does_nothing_and_a_game_that_is_over_stands_still() {
        let mut pong = make("Pong", PLAIN);
        for action in Action::ALL {
            pong.act(action).unwrap();
        }
        let mut breakout = make("Breakout", PLAIN);
        for frame in 0..100_000 {
            if breakout.game_over() {
                break;
            }
            breakout.act([Action::Fire, Action::Noop][frame % 2]).unwrap();
        }
        assert!(breakout.game_over());
        assert_eq!(breakout.lives(), 0);
        let screen = breakout.screen().to_vec();
        assert_eq!(breakout.act(Action::Right), Ok(0));
        assert_eq!(breakout.screen(), screen);
    }
}
