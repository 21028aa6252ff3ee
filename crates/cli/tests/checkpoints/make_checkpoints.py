"""Writes checkpoints with torch.save, as the reference release does: a flat state dict with its names, shapes and buffers.

    python make_checkpoints.py tiny.pt                            # a tiny agent
    python make_checkpoints.py last.pt reference_layout.json      # paper size, from a list of entries

Values are those of ../../../agent/tests/golden/README.md, so that the importing test can make them again.
"""

import collections
import json
import math
import sys

import numpy as np
import torch


def tiny_layout(c=4, e=6, n=5, size=8, d=8, layers=2, steps=3, actions=3, hidden=5, policy=(4, 6)):
    """Two resolutions (8 and 4, attention at 8), one residual block each in the encoder."""
    entries = []
    add = lambda name, *shape: entries.append((name, list(shape)))

    def norm(name, width):
        add(name + ".weight", width), add(name + ".bias", width)

    def conv(name, i, o, k):
        add(name + ".weight", o, i, k, k), add(name + ".bias", o)

    def linear(name, i, o):
        add(name + ".weight", o, i), add(name + ".bias", o)

    def residual(name):
        for j in (1, 2):
            norm(f"{name}.norm{j}", c), conv(f"{name}.conv{j}", c, c, 3)

    def attention(name):
        norm(name + ".norm", c)
        for part in ("q", "k", "v", "proj_out"):
            conv(f"{name}.{part}", c, c, 1)

    def middle(name):
        residual(name + ".block_1"), attention(name + ".attn_1"), residual(name + ".block_2")

    p = "tokenizer.encoder."
    conv(p + "conv_in", 3, c, 3)
    residual(p + "down.0.block.0"), attention(p + "down.0.attn.0"), conv(p + "down.0.downsample.conv", c, c, 3)
    residual(p + "down.1.block.0")
    middle(p + "mid"), norm(p + "norm_out", c), conv(p + "conv_out", c, e, 3)
    conv("tokenizer.pre_quant_conv", e, e, 1), add("tokenizer.embedding.weight", n, e), conv("tokenizer.post_quant_conv", e, e, 1)
    p = "tokenizer.decoder."
    conv(p + "conv_in", e, c, 3), middle(p + "mid")
    for block in (0, 1):
        residual(p + f"up.0.block.{block}"), attention(p + f"up.0.attn.{block}"), residual(p + f"up.1.block.{block}")
    conv(p + "up.1.upsample.conv", c, c, 3)
    norm(p + "norm_out", c), conv(p + "conv_out", c, 3, 3)

    k = 16
    for layer in range(layers):
        p = f"world_model.transformer.blocks.{layer}."
        norm(p + "ln1", d), norm(p + "ln2", d), add(p + "attn.mask", steps * (k + 1), steps * (k + 1))
        for part in ("key", "query", "value", "proj"):
            linear(p + "attn." + part, d, d)
        linear(p + "mlp.0", d, 4 * d), linear(p + "mlp.2", 4 * d, d)
    norm("world_model.transformer.ln_f", d)
    add("world_model.pos_emb.weight", steps * (k + 1), d)
    add("world_model.embedder.embedding_tables.0.weight", actions, d), add("world_model.embedder.embedding_tables.1.weight", n, d)
    for head, out, count in (("observations", n, steps * k), ("rewards", 3, steps), ("ends", 2, steps)):
        p = f"world_model.head_{head}."
        add(p + "indices", count), linear(p + "head_module.0", d, d), linear(p + "head_module.2", d, out)

    inputs = 3
    for i, o in enumerate(policy):
        conv(f"actor_critic.conv{i + 1}", inputs, o, 3)
        inputs = o
    features = (size >> len(policy)) ** 2 * inputs
    p = "actor_critic.lstm."
    add(p + "weight_ih", 4 * hidden, features), add(p + "weight_hh", 4 * hidden, hidden)
    add(p + "bias_ih", 4 * hidden), add(p + "bias_hh", 4 * hidden)
    linear("actor_critic.critic_linear", hidden, 1), linear("actor_critic.actor_linear", hidden, actions)
    return entries


def uniform(name, count):
    """Numbers in [0, 1) for a tensor of this name."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = ((seed ^ byte) * 0x100000001B3) & (2**64 - 1)
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return (z >> np.uint64(40)).astype(np.float32) / np.float32(2**24)


def value(name, shape):
    if name.endswith("attn.mask"):
        return torch.tril(torch.ones(shape))
    if name.endswith("indices"):
        return torch.arange(shape[0])
    v = torch.from_numpy(2 * uniform(name, math.prod(shape)) - 1)
    if len(shape) == 1:
        v = 1 + 0.1 * v if name.endswith("weight") else 0.05 * v
    elif "embedding" not in name and "pos_emb" not in name:
        v = v * math.sqrt(3 / math.prod(shape[1:]))
    return v.reshape(shape)


def main():
    target = sys.argv[1]
    layout = [entry[:2] for entry in json.load(open(sys.argv[2]))["entries"]] if len(sys.argv) > 2 else tiny_layout()
    torch.save(collections.OrderedDict((name, value(name, shape)) for name, shape in layout), target)


if __name__ == "__main__":
    main()
