"""The three networks' losses over 100 updates, computed in PyTorch: what `crates/agent/tests/updates.rs` compares ours with.

    python3 -m venv venv && venv/bin/pip install torch==2.11.0 numpy safetensors
    venv/bin/python scripts/compare_pytorch.py golden        # these networks are the reference release's: its recorded outputs
    venv/bin/python scripts/compare_pytorch.py small         # 100 updates of small networks, with every kind of layer
    venv/bin/python scripts/compare_pytorch.py paper         # of the paper's networks, with small batches
    venv/bin/python scripts/compare_pytorch.py small --write # and records the losses for the tests

Weights and batches are made from names, as crates/agent/tests/golden/README.md says, so that both sides have the same.
The networks are written here from the paper's description; parameters have the release's names.
"""

import argparse
import json
import math
import pathlib
import sys
import time
from types import SimpleNamespace

import numpy as np
import safetensors.torch
import torch
import torch.nn.functional as F

ROOT = pathlib.Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "crates/agent/tests/golden"
sys.path.insert(0, str(ROOT / "crates/cli/tests/checkpoints"))
from make_checkpoints import uniform, value  # noqa: E402

PAPER = SimpleNamespace(
    size=64, channels=64, groups=32, resolutions=5, blocks=2, attention=(8, 16), vocabulary=512, embedding=512,
    steps=20, layers=10, width=256, heads=4, actions=6, policy=(32, 32, 64, 64), hidden=512, horizon=20,
    frames=32, sequences=8, dreams=2, initial=True,
)
SMALL = SimpleNamespace(
    size=16, channels=16, groups=4, resolutions=3, blocks=2, attention=(8, 16), vocabulary=32, embedding=24,
    steps=5, layers=2, width=32, heads=4, actions=6, policy=(8, 8, 16), hidden=32, horizon=6,
    frames=4, sequences=8, dreams=8, initial=False,
)
VGG = [(64, (0, 2)), (128, (5, 7)), (256, (10, 12, 14)), (512, (17, 19, 21)), (512, (24, 26, 28))]


class Weights:
    """Parameters of one network, each made when it is first used."""

    def __init__(self, network, width=None):
        """`width(network, name, shape)` is what matrices, kernels and tables are multiplied by."""
        self.network, self.parameters, self.frozen, self.width = network, {}, {}, width

    def __call__(self, name, *shape):
        if name not in self.parameters:
            x = value(f"{self.network}.{name}", list(shape))
            if self.width and len(shape) > 1:
                x = x * self.width(self.network, name, shape)
            self.parameters[name] = x.requires_grad_()
        return self.parameters[name]

    def constant(self, name, *shape):
        if name not in self.frozen:
            self.frozen[name] = value(f"{self.network}.{name}", list(shape))
        return self.frozen[name]


def conv(p, name, x, outputs, kernel, **options):
    weight = p(f"{name}.weight", outputs, x.shape[1], kernel, kernel)
    return F.conv2d(x, weight, p(f"{name}.bias", outputs), **options)


def linear(p, name, x, outputs):
    return F.linear(x, p(f"{name}.weight", outputs, x.shape[-1]), p(f"{name}.bias", outputs))


# The tokenizer: x [B, 3, H, W] in [-1, 1].


def group_norm(p, c, name, x):
    return F.group_norm(x, c.groups, p(f"{name}.weight", x.shape[1]), p(f"{name}.bias", x.shape[1]), eps=1e-6)


def residual(p, c, name, x):
    h = conv(p, f"{name}.conv1", F.silu(group_norm(p, c, f"{name}.norm1", x)), c.channels, 3, padding=1)
    return x + conv(p, f"{name}.conv2", F.silu(group_norm(p, c, f"{name}.norm2", h)), c.channels, 3, padding=1)


def image_attention(p, c, name, x):
    h = group_norm(p, c, f"{name}.norm", x)
    q, k, v = (conv(p, f"{name}.{part}", h, c.channels, 1).flatten(2) for part in "qkv")
    scores = (q.transpose(1, 2) @ k / math.sqrt(c.channels)).softmax(-1)
    h = (v @ scores.transpose(1, 2)).reshape(x.shape)
    return x + conv(p, f"{name}.proj_out", h, c.channels, 1)


