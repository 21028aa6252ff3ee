//! Pictures of frames: strips, and the pictures of animations.

use std::path::Path;

use crate::files::{FileError, failed, write_atomically};
use crate::font;

type Colour = [u8; 3];

const PAPER: Colour = [24, 24, 27];
const REWARD: Colour = [240, 228, 66];
const PENALTY: Colour = [86, 180, 233];
const END: Colour = [213, 60, 60];
const GIVEN: Colour = [0, 158, 115];
const INK: Colour = [200, 200, 205];

/// What the colours mean, as every picture says below its frames; the last only where a frame was given.
const LEGEND: [(&str, Colour); 4] =
    [("reward", REWARD), ("penalty", PENALTY), ("end", END), ("given", GIVEN)];

/// Space around a frame in a strip; its colour says whether the step ended the game.
const BORDER: usize = 3;
/// The bar under a frame, whose colour says what the step was rewarded with.
const BAR: usize = 5;
/// A line of text.
const LINE: usize = font::HEIGHT + 4;
/// Frames are enlarged to about this many pixels.
const TARGET: usize = 96;

/// An RGB image.
#[derive(Clone, Debug, PartialEq)]
pub struct Picture {
    width: usize,
    height: usize,
    pixels: Vec<Colour>,
}

/// A frame of a strip: RGB bytes of a square image, and what the step from it brought.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    pub frame: Vec<u8>,
    pub reward: f32,
    pub end: bool,
    /// Whether a dream was conditioned on it.
    pub given: bool,
}

/// A frame in [0, 1], as the networks have it, as bytes.
pub fn to_bytes(frame: &[f32]) -> Vec<u8> {
    frame.iter().map(|value| (value.clamp(0.0, 1.0) * 255.0).round() as u8).collect()
}

impl Cell {
    fn border(&self) -> Colour {
        match (self.given, self.end) {
            (true, _) => GIVEN,
            (false, true) => END,
            (false, false) => PAPER,
        }
    }

    fn bar(&self) -> Colour {
        match self.reward {
            reward if reward > 0.0 => REWARD,
            reward if reward < 0.0 => PENALTY,
            // The border of a given frame does not say it.
            _ if self.end => END,
            _ => self.border(),
        }
    }
}

/// An image of a game as a person sees it, with two lines above it.
#[derive(Clone, Debug)]
pub struct Still {
    pub captions: [String; 2],
    pub height: usize,
    pub width: usize,
    /// RGB bytes.
    pub pixels: Vec<u8>,
}

/// A row of a strip.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// Stands above it; in an animation in as many lines as it takes.
    pub caption: String,
    pub cells: Vec<Cell>,
}

impl Row {
    pub fn new(caption: impl Into<String>, cells: Vec<Cell>) -> Row {
        Row { caption: caption.into(), cells }
    }
}

impl Picture {
    pub(crate) fn blank(width: usize, height: usize) -> Picture {
        Picture { width, height, pixels: vec![PAPER; width * height] }
    }

    pub fn size(&self) -> (usize, usize) {
        (self.width, self.height)
    }

    /// Cuts off what lies outside.
    fn fill(&mut self, (x, y): (usize, usize), (width, height): (usize, usize), colour: Colour) {
        let (left, right) = (x.min(self.width), (x + width).min(self.width));
        for row in self.pixels.chunks_exact_mut(self.width).skip(y).take(height) {
            row[left..right].fill(colour);
        }
    }

    /// A line of text, at most `width` pixels of it.
    fn write(&mut self, text: &str, (x, y): (usize, usize), width: usize) {
        for (dx, dy) in font::pixels(text).filter(|(dx, _)| *dx < width) {
            self.fill((x + dx, y + dy), (1, 1), INK);
        }
    }

    /// Rows of frames of `size`x`size` pixels, one under the other, each under its caption.
    pub fn strip(rows: &[Row], size: usize) -> Picture {
        let scale = (TARGET / size).max(1);
        let (across, down) = cell_size(size * scale);
        let columns = rows.iter().map(|row| row.cells.len()).max().unwrap_or(0).max(1);
        let below = rows.len() * (LINE + down);
        let mut picture = Picture::with_legend(columns * across, below, any_given(rows));
        let width = picture.width;
        for (y, row) in rows.iter().enumerate() {
            let top = y * (LINE + down);
            picture.write(&row.caption, (BORDER, top + 2), width - BORDER);
            for (x, cell) in row.cells.iter().enumerate() {
                picture.cell(cell, size, (x * across, top + LINE), scale);
            }
        }
        picture
    }

