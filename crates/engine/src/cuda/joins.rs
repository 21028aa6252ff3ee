//! Sums over rows, many in one launch. Their table is an argument of the kernel, so that a captured step holds it.

use super::{Gpu, Grid, View, kernels};
use crate::{DType, Result};

/// Entries of a table: a kernel takes at most 4096 bytes of arguments.
const ENTRIES: usize = 120;

/// to [columns] (+)= the sum of `count` rows of f32s from `from` on, `stride` apart.
pub(crate) struct Join {
    pub to: View,
    pub from: u64,
    pub count: usize,
    pub stride: usize,
    pub columns: usize,
    pub accumulate: bool,
}

/// A join as its kernel reads it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    from: u64,
    to: u64,
    count: u32,
    stride: u32,
    columns: u32,
    /// Flags, and from bit 8 on the next entry with the same result, 0 for none.
    link: u32,
}

const ADDS: u32 = 1;
const NARROW: u32 = 2;
/// It is summed up with an earlier entry.
const FOLLOWS: u32 = 4;

/// What the kernel gets.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table([Entry; ENTRIES]);

/// Joins for one launch.
pub(crate) struct Joins {
    table: Table,
    len: usize,
}

impl Default for Joins {
    fn default() -> Joins {
        Joins { table: Table([Entry::default(); ENTRIES]), len: 0 }
    }
}

impl Joins {
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn is_full(&self) -> bool {
        self.len == ENTRIES
    }

    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Several with the same result are added up in the order they come in. There must be room for one more.
    pub fn push(&mut self, join: &Join) {
        let flag = |is: bool, bit: u32| if is { bit } else { 0 };
        let mut link = flag(join.accumulate, ADDS) | flag(join.to.dtype == DType::BF16, NARROW);
        let earlier = self.table.0[..self.len].iter_mut().rev().find(|entry| entry.to == join.to.at);
        if let Some(earlier) = earlier {
            earlier.link |= (self.len as u32) << 8;
            link |= FOLLOWS;
        }
        self.table.0[self.len] = Entry {
            from: join.from,
            to: join.to.at,
            count: join.count as u32,
            stride: join.stride as u32,
            columns: join.columns as u32,
            link,
        };
        self.len += 1;
    }

    /// Starts all of them, if there are any; the table is empty then.
    pub fn launch(&mut self, gpu: &Gpu) -> Result<()> {
        let entries = &self.table.0[..self.len];
        let Some(columns) = entries.iter().map(|entry| entry.columns as usize).max() else { return Ok(()) };
        // A block has 32 columns at a time, and walks on where there are more blocks than four waves.
        let most = (16 * gpu.processors()).div_ceil(self.len);
        let grid = Grid { blocks: (columns.div_ceil(32).min(most), self.len), threads: 512, shared: 0 };
        kernels::join(gpu, grid, &self.table)?;
        self.len = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_with_the_same_result_are_linked_in_order() {
        let mut joins = Joins::default();
        for (to, accumulate) in [(64, true), (128, false), (64, true), (64, true), (128, true)] {
            let to = View::new(to, DType::F32);
            joins.push(&Join { to, from: 0, count: 1, stride: 1, columns: 1, accumulate });
        }
        let links: Vec<u32> = joins.table.0[..joins.len].iter().map(|entry| entry.link).collect();
        assert_eq!(links, [2 << 8 | ADDS, 4 << 8, 3 << 8 | FOLLOWS | ADDS, FOLLOWS | ADDS, FOLLOWS | ADDS]);
    }
}