def middle(p, c, name, x):
    x = residual(p, c, f"{name}.block_1", x)
    x = image_attention(p, c, f"{name}.attn_1", x)
    return residual(p, c, f"{name}.block_2", x)


def level(p, c, name, x, blocks):
    for block in range(blocks):
        x = residual(p, c, f"{name}.block.{block}", x)
        if x.shape[-1] in c.attention:
            x = image_attention(p, c, f"{name}.attn.{block}", x)
    return x


def encode(p, c, x):
    x = conv(p, "encoder.conv_in", x, c.channels, 3, padding=1)
    for i in range(c.resolutions):
        x = level(p, c, f"encoder.down.{i}", x, c.blocks)
        if i + 1 < c.resolutions:
            x = conv(p, f"encoder.down.{i}.downsample.conv", F.pad(x, (0, 1, 0, 1)), c.channels, 3, stride=2)
    x = F.silu(group_norm(p, c, "encoder.norm_out", middle(p, c, "encoder.mid", x)))
    return conv(p, "pre_quant_conv", conv(p, "encoder.conv_out", x, c.embedding, 3, padding=1), c.embedding, 1)


def quantise(p, c, y):
    """y [B, E, h, w] -> tokens [B, h * w] and their embeddings [B, E, h, w]"""
    codebook = p("embedding.weight", c.vocabulary, c.embedding)
    flat = y.permute(0, 2, 3, 1).flatten(0, 2)
    distances = flat.pow(2).sum(1, keepdim=True) + codebook.pow(2).sum(1) - 2 * flat @ codebook.t()
    tokens = distances.argmin(1)
    z = codebook[tokens].reshape(y.shape[0], y.shape[2], y.shape[3], -1).permute(0, 3, 1, 2)
    return tokens.reshape(y.shape[0], -1), z


def decode(p, c, z):
    x = conv(p, "post_quant_conv", z, c.embedding, 1)
    x = middle(p, c, "decoder.mid", conv(p, "decoder.conv_in", x, c.channels, 3, padding=1))
    for i in reversed(range(c.resolutions)):
        x = level(p, c, f"decoder.up.{i}", x, c.blocks + 1)
        if i > 0:
            x = conv(p, f"decoder.up.{i}.upsample.conv", x.repeat_interleave(2, 2).repeat_interleave(2, 3), c.channels, 3, padding=1)
    x = F.silu(group_norm(p, c, "decoder.norm_out", x))
    return conv(p, "decoder.conv_out", x, 3, 3, padding=1)


def perceptual(p, a, b):
    """LPIPS [B] of images in [-1, 1]; `p` makes frozen weights."""
    shift = torch.tensor([-0.030, -0.088, -0.188]).reshape(3, 1, 1)
    scale = torch.tensor([0.458, 0.448, 0.450]).reshape(3, 1, 1)
    unit = lambda x: x / (x.pow(2).sum(1, keepdim=True).sqrt() + 1e-10)
    a, b, total = (a - shift) / scale, (b - shift) / scale, 0
    for i, (channels, layers) in enumerate(VGG):
        if i > 0:
            a, b = F.max_pool2d(a, 2), F.max_pool2d(b, 2)
        for layer in layers:
            a, b = (conv(p, f"lpips.net.slice{i + 1}.{layer}", x, channels, 3, padding=1).relu() for x in (a, b))
        weights = p(f"lpips.lin{i}.model.1.weight", 1, channels, 1, 1)
        total = total + F.conv2d((unit(a) - unit(b)).pow(2), weights).mean((1, 2, 3))
    return total


def tokenizer_losses(p, c, frozen, x):
    y = encode(p, c, x)
    _, z = quantise(p, c, y)
    reconstruction = decode(p, c, y + (z - y).detach())
    return {
        "commitment_loss": (y.detach() - z).pow(2).mean() + (y - z.detach()).pow(2).mean(),
        "reconstruction_loss": (x - reconstruction).abs().mean(),
        "perceptual_loss": perceptual(frozen, x, reconstruction).mean(),
    }


# The world model: tokens [B, L, K], and actions, reward classes, ends and mask [B, L].


def layer_norm(p, name, x):
    return F.layer_norm(x, x.shape[-1:], p(f"{name}.weight", x.shape[-1]), p(f"{name}.bias", x.shape[-1]))


