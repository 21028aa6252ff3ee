//! Figures with a line and a band per agent.

use super::{Axis, Figure, LARGE, NORMAL, SMALL, score_label};
use crate::draw::{Anchor, Colour, Dash, Drawing, Point, text_width};
use crate::report::{Estimate, Report};

const LEFT: f64 = 74.0;
const TOP: f64 = 48.0;
const PLOT: (f64, f64) = (520.0, 320.0);
const LEGEND_ROW: f64 = 22.0;
/// Every so many points a marker, so that lines can be told apart without their colour.
const MARKERS: usize = 5;

struct Series {
    label: String,
    index: usize,
    /// One of the user's agents, which stand out among the published ones.
    own: bool,
    points: Vec<(f64, Estimate)>,
}

impl Series {
    fn has_bands(&self) -> bool {
        self.points.iter().any(|(_, estimate)| estimate.interval.is_some())
    }
}

/// What is said about bands, if there are any.
fn bands(series: &[Series]) -> &'static str {
    match series.iter().any(Series::has_bands) {
        true => " Bands are 95% stratified bootstrap intervals.",
        false => "",
    }
}

/// The axes' labels and ranges.
struct Frame<'a> {
    title: &'a str,
    across: &'a str,
    up: &'a str,
    x: [f64; 2],
    y: [f64; 2],
}

fn draw(frame: &Frame, series: &[Series]) -> Drawing {
    let names = series.iter().map(|series| text_width(&series.label, NORMAL) * 1.05).fold(0.0, f64::max);
    let (right, bottom) = (LEFT + PLOT.0, TOP + PLOT.1);
    let legend = right + 24.0;
    let height = (bottom + 58.0).max(TOP + series.len() as f64 * LEGEND_ROW + 20.0);
    let mut drawing = Drawing::new((legend + 44.0 + names + 14.0).ceil(), height, frame.title.to_string());
    drawing.heading((18.0, 26.0), frame.title, LARGE, Anchor::Start);
    let x = Axis { low: frame.x[0], high: frame.x[1], from: LEFT, to: right };
    let y = Axis { low: frame.y[0], high: frame.y[1], from: bottom, to: TOP };
    x.draw_below(&mut drawing, TOP, bottom, 8);
    y.draw_left(&mut drawing, LEFT, right, 5);
    drawing.text((LEFT + PLOT.0 / 2.0, bottom + 40.0), frame.across, SMALL, Anchor::Middle, Colour::Muted);
    drawing.turned((24.0, TOP + PLOT.1 / 2.0), frame.up, SMALL);
    for Series { index, points, .. } in series {
        let edge =
            |end: usize| points.iter().filter_map(move |(at, estimate)| Some((*at, estimate.interval?[end])));
        let mut band: Vec<Point> = edge(1).map(|(at, value)| (x.at(at), y.at(value))).collect();
        band.extend(edge(0).collect::<Vec<_>>().iter().rev().map(|&(at, value)| (x.at(at), y.at(value))));
        if !band.is_empty() {
            drawing.area(band, Colour::Series(*index), 0.16);
        }
    }
    for (row, Series { label, index, own, points }) in series.iter().enumerate() {
        let colour = Colour::Series(*index);
        let (width, dash) = if *own { (3.5, Dash::Solid) } else { (2.0, Dash::of_series(*index)) };
        let line: Vec<Point> =
            points.iter().map(|(at, estimate)| (x.at(*at), y.at(estimate.value))).collect();
        let every = (line.len() / MARKERS).max(1);
        // Different series have their markers at different places.
        for &point in line.iter().skip(every * (row % MARKERS) / MARKERS).step_by(every) {
            marker(&mut drawing, point, row, colour);
        }
        drawing.line(line, colour, width, dash);
        let level = TOP + (row as f64 + 0.5) * LEGEND_ROW;
        drawing.line(vec![(legend, level), (legend + 32.0, level)], colour, width, dash);
        marker(&mut drawing, (legend + 16.0, level), row, colour);
        drawing.name((legend + 42.0, level + 4.5), label, NORMAL, Anchor::Start, *own);
    }
    drawing
}

