//! Batched matrix products: C[b] = A[b] B[b] for every b.

use super::Backward;
use crate::backend::Backend;
use crate::cpu::{self, Mat, Start, gemm_serial, packed_len};
use crate::cuda::{Gpu, Matrix, Product};
use crate::memory::Block;
use crate::{Error, Result, Tape, Tensor};

pub(crate) struct Matmul {
    a: Tensor,
    b: Tensor,
    size: Size,
    out: Tensor,
}

/// [batch, m, k] x [batch, k, p] -> [batch, m, p]
#[derive(Clone, Copy)]
struct Size {
    batch: usize,
    m: usize,
    k: usize,
    p: usize,
}

const OP: &str = "matmul";

impl Tape {
    /// Batched matrix product: [N, M, K] x [N, K, P] -> [N, M, P].
    pub fn matmul(&mut self, a: Tensor, b: Tensor) -> Result<Tensor> {
        self.check_f32(OP, &[a, b])?;
        self.check_not_empty(OP, &[a, b])?;
        let (&[batch, m, k], &[batch_b, k_b, p]) = (a.dims(), b.dims()) else {
            let rule = "both have three dimensions";
            return Err(Error::ShapeMismatch { op: OP, lhs: a.shape(), rhs: b.shape(), rule });
        };
        if (batch, k) != (batch_b, k_b) {
            let rule = "they are [N, M, K] and [N, K, P]";
            return Err(Error::ShapeMismatch { op: OP, lhs: a.shape(), rhs: b.shape(), rule });
        }
        let (size, dtype) = (Size { batch, m, k, p }, self.float());
        let mut out = self.alloc(batch * m * p, dtype)?;
        match self.backend() {
            Backend::Cpu => self.cpu_matmul(size, a, b, &mut out)?,
            Backend::Cuda(gpu) => self.gpu_matmul(&gpu, size, a, b, &out)?,
        }
        let needs_grad = self.any_needs_grad(&[a, b]);
        let out = self.push(out, [batch, m, p], dtype, needs_grad);
        if needs_grad {
            self.record(Matmul { a, b, size, out });
        }
        Ok(out)
    }

    fn cpu_matmul(&mut self, size: Size, a: Tensor, b: Tensor, out: &mut Block) -> Result<()> {
        let Size { batch, m, k, p } = size;
        let room = packed_len(k, p);
        let mut scratch = self.scratch(batch * room)?;
        let (av, bv) = (self.f32(a), self.f32(b));
        cpu::chunks2_mut((out.f32_mut(), m * p), (scratch.f32_mut(), room), |i, c, room| {
            let (a, b) = (Mat::rows(&av[i * m * k..], k), Mat::rows(&bv[i * k * p..], p));
            gemm_serial(m, p, k, a, b, c, p, Start::Zero, room);
        });
        self.give_back(scratch);
        Ok(())
    }

    fn gpu_matmul(&mut self, gpu: &Gpu, size: Size, a: Tensor, b: Tensor, out: &Block) -> Result<()> {
        let (Size { batch, m, k, p }, dtype) = (size, self.float());
        let (x, y) = (self.gpu_operand(gpu, a, dtype)?, self.gpu_operand(gpu, b, dtype)?);
        gpu.product(&Product {
            batch,
            ..Product::new(
                (m, p, k),
                Matrix::rows(x.at, dtype, k).every(m * k),
                Matrix::rows(y.at, dtype, p).every(k * p),
                Matrix::rows(out.at(), dtype, p).every(m * p),
            )
        })?;
        self.release(x);
        self.release(y);
        Ok(())
    }
}

impl Backward for Matmul {
    fn backward(self, tape: &mut Tape) -> Result<()> {
        tape.pass_gradients(
            (self.out, None),
            |tape, dc| self.cpu_backward(tape, dc),
            |tape, gpu, dc| self.gpu_backward(tape, gpu, dc),
        )
    }
}

/// dA = dC B^T, dB = A^T dC
impl Matmul {
    fn cpu_backward(&self, tape: &mut Tape, dc: &Block) -> Result<()> {
        let Size { batch, m, k, p } = self.size;
        let room = packed_len(p, k).max(packed_len(m, p));
        let mut scratch = tape.scratch(batch * room)?;
        let start = |accumulate| if accumulate { Start::C } else { Start::Zero };
        if let Some(mut da) = tape.grad(self.a)? {
            let (bv, from) = (tape.f32(self.b), start(da.accumulate));
            cpu::chunks2_mut((da.slice(), m * k), (scratch.f32_mut(), room), |i, da, room| {
                let (x, y) = (Mat::rows(&dc.f32()[i * m * p..], p), Mat::transposed(&bv[i * k * p..], p));
                gemm_serial(m, k, p, x, y, da, k, from, room);
            });
            tape.put_grad(da);
        }
        if let Some(mut db) = tape.grad(self.b)? {
            let (av, from) = (tape.f32(self.a), start(db.accumulate));
            cpu::chunks2_mut((db.slice(), k * p), (scratch.f32_mut(), room), |i, db, room| {
                let (x, y) = (Mat::transposed(&av[i * m * k..], k), Mat::rows(&dc.f32()[i * m * p..], p));
                gemm_serial(k, p, m, x, y, db, p, from, room);
            });
            tape.put_grad(db);
        }
        tape.give_back(scratch);
        Ok(())
    }

    fn gpu_backward(&self, tape: &mut Tape, gpu: &Gpu, dc: &Block) -> Result<()> {
        let (Size { batch, m, k, p }, dtype) = (self.size, self.out.dtype());
        let d = Matrix::rows(dc.at(), dtype, p).every(m * p);
        if let Some(da) = tape.grad(self.a)? {
            let other = tape.gpu_operand(gpu, self.b, dtype)?;
            let b = Matrix::transposed(other.at, dtype, p).every(k * p);
            let out = Matrix::rows(da.at(), da.dtype(), k).every(m * k);
            let start = da.accumulate.then(|| da.at());
            gpu.product(&Product { start, batch, ..Product::new((m, k, p), d, b, out) })?;
            tape.release(other);
            tape.put_grad(da);
        }
        if let Some(db) = tape.grad(self.b)? {
            let other = tape.gpu_operand(gpu, self.a, dtype)?;
            let a = Matrix::transposed(other.at, dtype, k).every(m * k);
            let out = Matrix::rows(db.at(), db.dtype(), p).every(k * p);
            let start = db.accumulate.then(|| db.at());
            gpu.product(&Product { start, batch, ..Product::new((k, p, m), a, d, out) })?;
            tape.release(other);
            tape.put_grad(db);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{check_gradients, on_tape};

    #[test]
    fn gradients() {
        for (batch, m, k, p) in [(1, 1, 1, 1), (2, 3, 5, 4), (3, 13, 7, 66)] {
            check_gradients(&[&[batch, m, k], &[batch, k, p]], |tape, x| tape.matmul(x[0], x[1]));
        }
    }

    #[test]
    fn wrong_shapes_are_named() {
        let error = on_tape(&[&[2, 3, 4], &[2, 5, 6]], |tape, x| tape.matmul(x[0], x[1])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "matmul: shapes [2, 3, 4] and [2, 5, 6] do not fit: they are [N, M, K] and [N, K, P]"
        );
    }
}
