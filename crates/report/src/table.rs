//! The paper's table, as cells that know whether they are the best of their row.

use crate::agents::Kind;
use crate::metrics::Metric;
use crate::report::{AgentReport, GameReference, Report};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    pub text: String,
    /// The best of its row without look-ahead search.
    pub bold: bool,
    /// The best of its row.
    pub underlined: bool,
}

/// In JSON a cell is its text.
impl serde::Serialize for Cell {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

/// One game, or one line of the summary below the games.
#[derive(Debug)]
pub struct Row {
    pub label: String,
    /// Which way is up, for the summary.
    pub arrow: Option<bool>,
    pub cells: Vec<Cell>,
}

#[derive(Debug)]
pub struct Table {
    /// Random and skilled play where they are known, then the agents.
    pub columns: Vec<String>,
    /// The header above the columns, each with the number of columns it spans; none where all agents are of one group.
    pub groups: Vec<(&'static str, usize)>,
    pub games: Vec<Row>,
    pub summary: Vec<Row>,
}

pub const MISSING: &str = "-";
const NOT_APPLICABLE: &str = "N/A";

impl Table {
    pub fn new(report: &Report) -> Table {
        let agents = &report.agents;
        let columns = ["Random", skilled(report)]
            .map(String::from)
            .into_iter()
            .chain(agents.iter().map(|a| a.name.clone()));
        let games = report.games.iter().map(|game| {
            let digits = digits(game);
            let number =
                |value: Option<f64>| value.map_or(MISSING.to_string(), |value| decimals(value, digits));
            let score = |agent: &AgentReport| number(agent.games.get(&game.game).map(|game| game.mean));
            Row {
                label: game.game.clone(),
                arrow: None,
                cells: ranked(agents, &[number(game.random), number(game.skilled)], score, false, |_| true),
            }
        });
        let games: Vec<Row> = games.collect();
        let superhuman = ranked(
            agents,
            &["0".to_string(), NOT_APPLICABLE.to_string()],
            |agent| agent.superhuman.to_string(),
            false,
            complete,
        );
        let superhuman = Row { label: "#Superhuman".to_string(), arrow: Some(true), cells: superhuman };
        let mut summary: Vec<Row> = report.has_humans().then_some(superhuman).into_iter().collect();
        for metric in Metric::ALL {
            // The references are the ends of the scale by definition.
            let ends = if metric.lower_is_better() { [1.0, 0.0] } else { [0.0, 1.0] };
            let value = |agent: &AgentReport| match agent.means_only && per_run(metric) {
                true => NOT_APPLICABLE.to_string(),
                false => decimals(agent.aggregates[metric].value, 3),
            };
            summary.push(Row {
                label: metric.label().to_string(),
                arrow: Some(!metric.lower_is_better()),
                cells: ranked(
                    agents,
                    &ends.map(|end| decimals(end, 3)),
                    value,
                    metric.lower_is_better(),
                    complete,
                ),
            });
        }
        let mut table = Table { columns: columns.collect(), groups: groups(agents), games, summary };
        // Games that bring their own normalisation have no references to show.
        if report.games.iter().all(|game| game.random.is_none()) {
            table.columns.drain(..2);
            table.groups.retain(|(group, _)| !group.is_empty());
            for row in table.games.iter_mut().chain(&mut table.summary) {
                row.cells.drain(..2);
            }
        }
        table
    }

    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.games.iter().chain(&self.summary)
    }
}

/// Agents that follow each other in the table and do or do not search, after the two references.
fn groups(agents: &[AgentReport]) -> Vec<(&'static str, usize)> {
    let group = |agent: &AgentReport| match agent.kind {
        Kind::Search => "Lookahead search",
        Kind::Agent | Kind::Reference => "No lookahead search",
    };
    let spans = agents.chunk_by(|a, b| group(a) == group(b)).map(|span| (group(&span[0]), span.len()));
    let spans: Vec<_> = std::iter::once(("", 2)).chain(spans).collect();
    if spans.len() > 2 { spans } else { Vec::new() }
}

/// Whose play is the top of the scale.
fn skilled(report: &Report) -> &'static str {
    match report.games.iter().all(|game| game.game.starts_with("arcade/")) {
        _ if report.human_normalised() => "Human",
        true => "Perfect",
        false => "Skilled",
    }
}

/// Decimals of a game's scores: the paper's one, two where scores are a few points and 4.99 is not 5.
fn digits(game: &GameReference) -> usize {
    let small = game.human.is_none() && game.skilled.is_some_and(|skilled| skilled.abs() < 100.0);
    if small { 2 } else { 1 }
}

/// Whether a metric is over runs, so that published means do not give it.
pub fn per_run(metric: Metric) -> bool {
    matches!(metric, Metric::Iqm | Metric::OptimalityGap)
}

/// Whether an agent played every game; aggregates over fewer are of another benchmark.
fn complete(agent: &AgentReport) -> bool {
    agent.missing_games.is_empty()
}

/// A fixed number of decimals, and no negative zero.
pub fn decimals(value: f64, count: usize) -> String {
    let text = format!("{value:.count$}");
    match text.strip_prefix('-') {
        Some(digits) if digits.chars().all(|c| c == '0' || c == '.') => digits.to_string(),
        _ => text,
    }
}

/// The references' cells, then the agents'; the best as printed are marked, so that what looks equal is.
fn ranked(
    agents: &[AgentReport],
    references: &[String; 2],
    text: impl Fn(&AgentReport) -> String,
    lower_is_better: bool,
    competes: impl Fn(&AgentReport) -> bool,
) -> Vec<Cell> {
    let texts: Vec<String> = agents.iter().map(text).collect();
    let value =
        |text: &str| text.parse::<f64>().ok().map(|value| if lower_is_better { -value } else { value });
    let best = |searching: bool| {
        let allowed = |agent: &AgentReport| competes(agent) && (searching || agent.kind != Kind::Search);
        let allowed = agents.iter().zip(&texts).filter(|(agent, _)| allowed(agent));
        allowed.filter_map(|(_, text)| value(text)).max_by(f64::total_cmp)
    };
    let (without_search, overall) = (best(false), best(true));
    // One agent alone is not the best of anything.
    let contest = agents.len() > 1;
    let plain = references.iter().map(|text| Cell { text: text.clone(), bold: false, underlined: false });
    let marked = agents.iter().zip(&texts).map(|(agent, text)| {
        let value = value(text).filter(|_| contest && competes(agent));
        Cell {
            text: text.clone(),
            bold: value.is_some() && value == without_search && agent.kind != Kind::Search,
            underlined: value.is_some() && value == overall,
        }
    });
    plain.chain(marked).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_have_no_sign() {
        assert_eq!(decimals(-0.04, 1), "0.0");
        assert_eq!(decimals(-0.06, 1), "-0.1");
        assert_eq!(decimals(14.55, 1), "14.6");
    }
}
