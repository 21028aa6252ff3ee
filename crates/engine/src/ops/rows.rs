//! Tables that outlive steps: reading and writing rows by index.

use crate::backend::Backend;
use crate::cuda::{Gpu, Grid, View, kernels};
use crate::memory::Block;
use crate::{Buffer, DType, Error, Result, Tape, Tensor};

impl Tape {
    /// Rows of a buffer [N, ..] named by indices i32 `[M]` -> [M, ..]. An index outside the table, such as -1, gives zeros: padding.
    pub fn gather_rows(&mut self, table: &Buffer, indices: Tensor) -> Result<Tensor> {
        const OP: &str = "gather rows";
        let (rows, row) = self.check_rows(OP, table, indices)?;
        let shape = table.shape().with_dim(0, indices.len());
        let source = self.buffer(table)?;
        let mut out = self.alloc(indices.len() * row, table.dtype())?;
        match self.backend() {
            Backend::Cpu => self.cpu_gather_rows(source, indices, (rows, row), &mut out),
            Backend::Cuda(gpu) => self.gpu_gather_rows(&gpu, source, indices, (rows, row), &out)?,
        }
        Ok(self.push(out, shape, table.dtype(), false))
    }

    fn cpu_gather_rows(&self, table: Tensor, indices: Tensor, (rows, row): (usize, usize), out: &mut Block) {
        let (bytes, line) = (self.bytes(table), row * table.dtype().size());
        for (out, &index) in out.all_mut::<u8>().chunks_exact_mut(line.max(1)).zip(self.i32(indices)) {
            match usize::try_from(index).ok().filter(|&i| i < rows) {
                Some(index) => out.copy_from_slice(&bytes[index * line..(index + 1) * line]),
                None => out.fill(0),
            }
        }
    }

    fn gpu_gather_rows(
        &self,
        gpu: &Gpu,
        table: Tensor,
        indices: Tensor,
        (rows, row): (usize, usize),
        out: &Block,
    ) -> Result<()> {
        let n = indices.len() * row;
        let (grid, to, from, at) = (Grid::elements(gpu, n), out.at(), self.at(table), self.at(indices));
        match table.dtype() {
            dtype @ (DType::F32 | DType::BF16) => {
                let (to, from) = (View::new(to, dtype), View::new(from, dtype));
                kernels::gather(gpu, grid, to, from, at, row, rows, n)
            }
            DType::I32 => kernels::gather_words(gpu, grid, to, from, at, row, rows, n),
            DType::U8 => kernels::gather_bytes(gpu, grid, to, from, at, row, rows, n),
        }
    }

    /// Writes values [M, ..] to the rows of a buffer [N, ..] named by indices i32 `[M]`. Those with an index outside the table are left out; the
    /// others' indices must differ.
    pub fn scatter_rows(&mut self, table: &Buffer, indices: Tensor, values: Tensor) -> Result<()> {
        const OP: &str = "scatter rows";
        let (rows, row) = self.check_rows(OP, table, indices)?;
        self.check(OP, values, table.dtype())?;
        if values.len() != indices.len() * row {
            let rule = "the values are [M, ..] for indices [M] and a table [N, ..]";
            return Err(Error::ShapeMismatch { op: OP, lhs: table.shape(), rhs: values.shape(), rule });
        }
        self.writable(table, values)?;
        match self.backend() {
            Backend::Cpu => self.cpu_scatter_rows(table, indices, values, (rows, row)),
            Backend::Cuda(gpu) => self.gpu_scatter_rows(&gpu, table, indices, values, (rows, row)),
        }
    }

    fn cpu_scatter_rows(
        &mut self,
        table: &Buffer,
        indices: Tensor,
        values: Tensor,
        (rows, row): (usize, usize),
    ) -> Result<()> {
        for m in 0..indices.len() {
            if let Some(index) = usize::try_from(self.i32(indices)[m]).ok().filter(|&i| i < rows) {
                self.store_rows(table, index * row, values, m * row, row)?;
            }
        }
        Ok(())
    }

