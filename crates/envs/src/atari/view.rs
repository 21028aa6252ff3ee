//! Frames of 64x64 pixels from the emulator's screen.

use ale::Emulator;

use crate::Resize;

/// Pixels of a frame's side.
pub const SIZE: usize = 64;
/// Bytes of a frame.
pub const BYTES: usize = SIZE * LINE;
/// Bytes of a frame's line.
const LINE: usize = SIZE * 3;

/// Resizes screens of one emulator. Most lines of a screen are those of the one before it, or the same as the line above.
pub struct View {
    resize: Resize,
    width: usize,
    /// The last screen, as numbers of colours.
    screen: Vec<u8>,
    /// Its lines, narrowed.
    narrow: Vec<u8>,
    /// Its lines that changed.
    changed: Vec<bool>,
    /// The last frame.
    frame: Vec<u8>,
    /// A line in colour.
    line: Vec<u8>,
}

impl View {
    pub fn new(emulator: &Emulator) -> View {
        let (height, width) = emulator.size();
        View {
            resize: Resize::new((height, width), (SIZE, SIZE)),
            width,
            // Not yet a screen: its lines all change.
            screen: Vec::new(),
            narrow: vec![0; height * LINE],
            changed: vec![true; height],
            frame: vec![0; BYTES],
            line: vec![0; width * 3],
        }
    }

    /// Draws the emulator's screen into a frame.
    pub fn draw(&mut self, emulator: &Emulator, frame: &mut [u8]) {
        let screen = emulator.screen();
        let line = |row: usize| row * self.width..(row + 1) * self.width;
        for (row, changed) in self.changed.iter_mut().enumerate() {
            *changed = self.screen.get(line(row)) != Some(&screen[line(row)]);
            if !*changed {
                continue;
            }
            if row > 0 && screen[line(row)] == screen[line(row - 1)] {
                self.narrow.copy_within((row - 1) * LINE..row * LINE, row * LINE);
            } else {
                colour(emulator, &screen[line(row)], &mut self.line);
                self.resize.across(&self.line, &mut self.narrow[row * LINE..][..LINE]);
            }
        }
        self.screen.clear();
        self.screen.extend_from_slice(screen);
        for (row, line) in self.frame.chunks_exact_mut(LINE).enumerate() {
            if self.changed[self.resize.sources(row)].contains(&true) {
                self.resize.down(row, &self.narrow, line);
            }
        }
        frame.copy_from_slice(&self.frame);
    }
}

/// Turns numbers of colours into colours.
pub fn colour(emulator: &Emulator, numbers: &[u8], pixels: &mut [u8]) {
    for (pixel, number) in pixels.as_chunks_mut::<3>().0.iter_mut().zip(numbers) {
        *pixel = emulator.palette()[usize::from(*number)];
    }
}
