//! `metrics.jsonl` of runs as columns of numbers. Of a run that goes on, only what is new is read.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use serde_json::{Map, Value};

use crate::index::RunEntry;

/// Runs whose metrics are kept in memory.
const MOST_KEPT: usize = 500;

/// The numbers of a run, a row per epoch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Columns {
    /// Bytes of the file that were understood.
    bytes: u64,
    /// The last line of these: a file in which it has changed is read anew.
    last: Vec<u8>,
    pub epochs: Vec<f64>,
    /// Values by metric; NaN in epochs in which it was not measured.
    pub values: BTreeMap<String, Vec<f64>>,
}

/// Remembers the numbers of the runs that were asked for last.
#[derive(Default)]
pub struct Metrics(Mutex<HashMap<String, (Instant, Arc<Columns>)>>);

impl Metrics {
    /// The numbers of a run; none if it has no file.
    pub fn of(&self, entry: &RunEntry) -> Arc<Columns> {
        let known = self.lock().get(&entry.id).map(|(_, columns)| columns.clone());
        let mut columns = known.unwrap_or_default();
        if let Ok(Some(newer)) = columns.refreshed(&entry.path.join("metrics.jsonl")) {
            columns = Arc::new(newer);
        }
        let mut kept = self.lock();
        kept.insert(entry.id.clone(), (Instant::now(), columns.clone()));
        if kept.len() > MOST_KEPT {
            let oldest = kept.iter().min_by_key(|(_, (used, _))| *used).map(|(id, _)| id.clone());
            oldest.map(|id| kept.remove(&id));
        }
        columns
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, (Instant, Arc<Columns>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Columns {
    /// With what the file holds now; None if that is nothing new.
    fn refreshed(&self, path: &Path) -> std::io::Result<Option<Columns>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        if length == self.bytes {
            return Ok(None);
        }
        if length > self.bytes {
            file.seek(SeekFrom::Start(self.bytes - self.last.len() as u64))?;
            let mut found = Vec::new();
            file.read_to_end(&mut found)?;
            if let Some(more) = found.strip_prefix(&self.last[..]) {
                let mut columns = self.clone();
                columns.append(more);
                return Ok(Some(columns));
            }
        }
        // A run that is continued cuts the file back: it is not what was read before.
        let (mut columns, mut all) = (Columns::default(), Vec::new());
        File::open(path)?.read_to_end(&mut all)?;
        columns.append(&all);
        Ok(Some(columns))
    }

    /// Adds whole lines, but for those that are damaged or of an epoch that was there.
    fn append(&mut self, text: &[u8]) {
        // The last line of a run that is still writing has no end.
        for line in text.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n")) {
            self.bytes += line.len() as u64;
            self.last = line.to_vec();
            let values = serde_json::from_slice::<Map<String, Value>>(line).unwrap_or_default();
            let Some(epoch) = values.get("epoch").and_then(Value::as_f64) else { continue };
            if self.epochs.last().is_some_and(|last| *last >= epoch) {
                continue;
            }
            let rows = self.epochs.len();
            self.epochs.push(epoch);
            for (name, value) in values.iter().filter(|(name, _)| *name != "epoch") {
                let Some(value) = value.as_f64() else { continue };
                let column = self.values.entry(name.clone()).or_default();
                column.resize(rows, f64::NAN);
                column.push(value);
            }
        }
        let rows = self.epochs.len();
        self.values.values_mut().for_each(|column| column.resize(rows, f64::NAN));
    }
}

#[cfg(test)]
mod tests {
    use agent::testing::Scratch;

    use super::*;

    #[test]
    fn a_file_is_followed_while_it_grows_and_when_it_is_cut_back() {
        let scratch = Scratch::new("columns");
        let path = scratch.0.join("metrics.jsonl");
        let read = |columns: &Columns, text: &str| {
            std::fs::write(&path, text).unwrap();
            columns.refreshed(&path).unwrap()
        };
        let one = "{\"epoch\":1,\"loss\":2.5}\n";
        let two = "{\"epoch\":2,\"loss\":null,\"score\":7}\n";
        let first = read(&Columns::default(), one).unwrap();
        assert_eq!((&first.epochs[..], &first.values["loss"][..]), (&[1.0][..], &[2.5][..]));
        assert_eq!(read(&first, one), None);
        // Half a line waits for the rest of it.
        let half = read(&first, &format!("{one}{}", &two[..9])).unwrap();
        assert_eq!(half, first);
        let second = read(&half, &format!("{one}{two}")).unwrap();
        assert_eq!(second.epochs, [1.0, 2.0]);
        assert!(second.values["loss"][0] == 2.5 && second.values["loss"][1].is_nan());
        assert!(second.values["score"][0].is_nan() && second.values["score"][1] == 7.0);
        let again = read(&second, one).unwrap();
        assert_eq!(again, first);
        // Cut back and longer than before when it is looked at next.
        let other = format!("{one}{{\"epoch\":2,\"loss\":1.25}}\n{{\"epoch\":3,\"loss\":1}}\n");
        let other = read(&second, &other).unwrap();
        assert_eq!(
            (&other.epochs[..], &other.values["loss"][..]),
            (&[1.0, 2.0, 3.0][..], &[2.5, 1.25, 1.0][..])
        );
        assert_eq!(other.values.len(), 1);
        // Damage costs the damaged lines.
        let damaged = read(&Columns::default(), &format!("{one}\0\0\n[1]\n{two}")).unwrap();
        assert_eq!(damaged.epochs, [1.0, 2.0]);
    }
}