    /// A frame in its border, with the bar under it.
    fn cell(&mut self, cell: &Cell, size: usize, (x, y): (usize, usize), scale: usize) {
        let side = size * scale;
        self.fill((x, y), cell_size(side), cell.border());
        self.fill((x + BORDER, y + BORDER + side), (side, BAR), cell.bar());
        self.paste(&cell.frame, size, (x + BORDER, y + BORDER), scale);
    }

    /// An empty picture with the meaning of the colours in lines below `height`.
    fn with_legend(width: usize, height: usize, given: bool) -> Picture {
        let (mut x, mut y) = (BORDER, height);
        let mut places = Vec::new();
        for (name, colour) in LEGEND.into_iter().filter(|(_, colour)| given || *colour != GIVEN) {
            let wide = font::HEIGHT + 3 + font::width(name);
            if x > BORDER && x + wide > width {
                (x, y) = (BORDER, y + LINE);
            }
            places.push((name, colour, (x, y + 2)));
            x += wide + 2 * font::ADVANCE;
        }
        let mut picture = Picture::blank(width, y + LINE);
        for (name, colour, (x, y)) in places {
            picture.fill((x, y), (font::HEIGHT, font::HEIGHT), colour);
            picture.write(name, (x + font::HEIGHT + 3, y), width);
        }
        picture
    }

    /// A step of a game in three panels under lines of text: an image of the game (height, width, RGB bytes), the frame that the network gets, and
    /// what is left of it in the cell. Frames have `size`x`size` pixels and are enlarged to about the height of the image.
    pub fn panels(
        header: &[String],
        (height, width, image): (usize, usize, &[u8]),
        input: &[u8],
        cell: &Cell,
        size: usize,
    ) -> Picture {
        let scale = (TARGET / height).max(1);
        let frame_scale = (height * scale / size).max(1);
        let (tall, wide) = (height * scale, width * scale);
        let frame = size * frame_scale;
        let places = [BORDER, wide + 2 * BORDER, wide + frame + 3 * BORDER];
        let (across, down) = (places[2] + frame + BORDER, tall.max(frame) + 2 * BORDER + BAR);
        let top = (header.len() + 1) * LINE;
        let mut picture = Picture::with_legend(across, top + down, false);
        for (i, line) in header.iter().enumerate() {
            picture.write(line, (BORDER, i * LINE + 2), across - BORDER);
        }
        for (name, x, room) in
            [("game", places[0], wide), ("input", places[1], frame), ("what is left", places[2], frame)]
        {
            picture.write(name, (x, top - LINE + 2), room);
        }
        picture.fill((0, top), (across, down), cell.border());
        picture.fill((BORDER, top + down - BORDER - BAR), (across - 2 * BORDER, BAR), cell.bar());
        picture.paste(image, width, (places[0], top + BORDER), scale);
        picture.paste(input, size, (places[1], top + BORDER), frame_scale);
        picture.paste(&cell.frame, size, (places[2], top + BORDER), frame_scale);
        picture
    }

    /// Stills beside each other, small ones enlarged.
    pub fn stills(stills: &[Still]) -> Picture {
        let scale = |still: &Still| (TARGET / still.height).max(1);
        let across: usize = stills.iter().map(|still| scale(still) * still.width + BORDER).sum();
        let down = stills.iter().map(|still| scale(still) * still.height).max().unwrap_or(0);
        let mut picture = Picture::blank(across + BORDER, 2 * LINE + down + BORDER);
        let mut x = BORDER;
        for still in stills {
            let wide = scale(still) * still.width;
            for (line, caption) in still.captions.iter().enumerate() {
                picture.write(caption, (x, line * LINE + 2), wide);
            }
            picture.paste(&still.pixels, still.width, (x, 2 * LINE), scale(still));
            x += wide + BORDER;
        }
        picture
    }

