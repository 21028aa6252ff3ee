//! Vector quantisation: each row becomes the nearest entry of a codebook; its gradient passes straight through.

use super::{Backward, launches};
use crate::backend::Backend;
use crate::cpu::{self, Layout, Mat, Start, gemm, gemm_scratch_len};
use crate::cuda::{Gpu, Grid, Matrix, Product, View, kernels};
use crate::memory::Block;
use crate::{DType, Error, Result, Tape, Tensor};

/// Nearest entries of a codebook.
#[derive(Clone, Copy, Debug)]
pub struct Quantised {
    /// Which entry is nearest, i32 [..].
    pub tokens: Tensor,
    /// The entries themselves, [.., D]. Their gradient passes straight through to the input.
    pub embedded: Tensor,
    /// mean (sg(y) - e)^2 + beta * mean (y - sg(e))^2
    pub commitment: Tensor,
}

pub(crate) struct Quantise {
    y: Tensor,
    codebook: Tensor,
    beta: f32,
    /// What the gradient needs, [.., D]: on the CPU the entries, on a GPU the entries less the inputs.
    saved: Tensor,
    result: Quantised,
}

/// What a backend computes.
struct Nearest {
    tokens: Block,
    embedded: Block,
    commitment: Block,
    /// On a GPU: entries less inputs, [.., D].
    difference: Option<Block>,
}

const OP: &str = "quantise";

impl Tape {
    /// Replaces each row of y by the nearest codebook entry (squared Euclidean distance, the first of equals): y [.., D],
    /// codebook [N, D].
    pub fn quantise(&mut self, y: Tensor, codebook: Tensor, beta: f32) -> Result<Quantised> {
        self.check_f32(OP, &[y])?;
        self.check_exact(OP, &[codebook])?;
        let &[entries, width] = codebook.dims() else {
            return Err(Error::BadShape { op: OP, shape: codebook.shape(), rule: "a codebook is [N, D]" });
        };
        if y.shape().rank() == 0 || y.shape().last() != width || y.len() == 0 || entries == 0 {
            let rule = "y is [.., D] and the codebook [N, D]";
            return Err(Error::ShapeMismatch { op: OP, lhs: y.shape(), rhs: codebook.shape(), rule });
        }
        let nearest = match self.backend() {
            Backend::Cpu => self.cpu_quantise(y, codebook, beta)?,
            Backend::Cuda(gpu) => self.gpu_quantise(&gpu, y, codebook, beta)?,
        };
        let needs_grad = self.any_needs_grad(&[y, codebook]);
        let result = Quantised {
            tokens: self.push(nearest.tokens, y.shape().without_last(), DType::I32, false),
            embedded: self.push(nearest.embedded, y.shape(), self.float(), needs_grad),
            commitment: self.push(nearest.commitment, [], DType::F32, needs_grad),
        };
        let difference = nearest.difference.map(|block| self.push(block, y.shape(), DType::F32, false));
        if needs_grad {
            let saved = difference.unwrap_or(result.embedded);
            self.record(Quantise { y, codebook, beta, saved, result });
        }
        Ok(result)
    }

    fn cpu_quantise(&mut self, y: Tensor, codebook: Tensor, beta: f32) -> Result<Nearest> {
        let (rows, entries, width) = (y.shape().rows(), codebook.dims()[0], codebook.dims()[1]);
        // |y - e|^2 = |y|^2 - 2 y.e + |e|^2, of which |y|^2 is the same for all entries.
        let mut products = self.alloc(rows * entries, DType::F32)?;
        let mut scratch = self.scratch(gemm_scratch_len(rows, entries, width, Layout::Rows))?;
        let mut lengths = self.alloc(entries, DType::F32)?;
        let mut tokens = self.alloc(rows, DType::I32)?;
        let mut embedded = self.alloc(rows * width, DType::F32)?;
        let (yv, table) = (self.f32(y), self.f32(codebook));
        let (a, b) = (Mat::rows(yv, width), Mat::transposed(table, width));
        gemm(rows, entries, width, a, b, products.f32_mut(), entries, Start::Zero, scratch.f32_mut());
        for (length, entry) in lengths.f32_mut().iter_mut().zip(table.chunks_exact(width)) {
            *length = entry.iter().map(|x| x * x).sum();
        }
        for (token, line) in tokens.all_mut::<i32>().iter_mut().zip(products.f32().chunks_exact(entries)) {
            let (mut best, mut least) = (0, f32::INFINITY);
            for (i, (dot, length)) in line.iter().zip(lengths.f32()).enumerate() {
                let distance = length - 2.0 * dot;
                if distance < least {
                    (best, least) = (i, distance);
                }
            }
            *token = best as i32;
        }
        let mut squares = 0.0f64;
        let lines = embedded.f32_mut().chunks_exact_mut(width).zip(yv.chunks_exact(width));
        for ((out, y), &token) in lines.zip(tokens.all::<i32>()) {
            out.copy_from_slice(&table[token as usize * width..][..width]);
            squares += f64::from(out.iter().zip(y).map(|(e, y)| (e - y) * (e - y)).sum::<f32>());
        }
        let mut commitment = self.alloc(1, DType::F32)?;
        commitment.f32_mut()[0] = (squares / y.len() as f64) as f32 * (1.0 + beta);
        for block in [products, scratch, lengths] {
            self.give_back(block);
        }
        Ok(Nearest { tokens, embedded, commitment, difference: None })
    }

