//! `/api/metrics`: which metrics runs have, and `/api/curves`: one of them, run by run and as mean and band of runs that differ in their seed alone.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use report::{Estimate, ReportError, Rng, Settings};
use serde::{Deserialize, Serialize};

use crate::Studio;
use crate::index::RunEntry;
use crate::labels::labels;
use crate::metrics::Columns;
use crate::problem::{Problem, blocking};
use crate::runs::Chosen;
use crate::summary::Summary;

/// What every metric means: the table of the documentation.
const DOCUMENTATION: &str = include_str!("../../../docs/metrics.md");

/// Enough for the edge of a band on a screen.
const BAND: Settings = Settings { replicates: 200, seed: 0, rng: Rng::Fast };

pub fn routes() -> Router<Arc<Studio>> {
    Router::new()
        .route("/api/metrics", get(metrics))
        .route("/api/curves", get(curves))
        .route("/api/curves.csv", get(csv))
}

#[derive(Serialize)]
struct Described {
    name: String,
    /// As Markdown of one line.
    meaning: Option<&'static str>,
    watch_for: Option<&'static str>,
}

async fn metrics(
    State(studio): State<Arc<Studio>>,
    Query(chosen): Query<Chosen>,
) -> Result<Json<Vec<Described>>, Problem> {
    blocking(move || {
        let mut names = BTreeSet::new();
        for entry in chosen.find(&studio)? {
            names.extend(studio.metrics.of(&entry).values.keys().cloned());
        }
        let described = names.into_iter().map(|name| {
            let [meaning, watch_for] = documentation(&name).unwrap_or_default();
            let text = |text: &'static str| (!text.is_empty()).then_some(text);
            Described { name, meaning: text(meaning), watch_for: text(watch_for) }
        });
        Ok(Json(described.collect()))
    })
    .await
}

/// Meaning and what to watch for of the row that names a metric.
fn documentation(name: &str) -> Option<[&'static str; 2]> {
    let quoted = format!("`{name}`");
    DOCUMENTATION.lines().find_map(|line| {
        let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
        (cells.next()? == quoted).then_some([cells.next()?, cells.next()?])
    })
}

/// What a chart shows.
#[derive(Deserialize)]
struct View {
    #[serde(default)]
    runs: String,
    metric: String,
    #[serde(default)]
    x: Axis,
    /// Share of the past in every value: 0 for none, below 1.
    #[serde(default)]
    smooth: f64,
    #[serde(default)]
    band: Band,
    /// Runs by themselves instead of groups.
    #[serde(default)]
    single: bool,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Axis {
    #[default]
    Epoch,
    Steps,
}

#[derive(Clone, Copy, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Band {
    /// 95% interval of the mean.
    #[default]
    Interval,
    /// From the lowest to the highest run.
    Range,
}

/// A curve per group of runs over common places on the x axis; null where a curve has no value.
#[derive(Debug, PartialEq, Serialize)]
struct Curves {
    x: Vec<f64>,
    groups: Vec<Group>,
}

#[derive(Debug, PartialEq, Serialize)]
struct Group {
    id: String,
    label: String,
    mean: Vec<Option<f64>>,
    low: Vec<Option<f64>>,
    high: Vec<Option<f64>>,
    runs: Vec<Single>,
}

#[derive(Debug, PartialEq, Serialize)]
struct Single {
    id: String,
    name: String,
    seed: Option<u64>,
    values: Vec<Option<f64>>,
}

async fn curves(
    State(studio): State<Arc<Studio>>,
    Query(view): Query<View>,
) -> Result<Json<Curves>, Problem> {
    blocking(move || Ok(Json(compute(&studio, &view)?))).await
}

async fn csv(State(studio): State<Arc<Studio>>, Query(view): Query<View>) -> Result<Response, Problem> {
    let name: String = view.metric.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let disposition = format!("attachment; filename=\"{name}.csv\"");
    let axis = view.x;
    let text = blocking(move || Ok(table(&compute(&studio, &view)?, axis))).await?;
    let headers = [
        (header::CONTENT_TYPE, "text/csv; charset=utf-8".to_string()),
        (header::CONTENT_DISPOSITION, disposition),
    ];
    Ok((headers, text).into_response())
}