    /// Draws RGB bytes in rows of `width` pixels, each `scale` times as large.
    fn paste(&mut self, image: &[u8], width: usize, (x, y): (usize, usize), scale: usize) {
        for (at, pixel) in image.as_chunks::<3>().0.iter().enumerate() {
            let corner = (x + at % width * scale, y + at / width * scale);
            self.fill(corner, (scale, scale), *pixel);
        }
    }

    /// One picture per step, with the rows' frames beside each other. A row that is over stays at its last frame.
    pub fn animation(rows: &[Row], size: usize) -> impl Iterator<Item = Picture> {
        let steps = rows.iter().map(|row| row.cells.len()).max().unwrap_or(0);
        let scale = (TARGET / size).max(1);
        let (across, down) = cell_size(size * scale);
        let given = any_given(rows);
        let captions: Vec<Vec<String>> =
            rows.iter().map(|row| font::wrapped(&row.caption, size * scale)).collect();
        let top = LINE * captions.iter().map(Vec::len).max().unwrap_or(1);
        (0..steps).map(move |t| {
            let mut picture = Picture::with_legend((rows.len() * across).max(1), top + down, given);
            for (i, (row, caption)) in rows.iter().zip(&captions).enumerate() {
                for (line, text) in caption.iter().enumerate() {
                    picture.write(text, (i * across + BORDER, line * LINE + 2), size * scale);
                }
                if let Some(cell) = row.cells.get(t).or(row.cells.last()) {
                    picture.cell(cell, size, (i * across, top), scale);
                }
            }
            picture
        })
    }

    /// Red, green and blue of every pixel, row by row.
    pub(crate) fn rgb(&self) -> &[u8] {
        self.pixels.as_flattened()
    }

    pub(crate) fn to_png(&self) -> Result<Vec<u8>, png::EncodingError> {
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, self.width as u32, self.height as u32);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        encoder.write_header()?.write_image_data(self.rgb())?;
        Ok(bytes)
    }

    pub fn write_png(&self, path: &Path) -> Result<(), FileError> {
        write_atomically(path, &self.to_png().map_err(|e| failed("write", path)(std::io::Error::other(e)))?)
    }
}

fn any_given(rows: &[Row]) -> bool {
    rows.iter().any(|row| row.cells.iter().any(|cell| cell.given))
}

