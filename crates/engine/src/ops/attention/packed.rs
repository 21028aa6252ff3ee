//! Attention of a sequence to itself: queries, keys and values are three linear layers of one input. Where the GPU's kernels can read them side by
//! side, the three are one product, forwards and backwards.

use super::super::{Activation, Backward, launches};
use super::Setup;
use super::flash::{Inputs, Saved};
use crate::backend::Backend;
use crate::cuda::{Gpu, Grid, Matrix, Product, View, kernels};
use crate::memory::Block;
use crate::{DType, Result, Tape, Tensor};

/// Recorded on a GPU alone: elsewhere the single ops are.
pub(crate) struct SelfAttention {
    x: Tensor,
    /// In a box, for the size of all records.
    layers: Box<Layers>,
    setup: Setup,
    /// The three weights [3 D, D], then the three biases.
    packed: Tensor,
    /// Keys, queries and values side by side, [B * T, 3 D].
    projected: Tensor,
    saved: Saved,
}

/// Weight and bias of keys, queries and values: as the world model declares them, so that their gradients are one batch.
pub(crate) type Layers = [[Tensor; 2]; 3];

impl Tape {
    /// Causal multi-head attention of x to itself, with dropout on the attention weights: x [B, T, D], and weight [D, D] and bias `[D]` of queries,
    /// keys and values -> [B, T, D]. Positions come in blocks of `block`, as in [`block_causal_attention`](Tape::block_causal_attention); 1 where each
    /// sees none after it.
    pub fn causal_self_attention(
        &mut self,
        x: Tensor,
        [query, key, value]: [[Tensor; 2]; 3],
        heads: usize,
        block: usize,
        dropout: f32,
    ) -> Result<Tensor> {
        let layers = [key, query, value];
        if let Backend::Cuda(gpu) = self.backend()
            && let Some(setup) = self.packable(x, &layers, heads, block, dropout)
        {
            return self.gpu_self_attention(&gpu, x, layers, setup);
        }
        // Invalid input takes this path too: the single ops report the error.
        let [q, k, v] =
            [query, key, value].map(|[weight, bias]| self.linear(x, weight, Some(bias), Activation::None));
        self.block_causal_attention(q?, k?, v?, heads, block, dropout)
    }

    /// The shapes, if the kernels take them and all is well; the draw of the masks is still to be chosen.
    fn packable(
        &self,
        x: Tensor,
        layers: &Layers,
        heads: usize,
        block: usize,
        dropout: f32,
    ) -> Option<Setup> {
        let &[batch, time, width] = x.dims() else { return None };
        let fits = |layer: &[Tensor; 2]| self.is_square_layer(x, layer);
        let block = block.min(time);
        let setup = Setup { batch, time, width, heads, block, dropout, site: self.key.site(0) };
        let valid = heads > 0 && width % heads == 0 && block > 0 && (0.0..1.0).contains(&dropout);
        (valid && !x.shape().is_empty() && setup.is_flash(self.float()) && layers.iter().all(fits))
            .then_some(setup)
    }

    /// Whether x [.., D] can go through a linear layer [D, D] with a bias.
    pub(crate) fn is_square_layer(&self, x: Tensor, [weight, bias]: &[Tensor; 2]) -> bool {
        let width = x.shape().last();
        weight.dims() == [width, width]
            && bias.dims() == [width]
            && self.check_f32("self-attention", &[x, *weight]).is_ok()
            && self.check_exact("self-attention", &[*bias]).is_ok()
    }