def transformer_block(p, c, name, x):
    batch, positions, width = x.shape
    h = layer_norm(p, f"{name}.ln1", x)
    heads = lambda part: linear(p, f"{name}.attn.{part}", h, width).reshape(batch, positions, c.heads, -1).transpose(1, 2)
    q, k, v = heads("query"), heads("key"), heads("value")
    scores = q @ k.transpose(2, 3) / math.sqrt(k.shape[-1])
    future = torch.ones(positions, positions, dtype=torch.bool).triu(1)
    h = scores.masked_fill(future, float("-inf")).softmax(-1) @ v
    x = x + linear(p, f"{name}.attn.proj", h.transpose(1, 2).reshape(x.shape), width)
    h = F.gelu(linear(p, f"{name}.mlp.0", layer_norm(p, f"{name}.ln2", x), 4 * width))
    return x + linear(p, f"{name}.mlp.2", h, width)


def head(p, name, x, outputs):
    return linear(p, f"head_{name}.head_module.2", linear(p, f"head_{name}.head_module.0", x, x.shape[-1]).relu(), outputs)


def world_model(p, c, tokens, actions):
    """Hidden states [B, L, K + 1, D], and logits of next tokens [B, L * K, N], rewards [B, L, 3] and ends [B, L, 2]"""
    batch, steps, k = tokens.shape
    frames = p("embedder.embedding_tables.1.weight", c.vocabulary, c.width)[tokens]
    acts = p("embedder.embedding_tables.0.weight", c.actions, c.width)[actions]
    x = torch.cat([frames, acts[:, :, None]], 2).reshape(batch, steps * (k + 1), c.width)
    x = x + p("pos_emb.weight", c.steps * (k + 1), c.width)[: x.shape[1]]
    for layer in range(c.layers):
        x = transformer_block(p, c, f"transformer.blocks.{layer}", x)
    x = layer_norm(p, "transformer.ln_f", x).reshape(batch, steps, k + 1, c.width)
    # A frame token follows after all tokens of a step but the last of the frame.
    speaking = torch.cat([x[:, :, : k - 1], x[:, :, k:]], 2).reshape(batch, steps * k, c.width)
    return x, head(p, "observations", speaking, c.vocabulary), head(p, "rewards", x[:, :, k], 3), head(p, "ends", x[:, :, k], 2)


def world_model_losses(p, c, tokens, actions, rewards, ends, mask):
    _, next_tokens, reward, end = world_model(p, c, tokens, actions)
    padded = lambda labels, real: labels.masked_fill(~real, -100).flatten()
    cross_entropy = lambda logits, labels: F.cross_entropy(logits.flatten(0, 1), labels)
    coming = tokens.masked_fill(~mask[:, :, None], -100).flatten(1)[:, 1:]
    return {
        "loss_obs": cross_entropy(next_tokens[:, :-1], coming.flatten()),
        "loss_rewards": cross_entropy(reward, padded(rewards, mask)),
        "loss_ends": cross_entropy(end, padded(ends, mask)),
    }


# The actor-critic: frames [B, T, 3, H, W] in [0, 1].


def look(p, c, x):
    x = 2 * x - 1
    for i, channels in enumerate(c.policy):
        x = F.max_pool2d(conv(p, f"conv{i + 1}", x, channels, 3, padding=1), 2).relu()
    return x.flatten(1)


def remember(p, c, features, state):
    """The gates are input, forget, cell, output."""
    hidden, cell = state
    gates = F.linear(features, p("lstm.weight_ih", 4 * c.hidden, features.shape[1]), p("lstm.bias_ih", 4 * c.hidden))
    gates = gates + F.linear(hidden, p("lstm.weight_hh", 4 * c.hidden, c.hidden), p("lstm.bias_hh", 4 * c.hidden))
    i, f, g, o = gates.chunk(4, 1)
    cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


def follow(p, c, frames, state):
    """Logits [B, T, A] and values [B, T]"""
    logits, values = [], []
    for t in range(frames.shape[1]):
        state = remember(p, c, look(p, c, frames[:, t]), state)
        logits.append(linear(p, "actor_linear", state[0], c.actions))
        values.append(linear(p, "critic_linear", state[0], 1)[:, 0])
    return torch.stack(logits, 1), torch.stack(values, 1)