    fn gpu_quantise(&mut self, gpu: &Gpu, y: Tensor, codebook: Tensor, beta: f32) -> Result<Nearest> {
        let (rows, entries, width) = (y.shape().rows(), codebook.dims()[0], codebook.dims()[1]);
        let (dtype, n, count) = (self.float(), y.len(), Grid::parts(gpu, y.len()));
        let products = self.scratch(rows * entries)?;
        let lengths = self.scratch(entries)?;
        let sums = self.scratch(2 * count)?;
        let tokens = self.alloc(rows, DType::I32)?;
        let (embedded, difference) = (self.alloc(n, dtype)?, self.alloc(n, DType::F32)?);
        let commitment = self.alloc(1, DType::F32)?;
        // In f32 on every device: neighbouring entries differ by little.
        let exact = self.gpu_operand(gpu, y, DType::F32)?;
        let table = self.at(codebook);
        gpu.product(&Product::new(
            (rows, entries, width),
            Matrix::rows(exact.at, DType::F32, width),
            Matrix::transposed(table, DType::F32, width),
            Matrix::rows(products.at(), DType::F32, entries),
        ))?;
        let (found, length) = (tokens.at(), lengths.at());
        for (phase, count) in [(0, entries), (1, rows)] {
            let (grid, product) = (Grid::warps(gpu, count), products.at());
            kernels::nearest(gpu, grid, found, product, table, length, rows, entries, width, phase)?;
        }
        let (grid, to, from) = (Grid::blocks(count), View::new(embedded.at(), dtype), self.view(y));
        kernels::quantise(gpu, grid, to, difference.at(), from, table, found, sums.at(), width, n)?;
        let scale = (1.0 + f64::from(beta)) / n as f64;
        kernels::sum_of_parts(gpu, Grid::blocks(1), sums.at(), count, scale, commitment.at())?;
        self.release(exact);
        for block in [products, lengths, sums] {
            self.give_back(block);
        }
        Ok(Nearest { tokens, embedded, commitment, difference: Some(difference) })
    }
}

impl Backward for Quantise {
    fn backward(self, tape: &mut Tape) -> Result<()> {
        let straight = tape.take_grad(self.result.embedded);
        let commitment = tape.take_grad(self.result.commitment);
        let gradients = (straight.as_ref(), commitment.as_ref());
        match tape.backend() {
            Backend::Cpu => self.cpu_backward(tape, gradients)?,
            Backend::Cuda(gpu) => self.gpu_backward(tape, &gpu, gradients)?,
        }
        [straight, commitment].into_iter().flatten().for_each(|block| tape.give_back(block));
        Ok(())
    }
}

impl Quantise {
    /// From the gradients of the entries and of the commitment, where there are any.
    fn cpu_backward(
        &self,
        tape: &mut Tape,
        (straight, commitment): (Option<&Block>, Option<&Block>),
    ) -> Result<()> {
        let width = self.codebook.shape().last();
        let pull = commitment.map_or(0.0, |g| 2.0 * g.f32()[0] / self.y.len() as f32);
        if let Some(mut grad) = tape.grad(self.codebook)? {
            let accumulate = grad.accumulate;
            let (y, embedded, tokens) =
                (tape.f32(self.y), tape.f32(self.saved), tape.i32(self.result.tokens));
            let table = grad.slice();
            if !accumulate {
                table.fill(0.0);
            }
            for (row, &token) in tokens.iter().enumerate() {
                let range = row * width..(row + 1) * width;
                let entry = &mut table[token as usize * width..][..width];
                for ((g, e), y) in entry.iter_mut().zip(&embedded[range.clone()]).zip(&y[range]) {
                    *g += pull * (e - y);
                }
            }
            tape.put_grad(grad);
        }
        if let Some(mut grad) = tape.grad(self.y)? {
            let accumulate = grad.accumulate;
            let (y, embedded) = (tape.f32(self.y), tape.f32(self.saved));
            const CHUNK: usize = 1 << 14;
            cpu::chunks_mut(grad.slice(), CHUNK, |i, grad| {
                for (j, g) in grad.iter_mut().enumerate() {
                    let at = i * CHUNK + j;
                    let value =
                        straight.map_or(0.0, |s| s.f32()[at]) + self.beta * pull * (y[at] - embedded[at]);
                    *g = if accumulate { *g + value } else { value };
                }
            });
            tape.put_grad(grad);
        }
        Ok(())
    }

