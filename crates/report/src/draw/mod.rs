//! A small picture language, drawn twice: as SVG, and as pixels.

mod font;
mod raster;
mod svg;

pub use font::width as text_width;
pub use raster::png;
pub use svg::{dark_style, escape, svg};

pub type Point = (f64, f64);

/// A role; what it looks like depends on the reader's colour scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    Paper,
    Ink,
    Muted,
    Grid,
    Series(usize),
}

/// Light and dark. After Okabe and Ito, whose yellow is lost on white paper: violet stands in for it, grey for black, and all are lighter in
/// the dark. Simulated for protanopia, deuteranopia and tritanopia, any two are at least 16 (light) or 13 (dark) apart in CIELAB.
const SERIES: [([u8; 3], [u8; 3]); 8] = [
    ([0x5a, 0x5a, 0x5a], [0xff, 0xff, 0xff]),
    ([0x33, 0x00, 0x55], [0x88, 0x55, 0xff]),
    ([0x56, 0xb4, 0xe9], [0xa6, 0xdc, 0xff]),
    ([0xcc, 0x79, 0xa7], [0xe3, 0x97, 0xc2]),
    ([0xe6, 0x9f, 0x00], [0xf2, 0xb4, 0x2a]),
    ([0x00, 0x9e, 0x73], [0x2b, 0xc4, 0x97]),
    ([0xd5, 0x5e, 0x00], [0xf0, 0x7a, 0x28]),
    ([0x00, 0x72, 0xb2], [0x4f, 0xa8, 0xe8]),
];

impl Colour {
    pub fn light(self) -> [u8; 3] {
        match self {
            Colour::Paper => [0xff, 0xff, 0xff],
            Colour::Ink => [0x1a, 0x1a, 0x1a],
            Colour::Muted => [0x5c, 0x5c, 0x5c],
            Colour::Grid => [0xdd, 0xdd, 0xdd],
            Colour::Series(index) => shade(SERIES[index % SERIES.len()].0, index, Colour::Paper.light()),
        }
    }

    pub fn dark(self) -> [u8; 3] {
        match self {
            Colour::Paper => [0x16, 0x18, 0x1c],
            Colour::Ink => [0xee, 0xee, 0xee],
            Colour::Muted => [0xaa, 0xaa, 0xaa],
            Colour::Grid => [0x3a, 0x3d, 0x44],
            Colour::Series(index) => shade(SERIES[index % SERIES.len()].1, index, Colour::Paper.dark()),
        }
    }
}

/// Colours before they repeat.
const COLOURS: usize = 2 * SERIES.len();

/// Series beyond the palette have its colours again, halfway to the paper.
fn shade(colour: [u8; 3], index: usize, paper: [u8; 3]) -> [u8; 3] {
    match index % COLOURS < SERIES.len() {
        true => colour,
        false => std::array::from_fn(|i| ((u16::from(colour[i]) + u16::from(paper[i])) / 2) as u8),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dash {
    Solid,
    Dashed,
    Dotted,
}

impl Dash {
    /// Series beyond the palette have another dash, too.
    pub fn of_series(index: usize) -> Dash {
        [Dash::Solid, Dash::Dashed, Dash::Dotted][index / SERIES.len() % 3]
    }

    /// Lengths drawn and left out, in turn.
    fn pattern(self) -> Option<[f64; 2]> {
        match self {
            Dash::Solid => None,
            Dash::Dashed => Some([7.0, 5.0]),
            Dash::Dotted => Some([1.5, 4.5]),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

#[derive(Clone, Debug)]
pub struct Text {
    /// Where the baseline begins, has its middle, or ends.
    pub at: Point,
    pub text: String,
    pub size: f64,
    pub anchor: Anchor,
    pub colour: Colour,
    pub bold: bool,
    /// Reads from bottom to top.
    pub turned: bool,
}

#[derive(Clone, Debug)]
pub enum Shape {
    Line { points: Vec<Point>, colour: Colour, width: f64, dash: Dash },
    Area { points: Vec<Point>, colour: Colour, opacity: f64 },
    Text(Text),
}

/// A picture with its size and a sentence for readers who do not see it.
#[derive(Clone, Debug)]
pub struct Drawing {
    pub width: f64,
    pub height: f64,
    pub description: String,
    pub shapes: Vec<Shape>,
}

impl Drawing {
    pub fn new(width: f64, height: f64, description: String) -> Drawing {
        Drawing { width, height, description, shapes: Vec::new() }
    }

    pub fn line(&mut self, points: Vec<Point>, colour: Colour, width: f64, dash: Dash) {
        self.shapes.push(Shape::Line { points, colour, width, dash });
    }

    pub fn area(&mut self, points: Vec<Point>, colour: Colour, opacity: f64) {
        self.shapes.push(Shape::Area { points, colour, opacity });
    }

    pub fn text(&mut self, at: Point, text: impl Into<String>, size: f64, anchor: Anchor, colour: Colour) {
        let text = Text { at, text: text.into(), size, anchor, colour, bold: false, turned: false };
        self.shapes.push(Shape::Text(text));
    }

    /// A series' name; bold if it is to stand out.
    pub fn name(&mut self, at: Point, text: &str, size: f64, anchor: Anchor, bold: bool) {
        match bold {
            true => self.heading(at, text, size, anchor),
            false => self.text(at, text, size, anchor, Colour::Ink),
        }
    }

    pub fn heading(&mut self, at: Point, text: impl Into<String>, size: f64, anchor: Anchor) {
        let text =
            Text { at, text: text.into(), size, anchor, colour: Colour::Ink, bold: true, turned: false };
        self.shapes.push(Shape::Text(text));
    }

    /// Text along a vertical axis.
    pub fn turned(&mut self, at: Point, text: impl Into<String>, size: f64) {
        let (text, anchor, colour) = (text.into(), Anchor::Middle, Colour::Muted);
        self.shapes.push(Shape::Text(Text { at, text, size, anchor, colour, bold: false, turned: true }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_agents_have_sixteen_colours() {
        for scheme in [Colour::light, Colour::dark] {
            let colours: std::collections::BTreeSet<_> =
                (0..COLOURS).map(|i| scheme(Colour::Series(i))).collect();
            assert_eq!(colours.len(), 16);
        }
    }
}