    fn gpu_self_attention(
        &mut self,
        gpu: &Gpu,
        x: Tensor,
        layers: Layers,
        mut setup: Setup,
    ) -> Result<Tensor> {
        if setup.dropout > 0.0 {
            setup.site = self.next_site();
        }
        let (rows, width, wide) = (setup.batch * setup.time, setup.width, 3 * setup.width);
        let (packed, projected) = project(self, gpu, x, &layers)?;
        let out = self.alloc(rows * width, DType::BF16)?;
        let normaliser = self.alloc(rows * setup.heads, DType::F32)?;
        let inputs = side_by_side(projected.at(), width);
        let kept = setup.flash_forward(self, gpu, inputs, &out, &normaliser)?;
        let needs_grad = self.any_needs_grad(&[x]) || layers.iter().any(|layer| self.any_needs_grad(layer));
        let packed = self.push(packed, [wide * (width + 1)], DType::BF16, false);
        let projected = self.push(projected, [rows, wide], DType::BF16, false);
        let normaliser = self.push(normaliser, [setup.batch, setup.heads, setup.time], DType::F32, false);
        let kept = kept.map(|words| self.push(words, [setup.mask_words()], DType::I32, false));
        let out = self.push(out, x.shape(), DType::BF16, needs_grad);
        if needs_grad {
            let saved = Saved { normaliser, kept, out };
            self.record(SelfAttention { x, layers: Box::new(layers), setup, packed, projected, saved });
        }
        Ok(out)
    }
}

/// x [.., D] -> keys, queries and values side by side, [rows, 3 D], in bf16. Returns the layers' weights and biases one after the other as well.
pub(crate) fn project(tape: &mut Tape, gpu: &Gpu, x: Tensor, layers: &Layers) -> Result<(Block, Block)> {
    let (rows, width) = (x.shape().rows(), x.shape().last());
    let wide = 3 * width;
    let packed = pack(tape, gpu, layers, width)?;
    let projected = tape.alloc(rows * wide, DType::BF16)?;
    let input = tape.gpu_operand(gpu, x, DType::BF16)?;
    gpu.product(&Product {
        bias: Some(packed.at() + 2 * (wide * width) as u64),
        ..Product::new(
            (rows, wide, width),
            Matrix::rows(input.at, DType::BF16, width),
            Matrix::transposed(packed.at(), DType::BF16, width),
            Matrix::rows(projected.at(), DType::BF16, wide),
        )
    })?;
    tape.release(input);
    Ok((packed, projected))
}

/// The weights and biases one after the other.
fn pack(tape: &mut Tape, gpu: &Gpu, layers: &Layers, width: usize) -> Result<Block> {
    let packed = tape.alloc(3 * width * (width + 1), DType::BF16)?;
    let [weights, biases] =
        [0, 1].map(|part| layers.map(|layer| tape.gpu_operand(gpu, layer[part], DType::BF16)));
    let ([w0, w1, w2], [b0, b1, b2]) = (weights, biases);
    let (weights, biases) = ([w0?, w1?, w2?], [b0?, b1?, b2?]);
    let grid = Grid::elements(gpu, 3 * width * (width + 1) / 2);
    let ([w0, w1, w2], [b0, b1, b2]) = (&weights, &biases);
    let (at, weight, bias) = (packed.at(), width * width, width);
    kernels::pack_layers(gpu, grid, at, w0.at, w1.at, w2.at, b0.at, b1.at, b2.at, weight, bias)?;
    weights.into_iter().chain(biases).for_each(|operand| tape.release(operand));
    Ok(packed)
}

/// Keys, queries and values, or their gradients, in rows of [3 D].
fn side_by_side(at: u64, width: usize) -> Inputs {
    let part = |i: usize| at + (2 * i * width) as u64;
    Inputs { k: part(0), q: part(1), v: part(2), stride: 3 * width }
}

impl Backward for SelfAttention {
    fn backward(self, tape: &mut Tape) -> Result<()> {
        tape.pass_gradients(
            (self.saved.out, None),
            |_, _| Ok(()),
            |tape, gpu, d_out| self.gpu_backward(tape, gpu, d_out),
        )
    }
}