    fn gpu_backward(
        &self,
        tape: &mut Tape,
        gpu: &Gpu,
        (straight, commitment): (Option<&Block>, Option<&Block>),
    ) -> Result<()> {
        let (entries, width, n) = (self.codebook.dims()[0], self.codebook.dims()[1], self.y.len());
        let pull = commitment.map_or(0, Block::at);
        if let Some(grad) = tape.grad(self.codebook)? {
            let (from, tokens) = (tape.view(self.saved), self.result.tokens);
            let (parts, splits) = launches::scatter(tape, gpu, from, tokens, entries, width)?;
            let (table, grid) = (entries * width, Grid::elements(gpu, entries * width));
            let add = grad.accumulate;
            kernels::codebook_gradient(gpu, grid, grad.view(), parts.at(), pull, n, splits, table, add)?;
            tape.give_back(parts);
            tape.put_grad(grad);
        }
        if let Some(grad) = tape.grad(self.y)? {
            let dtype = self.result.embedded.dtype();
            let straight = straight.map_or(View::NOTHING, |block| View::new(block.at(), dtype));
            let (grid, to, from, add) =
                (Grid::elements(gpu, n), grad.view(), tape.at(self.saved), grad.accumulate);
            kernels::quantise_gradient(gpu, grid, to, straight, pull, from, self.beta, n, add)?;
            tape.put_grad(grad);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, gradients as gradients_of, on_tape, values};

    /// The straight-through gradient, and the two commitment terms with their stopped gradients: not derivatives of the value, so checked
    /// against the formulas.
    #[test]
    fn gradients() -> Result<()> {
        let (rows, entries, width, beta) = (5, 3, 4, 0.25);
        let dims: [&[usize]; 2] = [&[rows, width], &[entries, width]];
        let (y, table) = (values(rows * width, 0), values(entries * width, 1));
        let seed = values(rows * width, 2);
        let through = gradients_of(&dims, &seed, |tape, x| Ok(tape.quantise(x[0], x[1], beta)?.embedded))?;
        assert_close(&through[0], &seed);
        assert_eq!(through[1], vec![0.0; entries * width]);

        let pulled = gradients_of(&dims, &[3.0], |tape, x| Ok(tape.quantise(x[0], x[1], beta)?.commitment))?;
        let mut expected_table = vec![0.0; entries * width];
        for row in 0..rows {
            let token = nearest(&y[row * width..][..width], &table);
            for c in 0..width {
                let apart = y[row * width + c] - table[token * width + c];
                let unit = 3.0 * 2.0 * apart / (rows * width) as f32;
                assert!((pulled[0][row * width + c] - beta * unit).abs() < 1e-6);
                expected_table[token * width + c] -= unit;
            }
        }
        for (got, expected) in pulled[1].iter().zip(&expected_table) {
            assert!((got - expected).abs() < 1e-6);
        }
        Ok(())
    }

    fn nearest(y: &[f32], table: &[f32]) -> usize {
        let distance = |entry: &[f32]| -> f32 { y.iter().zip(entry).map(|(y, e)| (y - e).powi(2)).sum() };
        let entries: Vec<f32> = table.chunks(y.len()).map(distance).collect();
        (0..entries.len()).min_by(|&a, &b| entries[a].total_cmp(&entries[b])).unwrap()
    }

    #[test]
    fn finds_the_nearest_entries() -> Result<()> {
        let (y, table) = (values(6 * 4, 0), values(5 * 4, 1));
        on_tape(&[&[2, 3, 4], &[5, 4]], |tape, x| {
            let q = tape.quantise(x[0], x[1], 0.25)?;
            assert_eq!(q.tokens.dims(), [2, 3]);
            let tokens = tape.read::<i32>(q.tokens)?;
            let embedded = tape.read::<f32>(q.embedded)?;
            let mut squares = 0.0;
            for row in 0..6 {
                let token = nearest(&y[row * 4..][..4], &table);
                assert_eq!(tokens[row] as usize, token);
                let entry = &table[token * 4..][..4];
                assert_eq!(&embedded[row * 4..][..4], entry);
                squares += (0..4).map(|c| (y[row * 4 + c] - entry[c]).powi(2)).sum::<f32>();
            }
            assert!((tape.read::<f32>(q.commitment)?[0] - 1.25 * squares / 24.0).abs() < 1e-6);
            Ok(q.commitment)
        })?;
        Ok(())
    }
}