def lambda_returns(rewards, ends, values, gamma=0.995, decay=0.95):
    returns = [values[:, -1]]
    for t in reversed(range(values.shape[1] - 1)):
        ahead = (1 - decay) * values[:, t + 1] + decay * returns[0]
        returns.insert(0, rewards[:, t] + gamma * (1 - ends[:, t]) * ahead)
    return torch.stack(returns, 1)


def actor_critic_losses(p, c, frames, actions, rewards, ends, state):
    """As the release: steps after an end count too, the last is the bootstrap."""
    logits, values = follow(p, c, frames, state)
    returns = lambda_returns(rewards, ends, values.detach())[:, :-1]
    log_probs = logits[:, :-1].log_softmax(-1)
    chosen = log_probs.gather(2, actions[:, :-1, None])[..., 0]
    advantage = returns - values[:, :-1].detach()
    return {
        "loss_actions": -(chosen * advantage).mean(),
        "loss_values": (values[:, :-1] - returns).pow(2).mean(),
        "loss_entropy": -0.001 * -(log_probs.exp() * log_probs).sum(-1).mean(),
    }


# Batches and updates.


def integers(name, below, *shape):
    return torch.from_numpy(np.floor(uniform(name, math.prod(shape)) * np.float32(below)).astype(np.int64)).reshape(shape)


