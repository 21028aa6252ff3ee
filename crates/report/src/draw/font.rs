//! Letters as strokes, for the pixels: printable ASCII on a grid with capitals from 0 to 10, small letters from 4, tails down to 13.
//!
//! A glyph is a list of strokes, each a kind and points of two digits in base 36, x then y. `l` are straight lines, `c` is a curve that
//! starts and ends at its outer points and is pulled by those between, `o` is the same, closed.

use super::Point;

/// Grid units of a font size.
const EM: f64 = 14.0;
/// Units left free beside a letter.
const GAP: f64 = 2.2;
/// Straight pieces of a curve between two control points.
const PIECES: usize = 6;

/// From the space to the tilde.
const GLYPHS: [&str; 95] = [
    "",                                      // space
    "l0007 l0a0a",                           // !
    "l0003 l2023",                           // "
    "l201a l504a l0363 l0767",               // #
    "c62600005656a0a08 l303a",               // $
    "o00303404 o56868a5a l801a",             // %
    "c866a0a05545010138a",                   // &
    "l0003",                                 // '
    "c20062c",                               // (
    "c00260c",                               // )
    "l3036 l0165 l6105",                     // *
    "l3339 l0666",                           // +
    "l1a0c",                                 // ,
    "l0646",                                 // -
    "l0a0a",                                 // .
    "l500a",                                 // /
    "o00606a0a",                             // 0
    "l12303a l1a5a",                         // 1
    "c030060640a l0a6a",                     // 2
    "c0200606525 c25656a0a08",               // 3
    "l4a400767",                             // 4
    "l601005 c0514636a0a08",                 // 5
    "c51400007 o04646a0a",                   // 6
    "l00602a",                               // 7
    "o10505515 o05656a0a",                   // 8
    "o00606606 c636a2a19",                   // 9
    "l0505 l0a0a",                           // :
    "l1515 l1a0c",                           // ;
    "l630669",                               // <
    "l0464 l0868",                           // =
    "l036609",                               // >
    "c0200606436 l3637 l3a3a",               // ?
    "o00808a0a o33636737",                   // @
    "l0a408a l1777",                         // A
    "l30000a3a c30606535 l0535 c35757a3a",   // B
    "c7270000a7a78",                         // C
    "l30000a3a c30707a3a",                   // D
    "l60000a6a l0555",                       // E
    "l60000a l0555",                         // F
    "c7270000a8a86 l8656",                   // G
    "l000a l707a l0575",                     // H
    "l000a",                                 // I
    "l5057 c575a0a07",                       // J
    "l000a l7006 l247a",                     // K
    "l000a6a",                               // L
    "l0a0047808a",                           // M
    "l0a007a70",                             // N
    "o00808a0a",                             // O
    "l0a0030 c30707636 l3606",               // P
    "o00808a0a l578b",                       // Q
    "l0a0030 c30707636 l3606 l367a",         // R
    "c62600005656a0a08",                     // S
    "l0060 l303a",                           // T
    "l0006 c060a7a76 l7670",                 // U
    "l004a80",                               // V
    "l002a508aa0",                           // W
    "l007a l700a",                           // X
    "l004580 l454a",                         // Y
    "l00700a7a",                             // Z
    "l20000c2c",                             // [
    "l005a",                                 // \
    "l00202c0c",                             // ]
    "l033063",                               // ^
    "l0c6c",                                 // _
    "l0022",                                 // `
    "o04646a0a l646a",                       // a
    "l000a o04646a0a",                       // b
    "c5554040a5a59",                         // c
    "o04646a0a l606a",                       // d
    "l0767 c6764040a5a69",                   // e
    "c402023 l232a l0444",                   // f
    "o04646a0a l646a c6a6d0d0c",             // g
    "l000a c07046467 l676a",                 // h
    "l040a l0101",                           // i
    "l242b c2b2d0d l2121",                   // j
    "l000a l5408 l265a",                     // k
    "l000a",                                 // l
    "l040a c07045457 l575a c5754a4a7 la7aa", // m
    "l040a c07046467 l676a",                 // n
    "o04646a0a",                             // o
    "l040d o04646a0a",                       // p
    "o04646a0a l646d",                       // q
    "l040a c070444",                         // r
    "c55540407575a0a09",                     // s
    "l2128 c282a4a l0444",                   // t
    "l0407 c070a6a67 l646a",                 // u
    "l043a64",                               // v
    "l042a446a84",                           // w
    "l046a l640a",                           // x
    "l043a l642c",                           // y
    "l04540a5a",                             // z
    "c30101606 c06161c3c",                   // {
    "l000c",                                 // |
    "c00202636 c36262c0c",                   // }
    "c07145966",                             // ~
];

