//! Matrix products on top of the register tile: packing, blocking, threads.

use super::parallel;
use super::tile::{self, FewRows, From, MAX_NR, MR, Panel, Tile};

/// A matrix somewhere in a slice, with any row and column stride.
#[derive(Clone, Copy)]
pub(crate) struct Mat<'a> {
    pub data: &'a [f32],
    pub row: usize,
    pub col: usize,
}

impl<'a> Mat<'a> {
    /// Row-major with `row` values from one row to the next.
    pub fn rows(data: &'a [f32], row: usize) -> Mat<'a> {
        Mat { data, row, col: 1 }
    }

    /// The transpose of a row-major matrix.
    pub fn transposed(data: &'a [f32], row: usize) -> Mat<'a> {
        Mat { data, row: 1, col: row }
    }

    fn check(&self, rows: usize, cols: usize) {
        assert!(rows == 0 || cols == 0 || (rows - 1) * self.row + (cols - 1) * self.col < self.data.len());
    }
}

/// What a product is added to.
#[derive(Clone, Copy)]
pub(crate) enum Start<'a> {
    Zero,
    /// One value per column.
    Bias(&'a [f32]),
    /// What C holds.
    C,
}

/// K is cut so that a panel of B stays in the second-level cache while rows of A pass by.
const KC: usize = 512;

/// Rows of C per task.
const MC: usize = 96;

/// B, rearranged into panels of whole vectors: `[panel][k][width]`, zeros beyond the last column.
#[derive(Clone, Copy)]
pub(crate) struct Packed<'a> {
    data: &'a [f32],
    k: usize,
    n: usize,
    width: usize,
    /// Values from one panel to the next.
    panel: usize,
}

/// Room that packing a k x n matrix needs.
pub(crate) fn packed_len(k: usize, n: usize) -> usize {
    let width = tile::panel_width();
    k * n.div_ceil(width) * width
}

impl<'a> Packed<'a> {
    /// Packs `b` (k x n) into `room`, on all threads.
    pub fn parallel(b: Mat, k: usize, n: usize, room: &'a mut [f32]) -> Packed<'a> {
        b.check(k, n);
        let width = tile::panel_width();
        let room = &mut room[..packed_len(k, n)];
        parallel::chunks_mut(room, k * width, |panel, out| pack_panel(b, n, panel, out));
        Packed { data: room, k, n, width, panel: k * width }
    }

    /// Packs `b` (k x n) into `room`, on this thread.
    pub fn serial(b: Mat, k: usize, n: usize, room: &'a mut [f32]) -> Packed<'a> {
        b.check(k, n);
        let width = tile::panel_width();
        let room = &mut room[..packed_len(k, n)];
        for (panel, out) in room.chunks_mut((k * width).max(1)).enumerate() {
            pack_panel(b, n, panel, out);
        }
        Packed { data: room, k, n, width, panel: k * width }
    }
}

impl Packed<'_> {
    /// The first `k` rows and `n` columns of the packed matrix.
    pub fn corner(self, k: usize, n: usize) -> Self {
        assert!(k <= self.k && n <= self.n);
        Packed { k, n, ..self }
    }
}

fn pack_panel(b: Mat, n: usize, panel: usize, out: &mut [f32]) {
    let width = tile::panel_width();
    let first = panel * width;
    let cols = width.min(n - first);
    if b.col == 1 {
        for (p, line) in out.chunks_exact_mut(width).enumerate() {
            let start = p * b.row + first;
            line[..cols].copy_from_slice(&b.data[start..start + cols]);
            line[cols..].fill(0.0);
        }
    } else {
        for (p0, out) in out.chunks_mut(SQUARE * width).enumerate() {
            for j0 in (0..cols).step_by(SQUARE) {
                let columns = &b.data[(first + j0) * b.col + p0 * SQUARE * b.row..];
                transpose(columns, b.row, b.col, SQUARE.min(cols - j0), &mut out[j0..], width);
            }
            for line in out.chunks_exact_mut(width) {
                line[cols..].fill(0.0);
            }
        }
    }
}

/// Side of the squares that a transposing copy works in.
const SQUARE: usize = 16;

super::multiversion! {
    /// out[p][j] = columns[j][p] for j < count and all lines p of `out`, at most a square of them.
    fn transpose(columns: &[f32], row: usize, col: usize, count: usize, out: &mut [f32], width: usize) {
        let steps = out.len().div_ceil(width);
        let mut square = [[0.0; SQUARE]; SQUARE];
        if row == 1 && steps == SQUARE && count == SQUARE {
            // Through registers: whole vectors are read and written.
            for (j, line) in square.iter_mut().enumerate() {
                line.copy_from_slice(&columns[j * col..j * col + SQUARE]);
            }
            for p in 0..SQUARE {
                let line: [f32; SQUARE] = std::array::from_fn(|j| square[j][p]);
                out[p * width..p * width + SQUARE].copy_from_slice(&line);
            }
        } else {
            for j in 0..count {
                for p in 0..steps {
                    out[p * width + j] = columns[j * col + p * row];
                }
            }
        }
    }
}

/// A pointer that tasks write disjoint tiles through.
#[derive(Clone, Copy)]
pub(super) struct Out(pub *mut f32);

// SAFETY: every task writes tiles of its own; the tasks of one product never share a tile.
unsafe impl Send for Out {}
// SAFETY: as above.
unsafe impl Sync for Out {}

impl Out {
    pub fn get(self) -> *mut f32 {
        self.0
    }
}

/// Room that [`gemm`] needs for its packed operands.
pub(crate) fn gemm_scratch_len(m: usize, n: usize, k: usize, a: Layout) -> usize {
    packed_len(k, n)
        + match a {
            Layout::Rows => 0,
            Layout::Transposed => m.next_multiple_of(MR) * k,
        }
}

/// How A lies in memory.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Layout {
    Rows,
    Transposed,
}

/// C (m x n, `ldc` from row to row) = start + A (m x k) B, on all threads. `scratch` holds the packed operands.
pub(crate) fn gemm(
    m: usize,
    n: usize,
    k: usize,
    a: Mat,
    b: Mat,
    c: &mut [f32],
    ldc: usize,
    start: Start,
    scratch: &mut [f32],
) {
    if m == 0 || n == 0 {
        return;
    }
    a.check(m, k);
    b.check(k, n);
    if m <= FEW_ROWS && a.col == 1 && a.row == k && b.row == 1 && b.col == k && !matches!(start, Start::C) {
        return few_rows(m, n, k, a.data, b.data, c, ldc, start);
    }
    let (room, rows) = scratch.split_at_mut(packed_len(k, n));
    let packed = Packed::parallel(b, k, n, room);
    if a.col == 1 {
        let rows = Rows::Strided { data: a.data, row: a.row, step: 1 };
        return product(m, rows, packed, c, ldc, start, true);
    }
    // A is transposed in memory: bring each tile's rows together, `[tile][k][MR]`.
    let rows = &mut rows[..m.next_multiple_of(MR) * k];
    parallel::chunks_mut(rows, MR * k, |t, out| {
        let first = t * MR;
        let count = MR.min(m - first);
        for (p, line) in out.chunks_exact_mut(MR).enumerate() {
            for r in 0..count {
                line[r] = a.data[(first + r) * a.row + p * a.col];
            }
            line[count..].fill(0.0);
        }
    });
    product(m, Rows::Tiles(rows), packed, c, ldc, start, true);
}

/// Up to here it is faster to stream a Linear's weight in place than to pack it.
const FEW_ROWS: usize = 16;

/// C = start + A W^T for few rows, W (n x k) row-major.
fn few_rows(m: usize, n: usize, k: usize, a: &[f32], w: &[f32], c: &mut [f32], ldc: usize, start: Start) {
    assert!((m - 1) * ldc + n <= c.len());
    const OUTS: usize = 48;
    let bias = match start {
        Start::Bias(bias) => Some(bias),
        _ => None,
    };
    let out = Out(c.as_mut_ptr());
    let task = |i: usize| {
        let first = i * OUTS;
        let outs = OUTS.min(n - first);
        let bias = bias.map(|b| &b[first..first + outs]);
        // SAFETY: `gemm` checked A and W, C was checked above; each task writes its own columns of C.
        unsafe {
            let (w, c) = (w.as_ptr().add(first * k), out.get().add(first));
            tile::few_rows(FewRows { x: a.as_ptr(), rows: m, k, w, outs, bias, c, c_stride: ldc });
        }
    };
    match m * n * k < 1 << 16 {
        true => (0..n.div_ceil(OUTS)).for_each(task),
        false => parallel::for_each(n.div_ceil(OUTS), task),
    }
}

/// C = start + A B on this thread, with B packed already.
pub(crate) fn gemm_packed(m: usize, a: Mat, b: Packed, c: &mut [f32], ldc: usize, start: Start) {
    a.check(m, b.k);
    product(m, Rows::Strided { data: a.data, row: a.row, step: a.col }, b, c, ldc, start, false);
}

/// C = start + A B on this thread, for products that are themselves one task of many. `scratch` needs [`packed_len`].
pub(crate) fn gemm_serial(
    m: usize,
    n: usize,
    k: usize,
    a: Mat,
    b: Mat,
    c: &mut [f32],
    ldc: usize,
    start: Start,
    scratch: &mut [f32],
) {
    if m == 0 || n == 0 {
        return;
    }
    gemm_packed(m, a, Packed::serial(b, k, n, scratch), c, ldc, start);
}

#[derive(Clone, Copy)]
enum Rows<'a> {
    /// In place: row stride, and stride along k.
    Strided { data: &'a [f32], row: usize, step: usize },
    /// Packed by tiles of MR rows.
    Tiles(&'a [f32]),
}

fn product(m: usize, a: Rows, b: Packed, c: &mut [f32], ldc: usize, start: Start, spread: bool) {
    if m == 0 || b.n == 0 {
        return;
    }
    assert!((m - 1) * ldc + b.n <= c.len());
    let panels = b.n.div_ceil(b.width);
    let out = Out(c.as_mut_ptr());
    let task = |i: usize| {
        let (block, panel) = (i / panels, i % panels);
        let (row0, row1) = (block * MC, m.min((block + 1) * MC));
        let first = panel * b.width;
        let cols = b.width.min(b.n - first);
        let mut bias = [0.0; MAX_NR];
        if let Start::Bias(values) = start {
            bias[..cols].copy_from_slice(&values[first..first + cols]);
        }
        let mut k0 = 0;
        loop {
            let kc = KC.min(b.k - k0);
            let panel_data = &b.data[panel * b.panel + k0 * b.width..];
            for row in (row0..row1).step_by(MR) {
                let rows = MR.min(row1 - row);
                let (at, a_step): ([*const f32; MR], usize) = match a {
                    Rows::Strided { data, row: stride, step } => {
                        let pointer = |r: usize| {
                            data.as_ptr().wrapping_add((row + r.min(rows - 1)) * stride + k0 * step)
                        };
                        (std::array::from_fn(pointer), step)
                    }
                    Rows::Tiles(data) => {
                        let tile = data.as_ptr().wrapping_add((row / MR * b.k + k0) * MR);
                        (std::array::from_fn(|r| tile.wrapping_add(r)), MR)
                    }
                };
                let from = match start {
                    _ if k0 > 0 => From::C,
                    Start::Zero => From::Zero,
                    Start::Bias(_) => From::Bias(bias.as_ptr()),
                    Start::C => From::C,
                };
                let tile = Tile {
                    segments: &[Panel { a: at, b: panel_data.as_ptr() }],
                    k: kc,
                    a_step,
                    b_step: b.width,
                    from,
                    c: std::array::from_fn(|r| out.get().wrapping_add((row + r.min(rows - 1)) * ldc + first)),
                    rows,
                    cols,
                };
                // SAFETY: A was checked against m x k, panels hold whole vectors, C was checked against m x n, and each task
                // writes its own rows and columns of it.
                unsafe { tile::run(&tile) };
            }
            k0 += kc;
            if k0 >= b.k {
                break;
            }
        }
    };
    let tasks = m.div_ceil(MC) * panels;
    match spread && m * b.n * b.k >= 1 << 17 {
        true => parallel::for_each(tasks, task),
        false => (0..tasks).for_each(task),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Key, Rng};

    fn random(len: usize, stream: u32) -> Vec<f32> {
        let mut rng = Rng::new(Key::new(1, stream));
        (0..len).map(|_| 2.0 * rng.uniform() - 1.0).collect()
    }

    /// Every layout of A and B, every tail of the tile, K beyond one block: against the definition in f64.
    #[test]
    fn products_match_the_definition() {
        let sizes =
            [(1, 1, 1), (6, 64, 8), (7, 65, 9), (13, 31, 600), (100, 130, 33), (9, 512, 3), (16, 50, 256)];
        for (m, n, k) in sizes {
            let (a, b, bias) = (random(m * k, 1), random(k * n, 2), random(n, 3));
            for (ta, tb) in [(false, false), (false, true), (true, false), (true, true)] {
                let a_mat = if ta { Mat::transposed(&a, m) } else { Mat::rows(&a, k) };
                let b_mat = if tb { Mat::transposed(&b, k) } else { Mat::rows(&b, n) };
                for start in 0..3 {
                    let mut c = random(m * n, 4);
                    let before = c.clone();
                    let start = [Start::Zero, Start::Bias(&bias), Start::C][start];
                    let layout = if ta { Layout::Transposed } else { Layout::Rows };
                    let mut scratch = vec![0.0; gemm_scratch_len(m, n, k, layout)];
                    gemm(m, n, k, a_mat, b_mat, &mut c, n, start, &mut scratch);
                    for i in 0..m {
                        for j in 0..n {
                            let dot: f64 = (0..k)
                                .map(|p| {
                                    let x = a[if ta { p * m + i } else { i * k + p }];
                                    let y = b[if tb { j * k + p } else { p * n + j }];
                                    f64::from(x) * f64::from(y)
                                })
                                .sum();
                            let from = match start {
                                Start::Zero => 0.0,
                                Start::Bias(_) => bias[j],
                                Start::C => before[i * n + j],
                            };
                            let expected = dot + f64::from(from);
                            let error = (f64::from(c[i * n + j]) - expected).abs();
                            assert!(error < 1e-4, "{m}x{n}x{k} {ta} {tb} at {i},{j}: {error}");
                        }
                    }
                }
            }
        }
    }
}