def pictures(name, count, size):
    """Coloured rectangles: u8 [count, size, size, 3]"""
    rectangles = 6
    u = uniform(name, count * (3 + 7 * rectangles)).reshape(count, -1)
    number = lambda u, below: int(np.floor(u * np.float32(below)))
    images = np.zeros((count, size, size, 3), np.uint8)
    for image, row in zip(images, u):
        image[:] = [number(x, 256) for x in row[:3]]
        for r in row[3:].reshape(rectangles, 7):
            top, left = number(r[0], size), number(r[1], size)
            height, width = 1 + number(r[2], size // 2), 1 + number(r[3], size // 2)
            image[top : top + height, left : left + width] = [number(x, 256) for x in r[4:]]
    return images


def frames_of(images):
    return torch.from_numpy(images).permute(0, 3, 1, 2).float()


def frozen_weights(p):
    """LPIPS's linear weights are not negative."""
    absolute = lambda name, w: w.abs() if ".lin" in name else w
    return lambda name, *shape: absolute(name, p.constant(name, *shape))


def tokenizer_update(p, c, update):
    x = frames_of(pictures(f"updates.{update}.frames", c.frames, c.size)) * (2 / 255) - 1
    return tokenizer_losses(p, c, frozen_weights(p), x)


def world_model_update(p, c, update):
    batch, k = c.sequences, (c.size >> (c.resolutions - 1)) ** 2
    name = f"updates.{update}"
    actions = integers(f"{name}.actions", c.actions, batch, c.steps)
    # Something to learn: tokens count the steps and show the last action, an action has its reward, which another one replaces in a quarter of all steps. No
    # loss can come near zero, where rounding is a large share of it.
    tokens = 3 * integers(f"{name}.tokens", 8, batch, 1, k) + torch.arange(c.steps)[None, :, None]
    tokens = (tokens + F.pad(actions, (1, 0))[:, :-1, None]) % c.vocabulary
    other = integers(f"{name}.rewards", 12, batch, c.steps)
    rewards = torch.where(other < 3, other, (actions - 2).sign() + 1)
    length = 1 + integers(f"{name}.lengths", c.steps, batch, 1)
    step = torch.arange(c.steps)[None]
    ends = ((step == length - 1) & (length < c.steps)).long()
    return world_model_losses(p, c, tokens, actions, rewards, ends, step < length)


def actor_critic_update(p, c, update):
    batch, time = c.dreams, c.horizon
    name = f"updates.{update}"
    frames = frames_of(pictures(f"{name}.dreams", batch * time, c.size)) / 255
    actions = integers(f"{name}.ac_actions", c.actions, batch, time)
    rewards = (integers(f"{name}.ac_rewards", 4, batch, time) - 1).clamp(max=1).float()
    ends = (integers(f"{name}.ac_ends", 8, batch, time) == 0).float()
    state = [torch.from_numpy(2 * uniform(f"{name}.{part}", batch * c.hidden) - 1).reshape(batch, -1) for part in ("hidden", "cell")]
    return actor_critic_losses(p, c, frames.unflatten(0, (batch, time)), actions, rewards, ends, state)


UPDATES = {"tokenizer": tokenizer_update, "world_model": world_model_update, "actor_critic": actor_critic_update}


def optimiser(network, parameters):
    if network != "world_model":
        return torch.optim.Adam(parameters.values(), lr=1e-4)
    plain = lambda name: name.endswith("bias") or "emb" in name or ".ln" in name
    groups = [{"params": [x for name, x in parameters.items() if plain(name) == kind], "weight_decay": decay} for kind, decay in ((True, 0.0), (False, 0.01))]
    return torch.optim.AdamW(groups, lr=1e-4)


def descend(parameters, adam, losses):
    adam.zero_grad()
    sum(losses.values()).backward()
    norm = torch.nn.utils.clip_grad_norm_(parameters.values(), 10.0)
    adam.step()
    return norm


def initial_width(network, name, shape):
    """Makes a generated tensor as wide as the release initialises it. At the paper's size rounding grows to 1% within ten updates of the wider golden weights."""
    if network == "world_model":
        deviation = 1 / math.sqrt(3) if "emb" in name else 1 / math.sqrt(math.prod(shape[1:]))
        return 0.02 / deviation
    # The codebook, then PyTorch's default for layers.
    return 1 / shape[0] if name == "embedding.weight" else 1 / math.sqrt(3)


def updates(config, network, count):
    p, adam, recorded = Weights(network, initial_width if config.initial else None), None, {}
    for update in range(count):
        losses = UPDATES[network](p, config, update)
        adam = adam or optimiser(network, p.parameters)
        descend(p.parameters, adam, losses)
        for name, loss in losses.items():
            recorded.setdefault(name, []).append(float(f"{loss.item():.7g}"))
    return recorded


# The release's recorded outputs.


def check_golden():
    expected, numbers = safetensors.torch.load_file(GOLDEN / "golden.safetensors"), json.loads((GOLDEN / "golden.json").read_text())
    layout = [entry for entry in json.loads((GOLDEN / "reference_checkpoint_layout.json").read_text())["entries"] if entry[3] == "parameter"]
    assert numbers["salt"] == 0

    def close(what, got, want, tolerance):
        want = want.float().reshape(got.shape)
        worst = ((got - want).abs().max() / want.abs().max()).item()
        print(f"{what:<32} {worst:.1e}")
        assert worst <= tolerance, what

    def scalars(what, got, want, tolerance, least=0.0):
        assert sorted(got) == sorted(want), what
        worst = max(abs(got[name] - want[name]) / max(abs(want[name]), least) for name in want)
        print(f"{what:<32} {worst:.1e}")
        assert worst <= tolerance, what

    def same_parameters(network, p):
        names = {f"{network}.{name}": list(x.shape) for name, x in (p.parameters | p.frozen).items()}
        assert names == {name: shape for name, shape, *_ in layout if name.startswith(network + ".")}, network

    def step(network, p, losses, recorded):
        renamed = {"loss_obs": "observations"}
        short = {renamed.get(name, name.removeprefix("loss_")): x.item() for name, x in losses.items()}
        scalars(f"{network}: losses", short, numbers[recorded], 1e-4, 1e-2)
        norm = descend(p.parameters, optimiser(network, p.parameters), losses)
        # Clipping has scaled them.
        scale = max(1.0, norm.item() / 10)
        norms = {name: x.grad.norm().item() * scale for name, x in p.parameters.items()}
        scalars(f"{network}: gradient norms", norms, numbers[f"{network}.grad_norms"], 1e-3, 1e-3)

    c, p = PAPER, Weights("tokenizer")
    x = torch.from_numpy(uniform("input.frames", 2 * 3 * 64 * 64)).reshape(2, 3, 64, 64) * 2 - 1
    y = encode(p, c, x)
    tokens, z = quantise(p, c, y)
    close("tokenizer: y", y, expected["tokenizer.y"], 1e-4)
    assert torch.equal(tokens.flatten(), expected["tokenizer.tokens"].flatten().long())
    close("tokenizer: reconstruction", decode(p, c, z) / 2 + 0.5, expected["tokenizer.reconstruction"], 1e-4)
    step("tokenizer", p, tokenizer_losses(p, c, p.constant, x), "tokenizer.losses")
    same_parameters("tokenizer", p)
    close("tokenizer: after Adam", p.parameters["encoder.conv_in.weight"], expected["tokenizer.after_adam.encoder.conv_in.weight"], 1e-4)
    close("tokenizer: codebook after Adam", p.parameters["embedding.weight"][:4], expected["tokenizer.after_adam.embedding.rows0_4"], 1e-4)
    close("perceptual distance", perceptual(p.constant, x[:1], x[1:]), expected["lpips.value"], 1e-4)

    p = Weights("world_model")
    tokens, actions = integers("input.obs_tokens", 512, 2, 20, 16), integers("input.actions", 6, 2, 20)
    rewards = (integers("input.rewards", 5, 2, 20) - 2).sign() + 1
    place = torch.arange(40).reshape(2, 20)
    ends, mask = (place == 13).long(), (place < 14) | (place >= 20)
    hidden, next_tokens, reward, end = world_model(p, c, tokens, actions)
    close("world_model: hidden", hidden.flatten(1, 2)[:, -3:], expected["world_model.hidden_last3"], 1e-4)
    close("world_model: next tokens", next_tokens[:, -17:], expected["world_model.logits_observations_last17"], 1e-4)
    close("world_model: rewards", reward, expected["world_model.logits_rewards"], 1e-4)
    close("world_model: ends", end, expected["world_model.logits_ends"], 1e-4)
    step("world_model", p, world_model_losses(p, c, tokens, actions, rewards, ends, mask), "world_model.losses")
    same_parameters("world_model", p)
    query = p.parameters["transformer.blocks.0.attn.query.weight"]
    close("world_model: after AdamW", query, expected["world_model.after_adamw.blocks0.attn.query.weight"], 1e-4)
    close("world_model: positions after AdamW", p.parameters["pos_emb.weight"][:4], expected["world_model.after_adamw.pos_emb.rows0_4"], 1e-4)

    p = Weights("actor_critic")
    frames = torch.from_numpy(uniform("input.ac_frames", 4 * 5 * 3 * 64 * 64)).reshape(4, 5, 3, 64, 64)
    state = (torch.zeros(4, 512), torch.zeros(4, 512))
    with torch.no_grad():
        for t, real in enumerate(torch.tensor([[1, 1], [0, 1], [0, 0], [1, 1]]).t().bool()):
            after = remember(p, c, look(p, c, frames[:, t]), state)
            state = [torch.where(real[:, None], new, old) for new, old in zip(after, state)]
    close("actor_critic: hidden", state[0], expected["actor_critic.burn_in.hx"], 1e-4)
    close("actor_critic: cell", state[1], expected["actor_critic.burn_in.cx"], 1e-4)
    actions, rewards = integers("input.ac_actions", 6, 4, 3), integers("input.ac_rewards", 3, 4, 3).float() - 1
    ends = torch.zeros(4, 3)
    ends[3, 1] = ends[0, 0] = 1
    logits, values = follow(p, c, frames[:, 2:], state)
    close("actor_critic: logits", logits, expected["actor_critic.logits"], 1e-4)
    close("actor_critic: values", values, expected["actor_critic.values"], 1e-4)
    close("actor_critic: returns", lambda_returns(rewards, ends, values), expected["actor_critic.lambda_returns"], 1e-4)
    losses = actor_critic_losses(p, c, frames[:, 2:], actions, rewards, ends, state)
    step("actor_critic", p, losses, "actor_critic.losses_release_behaviour")
    same_parameters("actor_critic", p)
    print("these networks are the reference release's; numbers are the largest differences, relative to the largest value")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["golden", "small", "paper"])
    parser.add_argument("networks", nargs="*", choices=[[], *UPDATES], default=[])
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--write", action="store_true", help="into crates/agent/tests/golden/updates_WHAT.json")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.what == "golden":
        return check_golden()
    config, recorded = {"small": SMALL, "paper": PAPER}[args.what], {}
    for network in args.networks or UPDATES:
        started = time.perf_counter()
        recorded[network] = updates(config, network, args.updates)
        print(f"{network}, {args.updates} updates in {time.perf_counter() - started:.0f} s")
        for name, losses in recorded[network].items():
            print(f"  {name:<20} {losses[0]:.6g} -> {losses[-1]:.6g}")
    if args.write:
        path = GOLDEN / f"updates_{args.what}.json"
        before = json.loads(path.read_text()) if path.exists() else {}
        lines = [f'  "{network}": {json.dumps(losses)}' for network, losses in sorted((before | recorded).items())]
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