    fn gpu_scatter_rows(
        &mut self,
        gpu: &Gpu,
        table: &Buffer,
        indices: Tensor,
        values: Tensor,
        (rows, row): (usize, usize),
    ) -> Result<()> {
        let (to, n) = (self.buffer_at(table)?, values.len());
        let (grid, from, at) = (Grid::elements(gpu, n), self.at(values), self.at(indices));
        match table.dtype() {
            DType::F32 | DType::BF16 => {
                let (to, from) = (View::new(to, table.dtype()), View::new(from, values.dtype()));
                kernels::scatter_rows(gpu, grid, to, from, at, row, rows, n)
            }
            DType::I32 => kernels::scatter_rows_words(gpu, grid, to, from, at, row, rows, n),
            DType::U8 => kernels::scatter_rows_bytes(gpu, grid, to, from, at, row, rows, n),
        }
    }

    /// (rows of a table, elements of a row)
    fn check_rows(&self, op: &'static str, table: &Buffer, indices: Tensor) -> Result<(usize, usize)> {
        self.check(op, indices, DType::I32)?;
        let rows = table.shape().dims().first().copied().unwrap_or(0);
        if indices.shape().rank() != 1 || rows == 0 {
            let rule = "indices are [M] for a table [N, ..]";
            return Err(Error::ShapeMismatch { op, lhs: table.shape(), rhs: indices.shape(), rule });
        }
        Ok((rows, table.shape().len() / rows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::integers;
    use crate::{Device, Element, Key, Stepper};

    /// Rows [2, W] written and read back, in any order, with padding.
    fn round_trip<T: Element + From<u8> + PartialEq + std::fmt::Debug>(width: usize) -> Result<()> {
        let device = Device::under_test(1)?;
        let (table, new) =
            (device.buffer::<T>("table", [4, 2, width])?, device.buffer::<T>("rows", [3, 2, width])?);
        let numbers = |from: u8, rows: u8| -> Vec<T> {
            (0..2 * width as u8 * rows).map(|i| T::from(from + i)).collect()
        };
        let row = 2 * width as u8;
        table.write(&numbers(100, 4))?;
        new.write(&numbers(0, 3))?;
        let (read, at) = (device.buffer::<T>("read", [3, 2, width])?, device.buffer::<i32>("at", [3])?);
        at.write(&[3, -1, 0])?;
        Stepper::new(&device, Key::new(0, 0)).run(|tape| {
            let (rows, to) = (tape.buffer(&new)?, tape.buffer(&at)?);
            tape.scatter_rows(&table, to, rows)?;
            let from = integers(tape, &[1, 7, 3]);
            let rows = tape.gather_rows(&table, from)?;
            assert_eq!(rows.dims(), [3, 2, width]);
            tape.store(&read, 0, rows)
        })?;
        let expected = [numbers(2 * row, 1), numbers(100 + row, 2), numbers(0, 1)].concat();
        assert_eq!(table.read::<T>()?, expected);
        assert_eq!(
            read.read::<T>()?,
            [numbers(100 + row, 1), vec![T::from(0); 2 * width], numbers(0, 1)].concat()
        );
        Ok(())
    }

    #[test]
    fn rows_are_written_and_read_by_number() -> Result<()> {
        // The last in units of 16 bytes.
        for width in [3, 8] {
            round_trip::<f32>(width)?;
            round_trip::<i32>(width)?;
            round_trip::<u8>(width)?;
        }
        Ok(())
    }

    #[test]
    fn wrong_shapes_are_errors() -> Result<()> {
        let device = Device::under_test(1)?;
        let table = device.buffer::<f32>("table", [4, 2])?;
        Stepper::new(&device, Key::new(0, 0)).run(|tape| {
            let (at, rows) = (integers(tape, &[0, 1]), crate::testing::constant(tape, &[0.0; 6], [2, 3]));
            assert!(matches!(tape.scatter_rows(&table, at, rows), Err(Error::ShapeMismatch { .. })));
            assert!(matches!(tape.gather_rows(&table, rows), Err(Error::DTypeMismatch { .. })));
            Ok(())
        })
    }
}
