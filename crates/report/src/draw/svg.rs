//! Drawings as SVG text: light colours as attributes, dark ones in a style that browsers apply when the reader prefers them.

use std::fmt::Write;

use super::{Anchor, COLOURS, Colour, Drawing, Point, Shape, Text};

/// The drawing as an `<svg>` element, to stand in a page that holds [`dark_style`], or as a file of its own.
pub fn svg(drawing: &Drawing, standalone: bool) -> String {
    let Drawing { width, height, .. } = drawing;
    let namespace = if standalone { " xmlns=\"http://www.w3.org/2000/svg\"" } else { "" };
    let mut out = format!(
        "<svg{namespace} viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\" \
         font-family=\"Helvetica, Arial, sans-serif\">\n<title>{}</title>\n",
        escape(&drawing.description)
    );
    if standalone {
        let _ = writeln!(out, "<style>{}</style>", dark_style());
    }
    let _ = writeln!(out, "<rect width=\"{width}\" height=\"{height}\" {}/>", fill(Colour::Paper));
    for shape in &drawing.shapes {
        let _ = match shape {
            Shape::Line { points, colour, width, dash } => {
                let dash = dash
                    .pattern()
                    .map(|[on, off]| format!(" stroke-dasharray=\"{on} {off}\""))
                    .unwrap_or_default();
                writeln!(
                    out,
                    "<path d=\"{}\" fill=\"none\" {} stroke-width=\"{width}\" stroke-linejoin=\"round\"{dash}/>",
                    path(points),
                    stroke(*colour)
                )
            }
            Shape::Area { points, colour, opacity } => {
                writeln!(out, "<path d=\"{}Z\" {} fill-opacity=\"{opacity}\"/>", path(points), fill(*colour))
            }
            Shape::Text(text) => writeln!(out, "{}", element(text)),
        };
    }
    out.push_str("</svg>\n");
    out
}

fn element(text: &Text) -> String {
    let (x, y) = text.at;
    let anchor = match text.anchor {
        Anchor::Start => "start",
        Anchor::Middle => "middle",
        Anchor::End => "end",
    };
    let weight = if text.bold { " font-weight=\"bold\"" } else { "" };
    let turn = if text.turned { format!(" transform=\"rotate(-90 {x:.1} {y:.1})\"") } else { String::new() };
    format!(
        "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{}\" text-anchor=\"{anchor}\" {}{weight}{turn}>{}</text>",
        text.size,
        fill(text.colour),
        escape(&text.text)
    )
}

/// The rules that turn every drawing dark.
pub fn dark_style() -> String {
    let mut rules = String::new();
    let series = (0..COLOURS).map(Colour::Series);
    for colour in [Colour::Paper, Colour::Ink, Colour::Muted, Colour::Grid].into_iter().chain(series) {
        let (name, dark) = (class(colour), hex(colour.dark()));
        let _ = write!(rules, ".f-{name}{{fill:{dark}}}.s-{name}{{stroke:{dark}}}");
    }
    format!("@media (prefers-color-scheme:dark){{{rules}}}")
}

fn path(points: &[Point]) -> String {
    let mut out = String::new();
    for (i, (x, y)) in points.iter().enumerate() {
        let _ = write!(out, "{}{x:.1} {y:.1}", if i == 0 { 'M' } else { 'L' });
    }
    out
}

fn fill(colour: Colour) -> String {
    format!("class=\"f-{}\" fill=\"{}\"", class(colour), hex(colour.light()))
}

fn stroke(colour: Colour) -> String {
    format!("class=\"s-{}\" stroke=\"{}\"", class(colour), hex(colour.light()))
}

fn class(colour: Colour) -> String {
    match colour {
        Colour::Paper => "paper".to_string(),
        Colour::Ink => "ink".to_string(),
        Colour::Muted => "muted".to_string(),
        Colour::Grid => "grid".to_string(),
        Colour::Series(index) => (index % COLOURS).to_string(),
    }
}

fn hex([red, green, blue]: [u8; 3]) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// Text as it may stand in HTML and SVG.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw::Dash;

    #[test]
    fn shapes_become_elements() {
        let mut drawing = Drawing::new(10.0, 20.0, "a < b".to_string());
        drawing.line(vec![(0.0, 1.0), (2.0, 3.5)], Colour::Series(22), 1.5, Dash::Dashed);
        drawing.text((1.0, 2.0), "x & y", 12.0, Anchor::End, Colour::Ink);
        let text = svg(&drawing, true);
        assert!(text.contains("<title>a &lt; b</title>"));
        assert!(text.contains("<path d=\"M0.0 1.0L2.0 3.5\" fill=\"none\" class=\"s-6\" stroke=\"#d55e00\""));
        assert!(text.contains("text-anchor=\"end\" class=\"f-ink\" fill=\"#1a1a1a\">x &amp; y</text>"));
        assert!(text.contains("prefers-color-scheme:dark"));
        assert!(!svg(&drawing, false).contains("http"));
    }
}