fn compute(studio: &Studio, view: &View) -> Result<Curves, Problem> {
    if !(0.0..1.0).contains(&view.smooth) {
        return Err(Problem::bad_request("smooth must be at least 0 and below 1"));
    }
    let chosen = Chosen { runs: view.runs.clone() }.find(studio)?;
    let points: Vec<(RunEntry, Points)> = chosen
        .into_iter()
        .map(|entry| {
            let points = smoothed(points(&studio.metrics.of(&entry), &view.metric, view.x), view.smooth);
            (entry, points)
        })
        .collect();
    let summaries = studio.summaries();
    let settings: Vec<_> = points.iter().map(|(entry, _)| studio.known.settings(entry)).collect();
    let labels = labels(&settings);
    let mut groups: Vec<(String, Vec<Run>)> = Vec::new();
    for ((entry, points), label) in points.into_iter().zip(labels) {
        let summary = summaries.iter().find(|summary| summary.entry.id == entry.id);
        let group = match summary {
            Some(summary) if !view.single => summary.group.clone(),
            _ => entry.id.clone(),
        };
        let label = label.unwrap_or_else(|| entry.name.clone());
        let run = Run { label, seed: seed(summary), entry, points };
        match groups.iter_mut().find(|(id, _)| *id == group) {
            Some((_, runs)) => runs.push(run),
            None => groups.push((group, vec![run])),
        }
    }
    together(groups, view.band, view.single).map_err(Problem::internal)
}

fn seed(summary: Option<&Summary>) -> Option<u64> {
    summary.and_then(|summary| summary.seed)
}

struct Run {
    entry: RunEntry,
    label: String,
    seed: Option<u64>,
    points: Points,
}

/// Places on the x axis and values.
type Points = Vec<(f64, f64)>;

/// The epochs in which a metric was measured. Of those with the same number of steps, as nothing was played between them, the last.
fn points(columns: &Columns, metric: &str, axis: Axis) -> Points {
    let Some(values) = columns.values.get(metric) else { return Vec::new() };
    let x: &[f64] = match axis {
        Axis::Epoch => &columns.epochs,
        Axis::Steps => columns.values.get("collection/steps").map_or(&[], Vec::as_slice),
    };
    let (mut points, mut last) = (Points::new(), f64::NAN);
    for (x, y) in x.iter().zip(values) {
        last = if x.is_finite() { *x } else { last };
        if last.is_finite() && y.is_finite() {
            if points.last().is_some_and(|(x, _)| *x == last) {
                points.pop();
            }
            points.push((last, *y));
        }
    }
    points
}

/// Exponential moving average whose first values are not drawn towards zero.
fn smoothed(mut points: Points, share: f64) -> Points {
    let (mut sum, mut weight) = (0.0, 0.0);
    for (_, y) in &mut points {
        (sum, weight) = (sum * share + *y, weight * share + 1.0);
        *y = sum / weight;
    }
    points
}

/// Groups over common places on the x axis.
fn together(groups: Vec<(String, Vec<Run>)>, band: Band, single: bool) -> Result<Curves, ReportError> {
    let all = groups.iter().flat_map(|(_, runs)| runs).flat_map(|run| &run.points);
    let mut x: Vec<f64> = all.map(|(x, _)| *x).collect();
    x.sort_unstable_by(f64::total_cmp);
    x.dedup();
    let group = |(id, runs): (String, Vec<Run>)| {
        let values: Vec<Vec<Option<f64>>> = runs.iter().map(|run| spread(&run.points, &x)).collect();
        let (mut mean, mut low, mut high) = (Vec::new(), Vec::new(), Vec::new());
        for place in 0..x.len() {
            let here: Vec<f64> = values.iter().filter_map(|values| values[place]).collect();
            let (value, edges) = middle(&here, band, &format!("{id}/{place}"))?;
            mean.push(value);
            low.push(edges.map(|[low, _]| low));
            high.push(edges.map(|[_, high]| high));
        }
        let label = match runs.first() {
            Some(run) if single => run.entry.name.clone(),
            Some(run) => run.label.clone(),
            None => String::new(),
        };
        let single = |(run, values): (Run, Vec<Option<f64>>)| Single {
            id: run.entry.id,
            name: run.entry.name,
            seed: run.seed,
            values,
        };
        Ok(Group { id, label, mean, low, high, runs: runs.into_iter().zip(values).map(single).collect() })
    };
    let groups = groups.into_iter().map(group).collect::<Result<_, ReportError>>()?;
    Ok(Curves { x, groups })
}

/// The values at all places on the x axis.
fn spread(points: &Points, x: &[f64]) -> Vec<Option<f64>> {
    let mut values = vec![None; x.len()];
    for (at, y) in points {
        if let Ok(place) = x.binary_search_by(|x| x.total_cmp(at)) {
            values[place] = Some(*y);
        }
    }
    values
}

/// Mean and band of some runs; a single one has no band.
fn middle(values: &[f64], band: Band, purpose: &str) -> Result<(Option<f64>, Option<[f64; 2]>), ReportError> {
    let [lowest, highest] =
        [f64::min, f64::max].map(|of| values.iter().copied().reduce(of).unwrap_or(f64::NAN));
    match (values, band) {
        ([], _) => Ok((None, None)),
        ([value], _) => Ok((Some(*value), None)),
        (values, Band::Interval) => {
            let estimate = Estimate::of_mean(values, purpose, BAND)?;
            Ok((Some(estimate.value), estimate.interval))
        }
        (values, Band::Range) => {
            let estimate = Estimate::of_mean(values, purpose, Settings { replicates: 1, ..BAND })?;
            Ok((Some(estimate.value), Some([lowest, highest])))
        }
    }
}