impl SelfAttention {
    fn gpu_backward(&self, tape: &mut Tape, gpu: &Gpu, d_out: &Block) -> Result<()> {
        let Setup { batch, time, width, .. } = self.setup;
        let (rows, wide) = (batch * time, 3 * width);
        let d = tape.alloc(rows * wide, DType::BF16)?;
        let inputs = side_by_side(tape.at(self.projected), width);
        let gradients = side_by_side(d.at(), width);
        self.setup.flash_gradients(tape, gpu, inputs, gradients, self.saved, d_out)?;
        if let Some(dx) = tape.grad(self.x)? {
            let a = Matrix::rows(d.at(), DType::BF16, wide);
            let b = Matrix::rows(tape.at(self.packed), DType::BF16, width);
            let out = Matrix::rows(dx.at(), dx.dtype(), width);
            let start = dx.accumulate.then(|| dx.at());
            gpu.product(&Product { start, ..Product::new((rows, width, wide), a, b, out) })?;
            tape.put_grad(dx);
        }
        self.weight_gradients(tape, gpu, &d)?;
        let (parts, count) = launches::column_parts(tape, gpu, View::new(d.at(), DType::BF16), rows, wide)?;
        tape.add_sums(gpu, parts, count, &self.layers.map(|[_, bias]| bias))?;
        tape.give_back(d);
        Ok(())
    }

    /// dW = d^T x for each layer: one batch where the gradients lie evenly apart.
    fn weight_gradients(&self, tape: &mut Tape, gpu: &Gpu, d: &Block) -> Result<()> {
        let Setup { batch, time, width, .. } = self.setup;
        let mut homes = Vec::with_capacity(3);
        for (i, &[weight, _]) in self.layers.iter().enumerate() {
            if let Some(grad) = tape.grad(weight)? {
                homes.push((i, grad.at(), grad.dtype(), grad.accumulate));
                tape.put_grad(grad);
            }
        }
        let (apart, count) = match homes[..] {
            [a, b, c]
                if b.1 > a.1
                    && b.1 - a.1 == c.1.wrapping_sub(b.1)
                    && (a.2, a.3) == (b.2, b.3)
                    && (b.2, b.3) == (c.2, c.3) =>
            {
                ((b.1 - a.1) as usize / a.2.size(), 3)
            }
            _ => (0, 1),
        };
        let x = tape.gpu_operand(gpu, self.x, DType::BF16)?;
        for &(i, at, dtype, accumulate) in homes.iter().step_by(count) {
            let a = Matrix::transposed(d.at() + (2 * i * width) as u64, DType::BF16, 3 * width).every(width);
            let b = Matrix::rows(x.at, DType::BF16, width);
            let out = Matrix::rows(at, dtype, width).every(apart);
            gpu.product(&Product {
                start: accumulate.then_some(at),
                batch: count,
                ..Product::new((width, width, batch * time), a, b, out)
            })?;
        }
        tape.release(x);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::check_gradients;

    /// What inputs are scaled by: scores about as far apart as in training, whatever the width. A sharper softmax turns rounded queries and keys into other
    /// weights; smaller inputs leave little of values but their bias, which cancels out of the gradients of queries and keys.
    fn scale(width: usize) -> f32 {
        (8.0 / width as f32).sqrt().min(1.0)
    }

    #[test]
    fn gradients() {
        let shapes = [(2, 5, 6, 3, 1), (2, 70, 64, 1, 1), (1, 130, 128, 2, 1), (1, 136, 128, 2, 17)];
        for (batch, time, width, heads, block) in shapes {
            let (x, weight, bias): (&[usize], &[usize], &[usize]) =
                (&[batch, time, width], &[width, width], &[width]);
            let dims = [x, weight, bias, weight, bias, weight];
            for dropout in [0.0, 0.3] {
                // Keys share a bias with others: alone it has no gradient, since softmax cancels what it adds to a row of scores.
                check_gradients(&dims, |tape, x| {
                    let [key, query, value] = [[x[1], x[2]], [x[3], x[4]], [x[5], x[2]]];
                    let input = tape.affine(x[0], scale(width), 0.0)?;
                    tape.causal_self_attention(input, [query, key, value], heads, block, dropout)
                });
                // Weights in another order; some of them, and x, used twice: not for queries and keys, for each position would see itself alone.
                check_gradients(&dims, |tape, x| {
                    let [query, key, value] = [[x[1], x[2]], [x[5], x[2]], [x[3], x[4]]];
                    let input = tape.affine(x[0], scale(width), 0.0)?;
                    let y = tape.causal_self_attention(input, [query, key, value], heads, block, dropout)?;
                    let z = tape.causal_self_attention(input, [query, key, query], heads, block, dropout)?;
                    tape.add(y, z)
                });
            }
        }
    }
}
