//! Frames for the player from the emulator's screen.

use ale::Emulator;

use crate::Resize;

/// Resizes screens of one emulator. Most lines of a screen are those of the one before it, or the same as the line above.
pub struct View {
    resize: Resize,
    /// Bytes of a line of a frame.
    line_bytes: usize,
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
    /// A view with frames of `size` (height, width).
    pub fn new(emulator: &Emulator, size: (usize, usize)) -> View {
        let (height, width) = emulator.size();
        let line_bytes = size.1 * 3;
        View {
            resize: Resize::new((height, width), size),
            line_bytes,
            width,
            // Not yet a screen: its lines all change.
            screen: Vec::new(),
            narrow: vec![0; height * line_bytes],
            changed: vec![true; height],
            frame: vec![0; size.0 * line_bytes],
            line: vec![0; width * 3],
        }
    }

    /// Draws the emulator's screen into a frame.
    pub fn draw(&mut self, emulator: &Emulator, frame: &mut [u8]) {
        let screen = emulator.screen();
        let (line_bytes, width) = (self.line_bytes, self.width);
        let line = |row: usize| row * width..(row + 1) * width;
        for (row, changed) in self.changed.iter_mut().enumerate() {
            *changed = self.screen.get(line(row)) != Some(&screen[line(row)]);
            if !*changed {
                continue;
            }
            if row > 0 && screen[line(row)] == screen[line(row - 1)] {
                self.narrow.copy_within((row - 1) * line_bytes..row * line_bytes, row * line_bytes);
            } else {
                colour(emulator, &screen[line(row)], &mut self.line);
                self.resize.across(&self.line, &mut self.narrow[row * line_bytes..][..line_bytes]);
            }
        }
        self.screen.clear();
        self.screen.extend_from_slice(screen);
        for (row, line) in self.frame.chunks_exact_mut(line_bytes).enumerate() {
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
