//! A device buffer with a fixed number of rows, each for a record of the replay. When all are taken, new records get the rows of others.

use std::collections::HashMap;

use engine::{Buffer, Error, Result};

pub(super) struct Table {
    /// [rows, ..]
    pub buffer: Buffer,
    row_of: HashMap<usize, usize>,
    rows: Vec<Row>,
    /// Rows without a record; the last is taken first.
    free: Vec<usize>,
    /// Number of the current batch, whose rows are not given to others.
    batch: u64,
    /// The row that is given away next, unless the batch needs it.
    next: usize,
}

#[derive(Clone, Copy)]
struct Row {
    record: Option<usize>,
    /// The last batch that needed it.
    batch: u64,
}

impl Table {
    pub fn new(buffer: Buffer) -> Table {
        let count = buffer.shape().dims().first().copied().unwrap_or(0);
        let rows = vec![Row { record: None, batch: 0 }; count];
        Table { buffer, row_of: HashMap::new(), rows, free: (0..count).rev().collect(), batch: 0, next: 0 }
    }

    /// How many records it holds at most.
    pub fn capacity(&self) -> usize {
        self.rows.len()
    }

    pub fn row(&self, record: usize) -> Option<usize> {
        self.row_of.get(&record).copied()
    }

    /// Begins a batch of these records, which keep their rows until the next. Returns those that have none, each once, in order.
    pub fn begin(&mut self, records: &[usize]) -> Vec<usize> {
        self.batch += 1;
        let mut missing = Vec::new();
        for &record in records {
            match self.row_of.get(&record) {
                Some(&row) => self.rows[row].batch = self.batch,
                None => missing.push(record),
            }
        }
        missing.sort_unstable();
        missing.dedup();
        missing
    }

    /// Rows for so many more records of the batch: free ones, then those of records that the batch does not need.
    pub fn reserve(&mut self, count: usize) -> Result<Vec<usize>> {
        let mut reserved = Vec::with_capacity(count);
        let mut looked_at = 0;
        while reserved.len() < count {
            let row = match self.free.pop() {
                Some(row) => row,
                None if looked_at < self.rows.len() => {
                    let row = self.next;
                    self.next = (row + 1) % self.rows.len();
                    looked_at += 1;
                    if self.rows[row].batch == self.batch {
                        continue;
                    }
                    row
                }
                None => {
                    let limit = self.rows.len();
                    return Err(Error::RangeOutOfBounds {
                        op: "replay cache",
                        start: 0,
                        end: limit + 1,
                        limit,
                    });
                }
            };
            if let Some(record) = self.rows[row].record.take() {
                self.row_of.remove(&record);
            }
            self.rows[row].batch = self.batch;
            reserved.push(row);
        }
        Ok(reserved)
    }

    /// What belongs to these records is in these rows now.
    pub fn fill(&mut self, records: &[usize], rows: &[usize]) {
        for (&record, &row) in records.iter().zip(rows) {
            self.rows[row].record = Some(record);
            self.row_of.insert(record, row);
        }
    }

    /// Forgets the records before `oldest`.
    pub fn forget_before(&mut self, oldest: usize) {
        for (number, row) in self.rows.iter_mut().enumerate().rev() {
            if let Some(record) = row.record.filter(|record| *record < oldest) {
                row.record = None;
                self.row_of.remove(&record);
                self.free.push(number);
            }
        }
    }

    /// Forgets all records.
    pub fn clear(&mut self) {
        *self = Table::new(self.buffer.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::Device;

    fn table(rows: usize) -> Table {
        Table::new(Device::cpu(Some(1)).unwrap().buffer::<i32>("table", [rows, 1]).unwrap())
    }

    fn load(table: &mut Table, records: &[usize]) -> Vec<usize> {
        let missing = table.begin(records);
        let rows = table.reserve(missing.len()).unwrap();
        table.fill(&missing, &rows);
        missing
    }

    /// Whether the map and the rows say the same.
    fn check(table: &Table) {
        let held = table.rows.iter().filter(|row| row.record.is_some()).count();
        assert_eq!((held, table.rows.len() - held), (table.row_of.len(), table.free.len()));
        assert!(table.row_of.iter().all(|(record, row)| table.rows[*row].record == Some(*record)));
    }

    #[test]
    fn records_of_a_batch_stay_and_others_make_room() {
        let mut table = table(4);
        assert_eq!(load(&mut table, &[7, 3, 7, 5]), [3, 5, 7]);
        // One row is free, one is taken from a record that the batch does not need.
        assert_eq!(load(&mut table, &[3, 5, 8, 9]), [8, 9]);
        assert!(table.row(7).is_none() && [3, 5, 8, 9].iter().all(|r| table.row(*r).is_some()));
        for first in 0..20 {
            let batch = [first, first + 1, first + 7, first + 30];
            load(&mut table, &batch);
            assert!(batch.iter().all(|record| table.row(*record).is_some()));
            check(&table);
        }
    }

    #[test]
    fn a_batch_that_does_not_fit_is_an_error() {
        let mut table = table(3);
        load(&mut table, &[1, 2]);
        let missing = table.begin(&[1, 2, 3, 4]);
        assert!(matches!(table.reserve(missing.len()), Err(Error::RangeOutOfBounds { limit: 3, .. })));
        assert_eq!(load(&mut table, &[5, 6, 7]), [5, 6, 7]);
    }

    #[test]
    fn forgotten_records_have_no_rows() {
        let mut table = table(4);
        load(&mut table, &[1, 2, 3, 4]);
        table.forget_before(3);
        check(&table);
        assert_eq!(table.begin(&[1, 2, 3, 4]), [1, 2]);
        // Their rows are taken before those of others.
        load(&mut table, &[5, 6]);
        assert!([3, 4, 5, 6].iter().all(|record| table.row(*record).is_some()));
        table.clear();
        check(&table);
        assert_eq!(table.begin(&[3, 4, 5, 6]), [3, 4, 5, 6]);
    }
}
