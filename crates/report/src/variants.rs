//! Tables 7 and 8 of the paper: IRIS with more tokens per frame, and IRIS with more steps.

use serde::Serialize;

use crate::ReportError;
use crate::agents::{Agent, published};
use crate::input::Gathered;
use crate::metrics::{Aggregates, Metric, aggregates, mean, superhuman};
use crate::table::{Cell, decimals};
use crate::text::{aligned, percent, plain};

const BASE: &str = "IRIS";

/// Superhuman games and aggregates of IRIS after 10M steps as the paper prints them. Its scores of the 26 games are not part of this program.
const PRINTED: (usize, Aggregates<f64>) =
    (15, Aggregates { mean: 7.488, median: 1.207, iqm: 2.239, optimality_gap: 0.282 });

/// A table of the paper that compares IRIS with a variant of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VariantTable {
    pub title: &'static str,
    /// The agent that is compared with IRIS.
    pub variant: &'static str,
    /// The first row is the header.
    pub(crate) rows: Vec<Vec<Cell>>,
    /// Whether there are scores of games; otherwise the rows are the aggregates that the paper prints.
    pub has_games: bool,
}

impl VariantTable {
    /// The table as the terminal shows it.
    pub fn text(&self) -> String {
        aligned(&self.rows, false)
    }

    /// What the aggregates come from, where no scores of games are known.
    pub fn note(&self) -> Option<String> {
        let VariantTable { title, variant, has_games, .. } = self;
        (!has_games).then(|| {
            format!(
                "{title}: only the aggregates that the paper prints, the scores of the 26 games are not part of this program; give them as a score file {variant}.json"
            )
        })
    }
}

/// Both tables. The user's agents take precedence over published ones of the same name.
pub fn variant_tables(gathered: &Gathered) -> Result<Vec<VariantTable>, ReportError> {
    let (_, published) = published()?;
    let find = |name: &str| gathered.agents.iter().chain(&published).find(|agent| agent.name == name);
    let mut tables = Vec::new();
    for (title, variant, summarised) in [
        ("Table 7: IRIS with 16 and with 64 tokens per frame", "IRIS-64", false),
        ("Table 8: IRIS after 100k and after 10M steps", "IRIS-10M", true),
    ] {
        let Some(base) = find(BASE) else { continue };
        let mut rows = Rows::new(&base.name, variant);
        let other = find(variant);
        match other {
            Some(other) => rows.compare(base, other, summarised),
            None => rows.summary(summary(base, base.games.keys()), PRINTED),
        }
        tables.push(VariantTable { title, variant, rows: rows.0, has_games: other.is_some() });
    }
    Ok(tables)
}

/// Superhuman games and aggregates of an agent over some of its games.
fn summary<'a>(agent: &Agent, games: impl Iterator<Item = &'a String>) -> (usize, Aggregates<f64>) {
    let scores: Vec<&[f64]> = games.map(|game| agent.games[game].normalised.as_slice()).collect();
    (superhuman(&scores), aggregates(&scores))
}

struct Rows(Vec<Vec<Cell>>);

impl Rows {
    fn new(base: &str, other: &str) -> Rows {
        Rows(vec![["Game", base, other, "Change"].map(plain).to_vec()])
    }

    /// The scores of the games that both played; then the aggregates over these games.
    fn compare(&mut self, base: &Agent, other: &Agent, summarised: bool) {
        let shared: Vec<&String> = base.games.keys().filter(|game| other.games.contains_key(*game)).collect();
        for game in &shared {
            self.row(game, [base, other].map(|agent| mean(&agent.games[*game].scores)), 1);
        }
        if summarised {
            self.summary(summary(base, shared.iter().copied()), summary(other, shared.iter().copied()));
        }
    }

    fn summary(&mut self, before: (usize, Aggregates<f64>), after: (usize, Aggregates<f64>)) {
        self.row("#Superhuman", [before.0, after.0].map(|games| games as f64), 0);
        for metric in Metric::ALL {
            self.row(metric.label(), [before.1[metric], after.1[metric]], 3);
        }
    }

    /// Two values and the relative change.
    fn row(&mut self, label: &str, values: [f64; 2], digits: usize) {
        let [before, after] = values;
        // Of a score below zero there is no share.
        let change = if before > 0.0 { percent(after / before - 1.0) } else { String::new() };
        let numbers = values.map(|value| decimals(value, digits));
        self.0.push([label.to_string()].into_iter().chain(numbers).chain([change]).map(plain).collect());
    }
}
