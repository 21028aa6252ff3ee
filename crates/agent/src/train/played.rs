//! What was played in an epoch, for `episodes.jsonl`: returns and lengths of the episodes that ended, and how often each action was taken.

use serde_json::{Value, json};

#[derive(Default)]
pub(super) struct Played {
    returns: Vec<f64>,
    lengths: Vec<f64>,
    actions: Vec<u64>,
}

impl Played {
    /// Nothing yet, in a game with this many actions.
    pub fn new(actions: usize) -> Played {
        Played { actions: vec![0; actions], ..Played::default() }
    }

    pub fn count_action(&mut self, action: usize) {
        if let Some(count) = self.actions.get_mut(action) {
            *count += 1;
        }
    }

    /// An episode that ended.
    pub fn add_episode(&mut self, total: f32, length: usize) {
        self.returns.push(f64::from(total));
        self.lengths.push(length as f64);
    }

    pub fn episodes(&self) -> usize {
        self.returns.len()
    }

    /// All values, their means and standard deviations, and the actions by name.
    pub fn summary(&self, names: &[String]) -> Value {
        let actions: serde_json::Map<String, Value> =
            names.iter().cloned().zip(self.actions.iter().map(|count| (*count).into())).collect();
        let lengths: Vec<u64> = self.lengths.iter().map(|length| *length as u64).collect();
        let mut summary = json!({ "returns": self.returns, "lengths": lengths, "actions": actions });
        for (name, values) in [("return", &self.returns), ("length", &self.lengths)] {
            if let Some((mean, deviation)) = mean_and_deviation(values) {
                summary[format!("{name}_mean")] = mean.into();
                summary[format!("{name}_deviation")] = deviation.into();
            }
        }
        summary
    }
}

/// Mean and standard deviation (divided by n); none of nothing.
fn mean_and_deviation(values: &[f64]) -> Option<(f64, f64)> {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
    (!values.is_empty()).then(|| (mean, variance.sqrt()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_has_all_values_and_their_spread() {
        let names = ["left", "right"].map(String::from);
        let mut played = Played::new(2);
        [1, 1, 0, 1].into_iter().for_each(|action| played.count_action(action));
        let empty = played.summary(&names);
        assert_eq!(empty, json!({ "returns": [], "lengths": [], "actions": { "left": 1, "right": 3 } }));
        played.add_episode(1.0, 10);
        played.add_episode(-3.0, 30);
        let summary = played.summary(&names);
        assert_eq!(summary["returns"], json!([1.0, -3.0]));
        assert_eq!(summary["lengths"], json!([10, 30]));
        assert_eq!(summary["return_mean"], json!(-1.0));
        assert_eq!(summary["return_deviation"], json!(2.0));
        assert_eq!(summary["length_mean"], json!(20.0));
        assert_eq!(summary["length_deviation"], json!(10.0));
    }
}