/// A circle, square, diamond, or triangle up or down.
fn marker(drawing: &mut Drawing, (x, y): Point, kind: usize, colour: Colour) {
    let (corners, turn, radius) =
        [(16, 0.0, 4.2), (4, 0.5, 5.0), (4, 0.0, 5.4), (3, 0.25, 5.2), (3, 0.75, 5.2)][kind % 5];
    let corner = |i: usize| {
        let angle = (i as f64 + turn) / corners as f64 * std::f64::consts::TAU;
        let angle = if corners == 3 { (i as f64 / 3.0 - turn) * std::f64::consts::TAU } else { angle };
        (x + radius * angle.cos(), y + radius * angle.sin())
    };
    drawing.area((0..corners).map(corner).collect(), colour, 1.0);
}

/// None when there are only published means: their runs are not known.
pub fn profiles(report: &Report) -> Option<Figure> {
    let end = profile_end(report);
    let shown = report.taus.iter().filter(|tau| **tau <= end).count();
    let series: Vec<Series> = report
        .agents
        .iter()
        .enumerate()
        .filter(|(_, agent)| !agent.means_only)
        .map(|(index, agent)| Series {
            label: agent.name.clone(),
            index,
            own: report.is_apart(agent),
            points: report.taus[..shown].iter().copied().zip(agent.profile.iter().copied()).collect(),
        })
        .collect();
    let title = "Performance profiles";
    let across = format!("{} (tau)", score_label(report));
    let frame = Frame {
        title,
        across: &across,
        up: "Fraction of runs with score > tau",
        x: [0.0, end],
        y: [0.0, 1.0],
    };
    (!series.is_empty()).then(|| Figure {
        name: "profiles",
        caption: format!("The share of runs, over all games, that score more than tau.{}", bands(&series)),
        drawing: draw(&frame, &series),
    })
}

/// Where no run of any agent scores more, rounded up to halves; at least 1.
fn profile_end(report: &Report) -> f64 {
    let agents = report.agents.iter().filter(|agent| !agent.means_only);
    let reached = agents.flat_map(|agent| {
        report.taus.iter().zip(&agent.profile).filter(|(_, share)| share.value > 0.0).map(|(tau, _)| *tau)
    });
    let highest = reached.fold(0.0, f64::max);
    let last = report.taus.last().copied().unwrap_or(1.0);
    // A little room: the profile comes down to 0 before the end.
    (((highest + 0.04) * 2.0 - 1e-9).ceil() / 2.0).clamp(1.0, last.max(1.0))
}

pub fn curves(report: &Report) -> Figure {
    let agents = report.agents.iter().enumerate().filter(|(_, agent)| agent.curve.len() > 1);
    let series: Vec<Series> = agents
        .map(|(index, agent)| Series {
            label: agent.name.clone(),
            index,
            own: report.is_apart(agent),
            points: agent.curve.iter().map(|point| (point.steps, point.iqm)).collect(),
        })
        .collect();
    let points = || series.iter().flat_map(|series| &series.points);
    let ends =
        points().flat_map(|(_, estimate)| estimate.interval.into_iter().flatten().chain([estimate.value]));
    let (low, high) =
        ends.fold((0.0, 0.0), |(low, high): (f64, f64), value| (low.min(value), high.max(value)));
    let room = ((high - low) * 0.05).max(0.02);
    let last = points().map(|(steps, _)| *steps).fold(0.0, f64::max);
    let title = "Sample efficiency";
    let up = format!("{}, IQM", score_label(report));
    let low = if low < 0.0 { low - room } else { 0.0 };
    let frame = Frame { title, across: "Steps played", up: &up, x: [0.0, last], y: [low, high + room] };
    Figure {
        name: "curves",
        caption: format!(
            "The interquartile mean of the newest evaluations at each step that every run has reached.{}",
            bands(&series)
        ),
        drawing: draw(&frame, &series),
    }
}