/// What a chart shows as comma-separated values: a column for x, three per group of several runs, one per run.
fn table(curves: &Curves, axis: Axis) -> String {
    let mut columns: Vec<(String, &[Option<f64>])> = Vec::new();
    for group in &curves.groups {
        if group.runs.len() > 1 {
            for (name, values) in [("mean", &group.mean), ("low", &group.low), ("high", &group.high)] {
                columns.push((format!("{} ({name})", group.label), values));
            }
        }
        columns.extend(group.runs.iter().map(|run| (run.name.clone(), run.values.as_slice())));
    }
    let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    let names = columns.iter().map(|(name, _)| quoted(name));
    let first = match axis {
        Axis::Epoch => "epoch",
        Axis::Steps => "collection/steps",
    };
    let mut text = [first.to_string()].into_iter().chain(names).collect::<Vec<_>>().join(",") + "\n";
    for (place, x) in curves.x.iter().enumerate() {
        let values = columns.iter().map(|(_, values)| values[place].map_or(String::new(), |y| y.to_string()));
        text += &([x.to_string()].into_iter().chain(values).collect::<Vec<_>>().join(",") + "\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::Kind;

    fn run(name: &str, points: &[(f64, f64)]) -> Run {
        let entry = RunEntry { id: name.into(), name: name.into(), kind: Kind::Run, path: name.into() };
        Run { entry, label: "catch".into(), seed: Some(1), points: points.to_vec() }
    }

    #[test]
    fn runs_of_a_group_share_a_mean_and_a_band() {
        let runs = vec![run("one", &[(1.0, 2.0), (2.0, 4.0)]), run("two", &[(1.0, 4.0), (3.0, 8.0)])];
        let curves = together(vec![("g".into(), runs)], Band::Range, false).unwrap();
        assert_eq!(curves.x, [1.0, 2.0, 3.0]);
        let group = &curves.groups[0];
        assert_eq!(group.mean, [Some(3.0), Some(4.0), Some(8.0)]);
        assert_eq!(
            (&group.low[..], &group.high[..]),
            (&[Some(2.0), None, None][..], &[Some(4.0), None, None][..])
        );
        assert_eq!(group.runs[1].values, [Some(4.0), None, Some(8.0)]);
        assert_eq!(
            table(&curves, Axis::Epoch),
            "epoch,\"catch (mean)\",\"catch (low)\",\"catch (high)\",\"one\",\"two\"\n1,3,2,4,2,4\n2,4,,,4,\n3,8,,,,8\n"
        );
        // Two runs are drawn as two of one, one of each, or two of the other.
        let interval = middle(&[2.0, 4.0], Band::Interval, "").unwrap();
        assert_eq!(interval, (Some(3.0), Some([2.0, 4.0])));
    }

    #[test]
    fn epochs_without_play_have_the_steps_of_those_before() {
        let (steps, loss) = (vec![100.0, 200.0, f64::NAN, f64::NAN], vec![4.0, 3.0, f64::NAN, 1.0]);
        let mut columns = Columns::default();
        columns.epochs = vec![1.0, 2.0, 3.0, 4.0];
        columns.values = [("collection/steps".into(), steps), ("loss".into(), loss)].into();
        assert_eq!(points(&columns, "loss", Axis::Steps), [(100.0, 4.0), (200.0, 1.0)]);
        assert_eq!(points(&columns, "loss", Axis::Epoch), [(1.0, 4.0), (2.0, 3.0), (4.0, 1.0)]);
        assert_eq!(points(&Columns::default(), "loss", Axis::Steps), []);
    }

    #[test]
    fn smoothing_keeps_constants() {
        assert_eq!(
            smoothed(vec![(1.0, 5.0), (2.0, 5.0), (3.0, 5.0)], 0.9),
            [(1.0, 5.0), (2.0, 5.0), (3.0, 5.0)]
        );
        assert_eq!(smoothed(vec![(1.0, 0.0), (2.0, 3.0)], 0.5), [(1.0, 0.0), (2.0, 2.0)]);
        assert_eq!(smoothed(vec![(1.0, 7.0), (2.0, 3.0)], 0.0), [(1.0, 7.0), (2.0, 3.0)]);
    }

    #[test]
    fn metrics_are_explained() {
        let [meaning, watch_for] = documentation("evaluation/return").unwrap();
        assert!(meaning.starts_with("mean undiscounted return"), "{meaning}");
        assert_eq!(watch_for, "the score");
        assert_eq!(documentation("metric"), None);
    }
}
