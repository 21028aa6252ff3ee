//! Attention: softmax(q k^T / sqrt(d)) v per head. The weights are recomputed for the gradient, not stored.

mod cpu;
mod cuda;
mod flash;
mod packed;

pub(super) use cpu::softmax;
pub(crate) use flash::FLASH_HEAD;
pub(crate) use packed::{Layers, SelfAttention, project};

use super::Backward;
use crate::backend::Backend;
use crate::rng::Site;
use crate::{DType, Error, Result, Tape, Tensor};

pub(crate) struct Attention {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    setup: Setup,
    /// The logarithm of each row's softmax denominator, [B, heads, T].
    normaliser: Tensor,
    /// Which weights dropout kept, where the forward pass wrote it down: a bit each.
    kept: Option<Tensor>,
    out: Tensor,
}

#[derive(Clone, Copy)]
struct Setup {
    batch: usize,
    time: usize,
    width: usize,
    heads: usize,
    /// Positions per block: a query sees the keys up to the end of its block. 1 for causal attention, 0 for attention to all.
    block: usize,
    dropout: f32,
    site: Site,
}

const OP: &str = "attention";

impl Tape {
    /// Causal multi-head attention with dropout on the attention weights: q, k, v [B, T, D] -> [B, T, D].
    pub fn causal_attention(
        &mut self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        heads: usize,
        dropout: f32,
    ) -> Result<Tensor> {
        self.attention_op(q, k, v, heads, 1, dropout)
    }

    /// The same where positions come in blocks of `block`: each attends to all of its block and to those before it.
    pub fn block_causal_attention(
        &mut self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        heads: usize,
        block: usize,
        dropout: f32,
    ) -> Result<Tensor> {
        if block == 0 {
            return Err(Error::BadShape {
                op: OP,
                shape: q.shape(),
                rule: "a block has at least one position",
            });
        }
        self.attention_op(q, k, v, heads, block, dropout)
    }

    /// Single-head attention of every position to every position: q, k, v [B, T, D] -> [B, T, D].
    pub fn spatial_attention(&mut self, q: Tensor, k: Tensor, v: Tensor) -> Result<Tensor> {
        self.attention_op(q, k, v, 1, 0, 0.0)
    }

    fn attention_op(
        &mut self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        heads: usize,
        block: usize,
        dropout: f32,
    ) -> Result<Tensor> {
        self.check_f32(OP, &[q, k, v])?;
        self.check_not_empty(OP, &[q, k, v])?;
        for other in [k, v] {
            if other.shape() != q.shape() {
                let rule = "q, k and v have the same shape";
                return Err(Error::ShapeMismatch { op: OP, lhs: q.shape(), rhs: other.shape(), rule });
            }
        }
        let &[batch, time, width] = q.dims() else {
            return Err(Error::BadShape { op: OP, shape: q.shape(), rule: "q, k and v are [B, T, D]" });
        };
        if heads == 0 || width % heads != 0 {
            return Err(Error::BadShape { op: OP, shape: q.shape(), rule: "the heads divide D" });
        }
        super::dropout::check_rate(OP, dropout)?;
        // A longer block reaches no further than the sequence.
        let block = block.min(time);
        // Without dropout nothing is drawn, so what is drawn later must not depend on whether this ran.
        let site = if dropout > 0.0 { self.next_site() } else { self.key.site(0) };
        let setup = Setup { batch, time, width, heads, block, dropout, site };
        let dtype = self.float();
        let mut out = self.alloc(batch * time * width, dtype)?;
        let mut normaliser = self.alloc(batch * heads * time, DType::F32)?;
        let kept = match self.backend() {
            Backend::Cpu => {
                self.cpu_attention(&setup, [q, k, v], &mut out, &mut normaliser)?;
                None
            }
            Backend::Cuda(gpu) => self.gpu_attention(&gpu, &setup, [q, k, v], &out, &normaliser)?,
        };
        let needs_grad = self.any_needs_grad(&[q, k, v]);
        let normaliser = self.push(normaliser, [batch, heads, time], DType::F32, false);
        let kept = kept.map(|words| self.push(words, [setup.mask_words()], DType::I32, false));
        let out = self.push(out, q.shape(), dtype, needs_grad);
        if needs_grad {
            self.record(Attention { q, k, v, setup, normaliser, kept, out });
        }
        Ok(out)
    }
}

