//! Drawings as pixels: antialiased strokes and areas, encoded as PNG in light colours.

use super::{Anchor, Colour, Drawing, Point, Shape, Text, font};
use crate::ReportError;

/// Pixels per unit.
const SCALE: f64 = 2.0;
/// Lines that an area is sampled on, per row of pixels.
const SAMPLES: usize = 4;

/// The picture as a PNG file.
pub fn png(drawing: &Drawing) -> Result<Vec<u8>, ReportError> {
    let canvas = Canvas::draw(drawing);
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, canvas.width as u32, canvas.height as u32);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.write_header()?.write_image_data(canvas.pixels.as_flattened())?;
    Ok(bytes)
}

struct Canvas {
    width: usize,
    height: usize,
    pixels: Vec<[u8; 3]>,
}

impl Canvas {
    fn draw(drawing: &Drawing) -> Canvas {
        let width = (drawing.width * SCALE).ceil() as usize;
        let height = (drawing.height * SCALE).ceil() as usize;
        let mut canvas = Canvas { width, height, pixels: vec![Colour::Paper.light(); width * height] };
        for shape in &drawing.shapes {
            match shape {
                Shape::Line { points, colour, width, dash } => {
                    let lines = match dash.pattern() {
                        Some(pattern) => dashes(points, pattern),
                        None => vec![points.clone()],
                    };
                    canvas.stroke(&lines, *width, *colour);
                }
                Shape::Area { points, colour, opacity } => canvas.area(points, *colour, *opacity),
                Shape::Text(text) => canvas.text(text),
            }
        }
        canvas
    }

    fn text(&mut self, text: &Text) {
        let width = font::width(&text.text, text.size);
        let shift = match text.anchor {
            Anchor::Start => 0.0,
            Anchor::Middle => -width / 2.0,
            Anchor::End => -width,
        };
        let place = |(x, y): Point| match text.turned {
            true => (text.at.0 + y, text.at.1 - x - shift),
            false => (text.at.0 + x + shift, text.at.1 + y),
        };
        let lines: Vec<Vec<Point>> = font::layout(&text.text, text.size)
            .into_iter()
            .map(|line| line.into_iter().map(place).collect())
            .collect();
        let weight = if text.bold { 0.135 } else { 0.085 };
        self.stroke(&lines, text.size * weight, text.colour);
    }

    /// Lines of one colour with round ends and corners. A pixel is covered by how near the nearest line is.
    fn stroke(&mut self, lines: &[Vec<Point>], width: f64, colour: Colour) {
        let half = width * SCALE / 2.0;
        let reach = half + 1.0;
        let mut mask = Mask::around(self, lines.iter().flatten(), reach);
        for line in lines {
            for pair in line.windows(2) {
                let [a, b] = [pair[0], pair[1]].map(|(x, y)| (x * SCALE, y * SCALE));
                let columns = mask.columns(a.0.min(b.0) - reach, a.0.max(b.0) + reach);
                for y in mask.rows(a.1.min(b.1) - reach, a.1.max(b.1) + reach) {
                    for x in columns.clone() {
                        let distance = distance((x as f64 + 0.5, y as f64 + 0.5), a, b);
                        let cover = (half + 0.5 - distance).clamp(0.0, 1.0);
                        let place = mask.at(x, y);
                        *place = place.max(cover);
                    }
                }
            }
        }
        self.blend(&mask, colour, 1.0);
    }

    /// The inside of a closed line (even-odd).
    fn area(&mut self, points: &[Point], colour: Colour, opacity: f64) {
        let mut mask = Mask::around(self, points.iter(), 1.0);
        for y in mask.rows(f64::MIN, f64::MAX) {
            for sample in 0..SAMPLES {
                let level = y as f64 + (sample as f64 + 0.5) / SAMPLES as f64;
                let mut crossings: Vec<f64> = Vec::new();
                for i in 0..points.len() {
                    let [a, b] =
                        [points[i], points[(i + 1) % points.len()]].map(|(x, y)| (x * SCALE, y * SCALE));
                    if (a.1 <= level) != (b.1 <= level) {
                        crossings.push(a.0 + (level - a.1) / (b.1 - a.1) * (b.0 - a.0));
                    }
                }
                crossings.sort_unstable_by(f64::total_cmp);
                for &[from, to] in crossings.as_chunks::<2>().0 {
                    for x in mask.columns(from, to) {
                        let cover = (to.min(x as f64 + 1.0) - from.max(x as f64)).max(0.0);
                        *mask.at(x, y) += cover / SAMPLES as f64;
                    }
                }
            }
        }
        self.blend(&mask, colour, opacity);
    }

    fn blend(&mut self, mask: &Mask, colour: Colour, opacity: f64) {
        let colour = colour.light();
        for (row, cover) in mask.cover.chunks(mask.width.max(1)).enumerate() {
            let start = (mask.top + row) * self.width + mask.left;
            for (pixel, &cover) in self.pixels[start..].iter_mut().zip(cover) {
                let share = cover.min(1.0) * opacity;
                for channel in 0..3 {
                    let mixed = pixel[channel] as f64 * (1.0 - share) + colour[channel] as f64 * share;
                    pixel[channel] = mixed.round() as u8;
                }
            }
        }
    }
}

/// How much of each pixel is covered, in the part of the canvas that a shape can touch.
struct Mask {
    left: usize,
    top: usize,
    width: usize,
    height: usize,
    cover: Vec<f64>,
}

