//! The paper's figures.

mod intervals;
mod lines;

use crate::draw::{Anchor, Colour, Dash, Drawing};
use crate::report::Report;

/// A picture, the name of its files, and what a reader is told about it.
pub struct Figure {
    pub name: &'static str,
    pub caption: String,
    pub drawing: Drawing,
}

/// Names of all figures there are.
pub const NAMES: [&str; 5] = ["aggregates", "optimality_gap", "profiles", "improvement", "curves"];

/// Every figure that the report has data for.
pub fn figures(report: &Report) -> Vec<Figure> {
    let mut figures = vec![intervals::aggregates(report), intervals::optimality_gap(report)];
    figures.extend(lines::profiles(report));
    figures
        .extend(report.improvement.as_ref().map(|improvements| intervals::improvement(report, improvements)));
    figures.extend(report.has_curves().then(|| lines::curves(report)));
    figures
}

/// What a score of 1 stands for.
fn score_label(report: &Report) -> &'static str {
    match report.human_normalised() {
        true => "Human-normalised score",
        false => "Normalised score (0 random, 1 reference)",
    }
}

const SMALL: f64 = 12.0;
const NORMAL: f64 = 13.0;
const LARGE: f64 = 15.0;

/// Round numbers inside a range, and how many decimals they need.
struct Ticks {
    values: Vec<f64>,
    decimals: usize,
}

impl Ticks {
    /// At most `most` steps of 1, 2 or 5 times a power of ten.
    fn new(low: f64, high: f64, most: usize) -> Ticks {
        let rough = ((high - low) / most as f64).max(1e-9);
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
        let step = step.into_iter().find(|&step| step >= rough * 0.999).unwrap_or(rough);
        let (first, last) = ((low / step - 1e-6).ceil() as i64, (high / step + 1e-6).floor() as i64);
        let values = (first..=last).map(|i| i as f64 * step).collect();
        let decimals = (-(step * 1.001).log10().floor()).clamp(0.0, 9.0) as usize;
        Ticks { values, decimals }
    }

    fn label(&self, value: f64) -> String {
        format!("{:.*}", self.decimals, if value == 0.0 { 0.0 } else { value })
    }
}

/// A horizontal axis: values from `low` to `high` between two places.
struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn at(&self, value: f64) -> f64 {
        self.from + (value - self.low) / (self.high - self.low) * (self.to - self.from)
    }

    /// Grid lines from `top` to `bottom`, with labels below.
    fn draw_below(&self, drawing: &mut Drawing, top: f64, bottom: f64, most: usize) {
        let ticks = Ticks::new(self.low, self.high, most);
        for &value in &ticks.values {
            let x = self.at(value);
            drawing.line(vec![(x, top), (x, bottom)], Colour::Grid, 1.0, Dash::Solid);
            drawing.text((x, bottom + 17.0), ticks.label(value), SMALL, Anchor::Middle, Colour::Muted);
        }
        drawing.line(vec![(self.from, bottom), (self.to, bottom)], Colour::Muted, 1.0, Dash::Solid);
    }

    /// The same for a vertical axis, with labels on the left.
    fn draw_left(&self, drawing: &mut Drawing, left: f64, right: f64, most: usize) {
        let ticks = Ticks::new(self.low, self.high, most);
        for &value in &ticks.values {
            let y = self.at(value);
            drawing.line(vec![(left, y), (right, y)], Colour::Grid, 1.0, Dash::Solid);
            drawing.text((left - 8.0, y + 4.0), ticks.label(value), SMALL, Anchor::End, Colour::Muted);
        }
        drawing.line(vec![(left, self.from), (left, self.to)], Colour::Muted, 1.0, Dash::Solid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        let labels = |low, high, most| {
            let ticks = Ticks::new(low, high, most);
            ticks.values.iter().map(|&value| ticks.label(value)).collect::<Vec<String>>()
        };
        assert_eq!(labels(0.0, 1.0, 5), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(labels(0.0, 8.0, 8), ["0", "1", "2", "3", "4", "5", "6", "7", "8"]);
        assert_eq!(labels(-0.1, 0.25, 4), ["-0.1", "0.0", "0.1", "0.2"]);
        assert_eq!(labels(0.0, 7200.0, 5), ["0", "2000", "4000", "6000"]);
        assert_eq!(labels(0.5, 0.5, 4), ["0.500000000"]);
    }
}