impl Setup {
    fn head_width(&self) -> usize {
        self.width / self.heads
    }

    /// Keys that a query sees.
    fn reach(&self, query: usize) -> usize {
        match self.block {
            0 => self.time,
            block => ((query / block + 1) * block).min(self.time),
        }
    }

    fn scale(&self) -> f32 {
        1.0 / (self.head_width() as f32).sqrt()
    }
}

impl Backward for Attention {
    fn backward(self, tape: &mut Tape) -> Result<()> {
        tape.pass_gradients(
            (self.out, None),
            |tape, d_out| self.cpu_backward(tape, d_out),
            |tape, gpu, d_out| self.gpu_backward(tape, gpu, d_out),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::testing::{Outcome, check_gradients, evaluate, on_tape, values};

    #[test]
    fn gradients() {
        let shapes = [
            (1, 1, 2, 1),
            (2, 5, 6, 3),
            (1, 100, 8, 2),
            (2, 49, 4, 1),
            (2, 16, 64, 1),
            (1, 70, 64, 1),
            (2, 130, 128, 2),
        ];
        for (batch, time, width, heads) in shapes {
            let dims: &[usize] = &[batch, time, width];
            for dropout in [0.0, 0.3] {
                check_gradients(&[dims; 3], |tape, x| {
                    tape.causal_attention(x[0], x[1], x[2], heads, dropout)
                });
            }
            check_gradients(&[dims; 3], |tape, x| tape.spatial_attention(x[0], x[1], x[2]));
        }
        let blocks = [
            (2, 6, 6, 3, 4),
            (1, 51, 8, 2, 17),
            (1, 49, 4, 1, 90),
            (2, 136, 128, 2, 17),
            (1, 130, 64, 1, 65),
        ];
        for (batch, time, width, heads, block) in blocks {
            let dims: &[usize] = &[batch, time, width];
            for dropout in [0.0, 0.3] {
                check_gradients(&[dims; 3], |tape, x| {
                    tape.block_causal_attention(x[0], x[1], x[2], heads, block, dropout)
                });
            }
        }
    }

    #[test]
    fn values_match_the_definition() {
        let (batch, time, width, heads) = (2, 53, 12, 3);
        let d = width / heads;
        let [q, k, v] = [0, 1, 2].map(|i| values(batch * time * width, i));
        for block in [0, 1, 2, 17, 53, usize::MAX] {
            let heads = if block > 0 { heads } else { 1 };
            let d = if block > 0 { d } else { width };
            let out = on_tape(&[&[batch, time, width][..]; 3], |tape, x| match block {
                0 => tape.spatial_attention(x[0], x[1], x[2]),
                1 => tape.causal_attention(x[0], x[1], x[2], heads, 0.0),
                block => tape.block_causal_attention(x[0], x[1], x[2], heads, block, 0.0),
            })
            .unwrap();
            for b in 0..batch {
                for h in 0..heads {
                    for i in 0..time {
                        let at = |j: usize, c: usize| (b * time + j) * width + h * d + c;
                        let seen = match block {
                            0 => time,
                            block => (0..time).filter(|j| j / block <= i / block).count(),
                        };
                        let score = |j: usize| -> f64 {
                            (0..d).map(|c| f64::from(q[at(i, c)] * k[at(j, c)])).sum::<f64>()
                                / (d as f64).sqrt()
                        };
                        let total: f64 = (0..seen).map(|j| score(j).exp()).sum();
                        for c in 0..d {
                            let expected: f64 =
                                (0..seen).map(|j| score(j).exp() / total * f64::from(v[at(j, c)])).sum();
                            assert!((f64::from(out[at(i, c)]) - expected).abs() < 1e-5);
                        }
                    }
                }
            }
        }
    }

    /// With scores of zero, and inputs and gradients that mark one row per column, results and gradients show single weights of 64 rows at a time.
    #[test]
    fn every_pass_drops_the_weights_that_the_cpu_draws() -> Result<()> {
        const RATE: f32 = 0.3;
        let (batch, heads, d) = (2, 2, 64);
        let (width, keep) = (heads * d, 1.0 / (1.0 - RATE));
        for (time, block) in
            [(16, 1), (66, 1), (131, 1), (200, 1), (66, 40), (136, 17), (130, 65), (200, 130)]
        {
            let reach = |query: usize| time.min((query / block + 1) * block);
            let drawn = batch * heads * time * time;
            let mask = evaluate(
                &Device::cpu(Some(1))?,
                &[&[drawn]],
                (&[vec![1.0; drawn]], false),
                &|tape, x| tape.dropout(x[0], RATE),
                None,
            )?
            .result;
            let at = |head: usize, row: usize, c: usize| {
                ((head / heads * time) + row) * width + head % heads * d + c
            };
            let attend = |inputs: &[Vec<f32>], gradient: &[f32]| -> Result<Outcome> {
                let dims: &[usize] = &[batch, time, width];
                let op = |tape: &mut Tape, x: &[Tensor]| {
                    tape.block_causal_attention(x[0], x[1], x[2], heads, block, RATE)
                };
                evaluate(&Device::under_test(2)?, &[dims; 3], (inputs, false), &op, Some(gradient))
            };
            let zeros = vec![0.0; batch * time * width];
            let (mut firsts, mut inner) = (zeros.clone(), vec![0.0; batch * heads * time]);
            for head in 0..batch * heads {
                for row in 0..time {
                    firsts[at(head, row, 0)] = 1.0;
                    let line = head * time + row;
                    let seen = &mask[line * time..][..reach(row)];
                    inner[line] = seen.iter().sum::<f32>() / seen.len() as f32;
                }
            }
            for first in (0..time).step_by(d) {
                let marked = first..time.min(first + d);
                let mut marks = zeros.clone();
                for head in 0..batch * heads {
                    marked.clone().for_each(|row| marks[at(head, row, row - first)] = 1.0);
                }
                let forward = attend(&[zeros.clone(), zeros.clone(), marks.clone()], &marks)?;
                let queries = attend(&[zeros.clone(), marks.clone(), firsts.clone()], &firsts)?;
                let keys = attend(&[marks.clone(), zeros.clone(), firsts.clone()], &firsts)?;
                for head in 0..batch * heads {
                    for query in 0..time {
                        let line = head * time + query;
                        for key in 0..reach(query) {
                            let kept = mask[line * time + key] > 0.0;
                            let place =
                                format!("time {time}, block {block}, head {head}, query {query}, key {key}");
                            // Dropped weights have less gradient than this.
                            let least = (keep / 2.0 - inner[line]) / (8.0 * reach(query) as f32);
                            if marked.contains(&key) {
                                let c = at(head, query, key - first);
                                assert_eq!(forward.result[c] > 0.0, kept, "result, {place}");
                                assert_eq!(queries.gradients[0][c] > least, kept, "queries, {place}");
                            }
                            if marked.contains(&query) {
                                let c = at(head, key, query - first);
                                assert_eq!(forward.gradients[2][c] > 0.0, kept, "values, {place}");
                                assert_eq!(keys.gradients[1][c] > least, kept, "keys, {place}");
                            }
                        }
                    }
                }
            }
        }
        Ok(())
    }

    #[test]
    fn wrong_shapes_are_named() {
        let error = on_tape(&[&[1, 3, 4], &[1, 3, 4], &[1, 2, 4]], |tape, x| {
            tape.causal_attention(x[0], x[1], x[2], 2, 0.0)
        });
        assert!(matches!(error, Err(Error::ShapeMismatch { op: "attention", .. })));
        let error = on_tape(&[&[1, 3, 4][..]; 3], |tape, x| tape.causal_attention(x[0], x[1], x[2], 3, 0.0));
        assert!(error.unwrap_err().to_string().contains("the heads divide D"));
        let error = on_tape(&[&[1, 3, 4][..]; 3], |tape, x| tape.causal_attention(x[0], x[1], x[2], 2, 1.0));
        assert!(error.unwrap_err().to_string().contains("dropout is 1"));
        let error =
            on_tape(&[&[1, 3, 4][..]; 3], |tape, x| tape.block_causal_attention(x[0], x[1], x[2], 2, 0, 0.0));
        assert!(error.unwrap_err().to_string().contains("at least one position"));
    }
}
