//! Figures with a row per agent: a bar for the interval, a tick for the estimate.

use super::{Axis, Figure, LARGE, NORMAL, SMALL, score_label};
use crate::draw::{Anchor, Colour, Dash, Drawing, text_width};
use crate::metrics::Metric;
use crate::report::{Estimate, Improvements, Report};

const ROW: f64 = 26.0;
const BAR: f64 = 14.0;
const BOTTOM: f64 = 58.0;
const MARGIN: f64 = 18.0;

/// One row: who, in which colour, and how much.
struct Row {
    label: String,
    series: usize,
    /// One of the user's agents, which stand out among the published ones.
    own: bool,
    estimate: Estimate,
}

/// A column of rows over one axis.
struct Panel {
    title: String,
    low: f64,
    high: f64,
    /// A value to compare with.
    mark: Option<f64>,
    rows: Vec<Row>,
}

impl Panel {
    /// Over the range of the rows, and 0.
    fn fitted(title: &str, rows: Vec<Row>) -> Panel {
        let ends = rows
            .iter()
            .flat_map(|row| row.estimate.interval.into_iter().flatten().chain([row.estimate.value]));
        let (low, high) =
            ends.fold((0.0, 0.0), |(low, high): (f64, f64), value| (low.min(value), high.max(value)));
        let room = ((high - low) * 0.06).max(0.02);
        let low = if low < 0.0 { low - room } else { 0.0 };
        Panel { title: title.to_string(), low, high: high + room, mark: None, rows }
    }
}

/// Panels beside each other that share the names on the left.
fn draw(title: &str, axis_label: &str, panels: &[Panel], panel_width: f64) -> Drawing {
    let rows = panels.iter().map(|panel| panel.rows.len()).max().unwrap_or(0);
    let names = panels.iter().flat_map(|panel| &panel.rows).map(|row| text_width(&row.label, NORMAL) * 1.05);
    let left = MARGIN + names.fold(0.0, f64::max) + 14.0;
    // Half a label may stand out at either end of an axis.
    let gap = 44.0;
    let right = left + panels.len() as f64 * (panel_width + gap) - gap;
    let top = if panels.iter().all(|panel| panel.title.is_empty()) { 44.0 } else { 66.0 };
    let bottom = top + rows as f64 * ROW;
    let width = (right + MARGIN + 8.0).max(MARGIN * 2.0 + text_width(title, LARGE) * 1.1);
    let mut drawing = Drawing::new(width.ceil(), bottom + BOTTOM, title.to_string());
    drawing.heading((MARGIN, 26.0), title, LARGE, Anchor::Start);
    for (index, panel) in panels.iter().enumerate() {
        let from = left + index as f64 * (panel_width + gap);
        let axis = Axis { low: panel.low, high: panel.high, from, to: from + panel_width };
        axis.draw_below(&mut drawing, top, bottom, 5);
        if !panel.title.is_empty() {
            drawing.heading((from + panel_width / 2.0, top - 10.0), &panel.title, NORMAL, Anchor::Middle);
        }
        if let Some(mark) = panel.mark {
            let x = axis.at(mark);
            drawing.line(vec![(x, top), (x, bottom)], Colour::Muted, 1.5, Dash::Dashed);
        }
        for (number, row) in panel.rows.iter().enumerate() {
            let middle = top + (number as f64 + 0.5) * ROW;
            if index == 0 {
                drawing.name((left - 12.0, middle + 4.5), &row.label, NORMAL, Anchor::End, row.own);
            }
            draw_row(&mut drawing, &axis, middle, row);
        }
    }
    drawing.text(((left + right) / 2.0, bottom + 40.0), axis_label, SMALL, Anchor::Middle, Colour::Muted);
    drawing
}

fn draw_row(drawing: &mut Drawing, axis: &Axis, middle: f64, row: &Row) {
    let colour = Colour::Series(row.series);
    let (top, bottom) = (middle - BAR / 2.0, middle + BAR / 2.0);
    if let Some([low, high]) = row.estimate.interval {
        let (low, high) = (axis.at(low), axis.at(high));
        let corners = vec![(low, top), (high, top), (high, bottom), (low, bottom)];
        drawing.area(corners.clone(), colour, 0.6);
        if row.own {
            let outline = corners.iter().chain(&corners[..1]).copied().collect();
            drawing.line(outline, Colour::Ink, 1.5, Dash::Solid);
        }
    }
    let x = axis.at(row.estimate.value);
    // Without an interval the tick alone carries the colour.
    let (colour, width) = if row.estimate.interval.is_some() { (Colour::Ink, 1.5) } else { (colour, 2.5) };
    let reach = 4.0;
    drawing.line(vec![(x, top - reach), (x, bottom + reach)], colour, width, Dash::Solid);
}

fn rows(report: &Report, metric: Metric) -> Vec<Row> {
    let agents = report.agents.iter().enumerate();
    agents
        .map(|(series, agent)| Row {
            label: agent.name.clone(),
            series,
            own: report.is_apart(agent),
            estimate: agent.aggregates[metric],
        })
        .collect()
}

fn bars(report: &Report) -> String {
    match report.agents.iter().any(|agent| agent.aggregates.mean.interval.is_some()) {
        true => {
            "Bars are 95% stratified bootstrap intervals; a tick alone has too few runs for one.".to_string()
        }
        false => "There are too few runs for intervals.".to_string(),
    }
}

pub fn aggregates(report: &Report) -> Figure {
    let panels = [Metric::Mean, Metric::Median, Metric::Iqm]
        .map(|metric| Panel::fitted(metric.label(), rows(report, metric)));
    let title = "Aggregate scores";
    Figure {
        name: "aggregates",
        caption: format!("Mean and median over games, interquartile mean over runs. {}", bars(report)),
        drawing: draw(title, score_label(report), &panels, 190.0),
    }
}

pub fn optimality_gap(report: &Report) -> Figure {
    let mut panel = Panel::fitted("", rows(report, Metric::OptimalityGap));
    panel.high = panel.high.max(1.0);
    let title = "Optimality gap";
    Figure {
        name: "optimality_gap",
        caption: format!(
            "How far runs fall short of a score of 1 on average; what lies above 1 does not make up for it. {}",
            bars(report)
        ),
        drawing: draw(title, "Optimality gap (lower is better)", &[panel], 420.0),
    }
}

pub fn improvement(report: &Report, improvements: &Improvements) -> Figure {
    let subject = &improvements.subject;
    let rows = improvements.over.iter().map(|improvement| Row {
        label: improvement.agent.clone(),
        series: report.agents.iter().position(|agent| agent.name == improvement.agent).unwrap_or(0),
        own: false,
        estimate: improvement.probability,
    });
    let panel = Panel { title: String::new(), low: 0.0, high: 1.0, mark: Some(0.5), rows: rows.collect() };
    let title = format!("Probability that {subject} improves on ...");
    Figure {
        name: "improvement",
        caption: format!(
            "How likely a run of {subject} scores more than a run of the other agent, averaged over the games both played; \
             ties count one half. {}",
            bars(report)
        ),
        drawing: draw(&title, &format!("P({subject} > Y)"), &[panel], 420.0),
    }
}
