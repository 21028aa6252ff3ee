//! The parts of the transformer: blocks and heads.

use engine::{Activation, Buffer, DecodeBlock, KvCache, Params, Result, Tape, Tensor};

use crate::WorldModelConfig;
use crate::layers::{Builder, LAYER_NORM_EPSILON, Linear, Norm};

/// Pre-norm transformer block.
pub struct Block {
    norm1: Norm,
    norm2: Norm,
    key: Linear,
    query: Linear,
    value: Linear,
    projection: Linear,
    expand: Linear,
    contract: Linear,
}

impl Block {
    pub fn new(b: &mut Builder, config: &WorldModelConfig) -> Result<Block> {
        let width = config.width;
        Ok(Block {
            norm1: b.norm("ln1", width)?,
            norm2: b.norm("ln2", width)?,
            key: b.linear("attn.key", width, width)?,
            query: b.linear("attn.query", width, width)?,
            value: b.linear("attn.value", width, width)?,
            projection: b.linear("attn.proj", width, width)?,
            expand: b.linear("mlp.0", width, config.hidden())?,
            contract: b.linear("mlp.2", config.hidden(), width)?,
        })
    }

    /// Positions see all of their `span` and what is before it.
    pub fn forward(
        &self,
        tape: &mut Tape,
        params: &Params,
        (heads, span): (usize, usize),
        [attention, residual]: [f32; 2],
        x: Tensor,
    ) -> Result<Tensor> {
        let h = self.norm1.layer(tape, params, x)?;
        let query = self.query.tensors(tape, params)?;
        let key = self.key.tensors(tape, params)?;
        let value = self.value.tensors(tape, params)?;
        let h = tape.causal_self_attention(h, [query, key, value], heads, span, attention)?;
        let h = self.projection.forward(tape, params, h)?;
        let x = tape.dropout_residual(h, residual, x)?;
        let h = self.norm2.layer(tape, params, x)?;
        let h = self.expand.activated(tape, params, h, Activation::Gelu)?;
        let h = self.contract.forward(tape, params, h)?;
        tape.dropout_residual(h, residual, x)
    }

    pub fn tensors(&self, tape: &mut Tape, params: &Params) -> Result<DecodeBlock> {
        Ok(DecodeBlock {
            attention_norm: self.norm1.tensors(tape, params)?,
            query: self.query.tensors(tape, params)?,
            key: self.key.tensors(tape, params)?,
            value: self.value.tensors(tape, params)?,
            projection: self.projection.tensors(tape, params)?,
            mlp_norm: self.norm2.tensors(tape, params)?,
            expand: self.expand.tensors(tape, params)?,
            contract: self.contract.tensors(tape, params)?,
            epsilon: LAYER_NORM_EPSILON,
        })
    }

    /// Over new tokens by single ops, with the queries [B, n, D] left in a buffer.
    pub fn watched(
        &self,
        tape: &mut Tape,
        params: &Params,
        cache: &KvCache,
        (layer, at): (usize, usize),
        x: Tensor,
        queries: &Buffer,
    ) -> Result<Tensor> {
        let h = self.norm1.layer(tape, params, x)?;
        let q = self.query.forward(tape, params, h)?;
        tape.store(queries, 0, q)?;
        let k = self.key.forward(tape, params, h)?;
        let v = self.value.forward(tape, params, h)?;
        let h = tape.cached_attention(q, k, v, cache, layer, at)?;
        let h = self.projection.forward(tape, params, h)?;
        let x = tape.add(h, x)?;
        let h = self.norm2.layer(tape, params, x)?;
        let h = self.expand.activated(tape, params, h, Activation::Gelu)?;
        let h = self.contract.forward(tape, params, h)?;
        tape.add(h, x)
    }
}

/// Linear, ReLU, Linear.
pub struct Head {
    pub hidden: Linear,
    pub out: Linear,
}

impl Head {
    pub fn new(b: &mut Builder, width: usize, outputs: usize) -> Result<Head> {
        Ok(Head {
            hidden: b.linear("head_module.0", width, width)?,
            out: b.linear("head_module.2", width, outputs)?,
        })
    }

    pub fn forward(&self, tape: &mut Tape, params: &Params, x: Tensor) -> Result<Tensor> {
        let h = self.hidden.activated(tape, params, x, Activation::Relu)?;
        self.out.forward(tape, params, h)
    }
}