/// What stands for a character that is not there.
const BOX: &str = "l00606a0a00";

/// How wide a text is.
pub fn width(text: &str, size: f64) -> f64 {
    text.chars().map(|c| advance(&strokes(c))).sum::<f64>() * size / EM
}

fn advance(strokes: &[Vec<Point>]) -> f64 {
    let edge = strokes.iter().flatten().map(|point| point.0).fold(f64::NAN, f64::max);
    if edge.is_nan() { 4.0 } else { edge + GAP }
}

/// The lines of a text whose baseline starts at the origin.
pub fn layout(text: &str, size: f64) -> Vec<Vec<Point>> {
    let scale = size / EM;
    let mut left = GAP / 2.0;
    let mut lines = Vec::new();
    for c in text.chars() {
        let strokes = strokes(c);
        let advance = advance(&strokes);
        let place = |(x, y): Point| ((left + x) * scale, (y - 10.0) * scale);
        lines.extend(strokes.into_iter().map(|stroke| stroke.into_iter().map(place).collect::<Vec<Point>>()));
        left += advance;
    }
    lines
}

/// The lines of one letter, in grid units.
fn strokes(c: char) -> Vec<Vec<Point>> {
    let glyph = (c as usize).checked_sub(' ' as usize).and_then(|index| GLYPHS.get(index)).unwrap_or(&BOX);
    glyph.split(' ').filter(|stroke| !stroke.is_empty()).map(stroke).collect()
}

fn stroke(code: &str) -> Vec<Point> {
    let digits: Vec<f64> = code.chars().skip(1).filter_map(|c| c.to_digit(36)).map(f64::from).collect();
    let points: Vec<Point> = digits.as_chunks::<2>().0.iter().map(|&[x, y]| (x, y)).collect();
    let middle = |a: Point, b: Point| ((a.0 + b.0) / 2.0, (a.1 + b.1) / 2.0);
    let last = points.len() - 1;
    match code.as_bytes()[0] {
        b'c' => {
            let mut line = vec![points[0]];
            for i in 1..last {
                let end = if i + 1 == last { points[last] } else { middle(points[i], points[i + 1]) };
                bend(&mut line, points[i], end);
            }
            line
        }
        b'o' => {
            let mut line = vec![middle(points[last], points[0])];
            for i in 0..=last {
                bend(&mut line, points[i], middle(points[i], points[(i + 1) % points.len()]));
            }
            line
        }
        _ => points,
    }
}

/// Goes on along a quadratic curve.
fn bend(line: &mut Vec<Point>, control: Point, end: Point) {
    let start = line[line.len() - 1];
    for piece in 1..=PIECES {
        let t = piece as f64 / PIECES as f64;
        let (a, b, c) = ((1.0 - t) * (1.0 - t), 2.0 * t * (1.0 - t), t * t);
        line.push((a * start.0 + b * control.0 + c * end.0, a * start.1 + b * control.1 + c * end.1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_printable_letter_is_there_and_on_the_grid() {
        for (index, glyph) in GLYPHS.iter().enumerate() {
            let c = char::from(b' ' + index as u8);
            for code in glyph.split(' ').filter(|code| !code.is_empty()) {
                assert!(code.len() % 2 == 1 && code.len() >= 5, "{c} {code}");
                assert!(["l", "c", "o"].contains(&&code[..1]), "{c} {code}");
            }
            let points: Vec<Point> = strokes(c).concat();
            assert_eq!(points.is_empty(), c == ' ');
            assert!(
                points.iter().all(|&(x, y)| (0.0..=10.0).contains(&x) && (0.0..=13.0).contains(&y)),
                "{c}"
            );
        }
    }

    #[test]
    fn widths_add_up() {
        assert_eq!(width("", 12.0), 0.0);
        assert!((width("ab", 14.0) - width("a", 14.0) - width("b", 14.0)).abs() < 1e-12);
        assert_eq!(width("\u{394}", 14.0), 8.2);
    }

    #[test]
    fn letters_stand_on_the_baseline() {
        let lowest =
            |text: &str| layout(text, 14.0).concat().iter().map(|point| point.1).fold(f64::MIN, f64::max);
        assert!((lowest("H") - 0.0).abs() < 1e-12);
        assert!(lowest("g") > 2.0);
    }
}
