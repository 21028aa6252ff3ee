//! Loops over threads. Work is cut by its shape, never by the number of threads, so results do not depend on it.

use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;

/// Calls `f(task)` for every task.
pub(crate) fn for_each(tasks: usize, f: impl Fn(usize) + Sync + Send) {
    match tasks {
        0 => {}
        1 => f(0),
        _ => (0..tasks).into_par_iter().with_max_len(1).for_each(f),
    }
}

/// Threads that run tasks.
pub(crate) fn threads() -> usize {
    rayon::current_num_threads()
}

/// Calls `f(task, room)` for every task. Tasks that run at the same time have different rooms: one per thread, `room_len` elements of
/// `rooms` each. What a room holds when a task starts is unspecified.
pub(crate) fn for_each_in(
    tasks: usize,
    rooms: &mut [f32],
    room_len: usize,
    f: impl Fn(usize, &mut [f32]) + Sync + Send,
) {
    // Rooms are what is spread over the threads; whoever has one takes the next task until none is left.
    let rooms = &mut rooms[..threads() * room_len];
    let next = AtomicUsize::new(0);
    rooms.par_chunks_exact_mut(room_len).with_max_len(1).for_each(|room| {
        loop {
            let task = next.fetch_add(1, Ordering::Relaxed);
            if task >= tasks {
                break;
            }
            f(task, room);
        }
    });
}

/// Below this many elements a loop is not worth waking another thread for.
const SERIAL: usize = 1 << 14;

/// Calls `f(chunk number, chunk)` for the chunks of `out`.
pub(crate) fn chunks_mut<T: Send>(out: &mut [T], chunk: usize, f: impl Fn(usize, &mut [T]) + Sync + Send) {
    chunks_mut_of(out.len(), out, chunk, f);
}

/// [`chunks_mut`] for loops whose work, in elements touched, is not the length of what they write.
pub(crate) fn chunks_mut_of<T: Send>(
    work: usize,
    out: &mut [T],
    chunk: usize,
    f: impl Fn(usize, &mut [T]) + Sync + Send,
) {
    if work <= SERIAL {
        out.chunks_mut(chunk.max(1)).enumerate().for_each(|(i, c)| f(i, c));
    } else {
        out.par_chunks_mut(chunk.max(1)).enumerate().for_each(|(i, c)| f(i, c));
    }
}

/// Like [`chunks_mut`] over two slices cut alike.
pub(crate) fn chunks2_mut<T: Send, U: Send>(
    a: (&mut [T], usize),
    b: (&mut [U], usize),
    f: impl Fn(usize, &mut [T], &mut [U]) + Sync + Send,
) {
    let work = a.0.len().max(b.0.len());
    chunks2_mut_of(work, a, b, f);
}

/// [`chunks2_mut`] for loops whose work, in elements touched, is not the length of what they write.
pub(crate) fn chunks2_mut_of<T: Send, U: Send>(
    work: usize,
    (a, a_chunk): (&mut [T], usize),
    (b, b_chunk): (&mut [U], usize),
    f: impl Fn(usize, &mut [T], &mut [U]) + Sync + Send,
) {
    if work <= SERIAL {
        a.chunks_mut(a_chunk.max(1))
            .zip(b.chunks_mut(b_chunk.max(1)))
            .enumerate()
            .for_each(|(i, (x, y))| f(i, x, y));
    } else {
        a.par_chunks_mut(a_chunk.max(1))
            .zip(b.par_chunks_mut(b_chunk.max(1)))
            .enumerate()
            .for_each(|(i, (x, y))| f(i, x, y));
    }
}

/// out[j] (+)= the sum of the rows of `parts`, in their order.
pub(crate) fn sum_rows(parts: &[f32], out: &mut [f32], accumulate: bool) {
    let len = out.len();
    const COLUMNS: usize = 4096;
    chunks_mut(out, COLUMNS, |i, out| {
        if !accumulate {
            out.fill(0.0);
        }
        let start = i * COLUMNS;
        for row in parts.chunks(len) {
            for (o, x) in out.iter_mut().zip(&row[start..]) {
                *o += x;
            }
        }
    });
}

/// Rows that one task of [`column_sums`] adds up.
const SUM_ROWS: usize = 1024;

pub(crate) fn column_sums_scratch_len(rows: usize, cols: usize) -> usize {
    rows.div_ceil(SUM_ROWS) * cols
}

/// out[j] (+)= sum over i of x[i][j].
pub(crate) fn column_sums(x: &[f32], out: &mut [f32], accumulate: bool, scratch: &mut [f32]) {
    let cols = out.len();
    let scratch = &mut scratch[..column_sums_scratch_len(x.len() / cols, cols)];
    let partial = |i: usize, part: &mut [f32]| {
        part.fill(0.0);
        let start = i * SUM_ROWS * cols;
        add_rows(&x[start..x.len().min(start + SUM_ROWS * cols)], part);
    };
    match x.len() <= SERIAL {
        true => scratch.chunks_mut(cols).enumerate().for_each(|(i, part)| partial(i, part)),
        false => scratch.par_chunks_mut(cols).enumerate().for_each(|(i, part)| partial(i, part)),
    }
    sum_rows(scratch, out, accumulate);
}

super::multiversion! {
    fn add_rows(x: &[f32], out: &mut [f32]) {
        for row in x.chunks_exact(out.len()) {
            for (o, v) in out.iter_mut().zip(row) {
                *o += v;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Also where tasks start loops of their own, in which a waiting thread may begin another task.
    #[test]
    fn tasks_that_run_at_once_have_rooms_of_their_own() {
        const TASKS: usize = 200;
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        let done: Vec<AtomicUsize> = (0..TASKS).map(|_| AtomicUsize::new(0)).collect();
        let mut rooms = vec![0.0; 3 * 8 + 5];
        pool.install(|| {
            for_each_in(TASKS, &mut rooms, 8, |task, room| {
                room.fill(task as f32);
                for_each(16, |_| std::thread::yield_now());
                assert!(room.len() == 8 && room.iter().all(|&x| x == task as f32));
                done[task].fetch_add(1, Ordering::Relaxed);
            });
        });
        assert!(done.iter().all(|count| count.load(Ordering::Relaxed) == 1));
    }
}