impl Mask {
    fn around<'a>(canvas: &Canvas, points: impl Iterator<Item = &'a Point>, reach: f64) -> Mask {
        let (mut low, mut high) = ((f64::MAX, f64::MAX), (f64::MIN, f64::MIN));
        for (x, y) in points {
            low = (low.0.min(x * SCALE), low.1.min(y * SCALE));
            high = (high.0.max(x * SCALE), high.1.max(y * SCALE));
        }
        let within = |value: f64, most: usize| (value.max(0.0) as usize).min(most);
        let (left, top) = (within(low.0 - reach, canvas.width), within(low.1 - reach, canvas.height));
        let right = within((high.0 + reach).ceil(), canvas.width).max(left);
        let bottom = within((high.1 + reach).ceil(), canvas.height).max(top);
        let (width, height) = (right - left, bottom - top);
        Mask { left, top, width, height, cover: vec![0.0; width * height] }
    }

    /// The columns of pixels between two places.
    fn columns(&self, from: f64, to: f64) -> std::ops::Range<usize> {
        let within = |value: f64| (value.max(0.0) as usize).clamp(self.left, self.left + self.width);
        within(from)..within(to.ceil())
    }

    fn rows(&self, from: f64, to: f64) -> std::ops::Range<usize> {
        let within = |value: f64| (value.max(0.0) as usize).clamp(self.top, self.top + self.height);
        within(from)..within(to.ceil())
    }

    fn at(&mut self, x: usize, y: usize) -> &mut f64 {
        &mut self.cover[(y - self.top) * self.width + x - self.left]
    }
}

/// From a point to the line between two others.
fn distance(point: Point, a: Point, b: Point) -> f64 {
    let (along, to) = ((b.0 - a.0, b.1 - a.1), (point.0 - a.0, point.1 - a.1));
    let length = along.0 * along.0 + along.1 * along.1;
    let t = if length == 0.0 { 0.0 } else { ((to.0 * along.0 + to.1 * along.1) / length).clamp(0.0, 1.0) };
    (to.0 - t * along.0).hypot(to.1 - t * along.1)
}

/// The drawn parts of a dashed line.
fn dashes(points: &[Point], pattern: [f64; 2]) -> Vec<Vec<Point>> {
    let mut lines = vec![points[..1].to_vec()];
    let (mut drawing, mut left) = (true, pattern[0]);
    for pair in points.windows(2) {
        let (mut from, to) = (pair[0], pair[1]);
        loop {
            let length = (to.0 - from.0).hypot(to.1 - from.1);
            if length < left {
                left -= length;
                break;
            }
            let t = left / length;
            from = (from.0 + t * (to.0 - from.0), from.1 + t * (to.1 - from.1));
            if let Some(line) = lines.last_mut().filter(|_| drawing) {
                line.push(from);
            } else {
                lines.push(vec![from]);
            }
            drawing = !drawing;
            left = pattern[usize::from(!drawing)];
        }
        if let Some(line) = lines.last_mut().filter(|_| drawing) {
            line.push(to);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw::Dash;

    fn pixel(canvas: &Canvas, x: usize, y: usize) -> [u8; 3] {
        canvas.pixels[y * canvas.width + x]
    }

    #[test]
    fn areas_cover_what_is_inside() {
        let mut drawing = Drawing::new(10.0, 10.0, String::new());
        drawing.area(vec![(2.0, 2.0), (6.0, 2.0), (6.0, 6.25), (2.0, 6.25)], Colour::Ink, 1.0);
        let canvas = Canvas::draw(&drawing);
        assert_eq!(pixel(&canvas, 5, 5), Colour::Ink.light());
        assert_eq!(pixel(&canvas, 3, 5), Colour::Paper.light());
        assert_eq!(pixel(&canvas, 12, 5), Colour::Paper.light());
        // Half of this row is covered.
        assert_eq!(pixel(&canvas, 5, 12), [141, 141, 141]);
    }

    #[test]
    fn strokes_have_their_width_and_stay_on_the_canvas() {
        let mut drawing = Drawing::new(10.0, 10.0, String::new());
        drawing.line(vec![(-5.0, 5.0), (50.0, 5.0)], Colour::Ink, 1.0, Dash::Solid);
        drawing.line(vec![(-5.0, -5.0), (-2.0, -5.0)], Colour::Ink, 1.0, Dash::Solid);
        let canvas = Canvas::draw(&drawing);
        let inked = (0..20).filter(|&y| pixel(&canvas, 10, y) == Colour::Ink.light()).count();
        assert_eq!(inked, 2);
    }

    #[test]
    fn dashes_leave_gaps() {
        let lines = dashes(&[(0.0, 0.0), (10.0, 0.0), (20.0, 0.0)], [7.0, 5.0]);
        assert_eq!(lines, [vec![(0.0, 0.0), (7.0, 0.0)], vec![(12.0, 0.0), (19.0, 0.0)]]);
    }

    #[test]
    fn pictures_are_png_files() {
        let bytes = png(&Drawing::new(30.0, 20.0, String::new())).unwrap();
        assert_eq!(&bytes[..4], b"\x89PNG");
        let reader = png::Decoder::new(std::io::Cursor::new(bytes)).read_info().unwrap();
        assert_eq!((reader.info().width, reader.info().height), (60, 40));
    }
}