/// Width and height of a cell around a frame of this side.
fn cell_size(side: usize) -> (usize, usize) {
    (side + 2 * BORDER, side + 2 * BORDER + BAR)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::testing::Scratch;

    #[test]
    fn strips_say_what_a_step_brought() {
        let cell = |value: u8, reward: f32, end: bool| Cell {
            frame: vec![value; 32 * 32 * 3],
            reward,
            end,
            given: false,
        };
        let rows = [
            Row::new("recorded", vec![cell(10, 0.0, false), cell(20, 1.0, false), cell(25, 0.0, true)]),
            Row::new("dream 1", vec![cell(30, -1.0, false), cell(40, 1.0, true), cell(50, -1.0, true)]),
        ];
        let picture = Picture::strip(&rows, 32);
        let (across, down) = (32 * 3 + 2 * BORDER, 32 * 3 + 2 * BORDER + BAR);
        // Wide enough for the legend in one line.
        assert_eq!(picture.size(), (3 * across, 2 * (LINE + down) + LINE));
        let pixel = |x: usize, y: usize| picture.pixels[y * picture.width + x];
        let top = |row: usize| row * (LINE + down) + LINE;
        // An end does not hide whether the step was won.
        let look = |row: usize, column: usize| {
            let x = column * across;
            [
                pixel(x, top(row)),
                pixel(x + BORDER, top(row) + BORDER + 96),
                pixel(x + BORDER + 95, top(row) + BORDER + 95),
            ]
        };
        assert_eq!(look(0, 0), [PAPER, PAPER, [10; 3]]);
        assert_eq!(look(0, 1), [PAPER, REWARD, [20; 3]]);
        assert_eq!(look(0, 2), [END, END, [25; 3]]);
        assert_eq!(look(1, 0), [PAPER, PENALTY, [30; 3]]);
        assert_eq!(look(1, 1), [END, REWARD, [40; 3]]);
        assert_eq!(look(1, 2), [END, PENALTY, [50; 3]]);
        // A given frame stays green where the step from it is the end; the legend has one more colour.
        let [given, ended] = [false, true].map(|end| Cell { given: true, ..cell(1, 0.0, end) });
        assert_eq!([given.border(), given.bar(), ended.border(), ended.bar()], [GIVEN, GIVEN, GIVEN, END]);
        assert!(any_given(&[Row::new("", vec![cell(1, 0.0, true), given])]) && !any_given(&rows));
        // The first letter of each caption, and the first colour of the legend.
        let letter = |row: usize| pixel(BORDER, row * (LINE + down) + 2);
        assert_eq!([letter(0), letter(1)], [INK, INK]);
        assert_eq!(pixel(BORDER, 2 * (LINE + down) + 2), REWARD);
        // The shorter row waits for the longer.
        let rows = [rows[0].clone(), Row::new("short", rows[1].cells[..1].to_vec())];
        let animation: Vec<_> = Picture::animation(&rows, 32).collect();
        assert_eq!((animation.len(), animation[1].size()), (3, (2 * across, LINE + down + LINE)));
        assert_eq!(animation[1].pixels[(LINE + BORDER) * 2 * across + across + BORDER], [30; 3]);
        // A caption that is wider than a frame takes more lines, for all rows.
        let long = [rows[0].clone(), Row::new("future 1, 2 frames given", rows[1].cells.clone())];
        let wrapped: Vec<_> = Picture::animation(&long, 32).collect();
        assert_eq!(wrapped[0].size(), (2 * across, 2 * LINE + down + LINE));
        assert_eq!(wrapped[1].pixels[(2 * LINE + BORDER) * 2 * across + across + BORDER], [30; 3]);
        // A single column has room for one colour a line.
        let narrow =
            Picture::strip(&[Row::new("a caption that is too long for it", vec![cell(1, 0.0, true)])], 32);
        assert_eq!(narrow.size(), (across, LINE + down + 2 * LINE));
    }

    #[test]
    fn a_step_has_three_panels_under_its_header() {
        let cell = Cell { frame: vec![3; 32 * 32 * 3], reward: 1.0, ..Cell::default() };
        let image = vec![1; 210 * 160 * 3];
        let draw =
            |header: &[String]| Picture::panels(header, (210, 160, &image), &[2; 32 * 32 * 3], &cell, 32);
        let picture = draw(&["left".into(), "value 1".into()]);
        // The frame is six times as large.
        let across = 160 + 2 * 192 + 4 * BORDER;
        assert_eq!(picture.size(), (across, 3 * LINE + 210 + 2 * BORDER + BAR + LINE));
        assert_eq!(draw(&[]).size().1 + 2 * LINE, picture.size().1);
        let pixel = |x: usize, y: usize| picture.pixels[y * across + x];
        let middle = 3 * LINE + BORDER + 100;
        let row = [100, BORDER + 160, 300, 500].map(|x| pixel(x, middle));
        assert_eq!(row, [[1; 3], PAPER, [2; 3], [3; 3]]);
        assert_eq!(pixel(100, 3 * LINE + BORDER + 210 + BORDER), REWARD);
        assert_eq!([pixel(BORDER, 2), pixel(BORDER, 2 * LINE + 4)], [INK, INK]);
    }

    #[test]
    fn files_can_be_read_back() {
        let scratch = Scratch::new("picture");
        let cell = Cell { frame: (0..48).map(|i| i * 5).collect(), ..Cell::default() };
        let picture = Picture::strip(&[Row::new("one", vec![cell])], 4);
        picture.write_png(&scratch.0.join("a.png")).unwrap();
        let file = std::io::BufReader::new(File::open(scratch.0.join("a.png")).unwrap());
        let mut reader = png::Decoder::new(file).read_info().unwrap();
        let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
        reader.next_frame(&mut bytes).unwrap();
        assert_eq!(bytes, picture.pixels.as_flattened());
        assert!(picture.write_png(&scratch.0.join("no/such/folder.png")).is_err());
        // What a link leads to is written, not the link.
        std::os::unix::fs::symlink(scratch.0.join("a.png"), scratch.0.join("link.png")).unwrap();
        std::fs::write(scratch.0.join("a.png"), "").unwrap();
        picture.write_png(&scratch.0.join("link.png")).unwrap();
        assert!(
            scratch.0.join("link.png").is_symlink() && scratch.0.join("a.png").metadata().unwrap().len() > 0
        );
    }
}
