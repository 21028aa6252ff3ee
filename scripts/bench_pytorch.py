"""The steps that `iris bench` times, in PyTorch: same shapes, same losses, same optimisers, one line each.

    pip install torch==2.11.0
    python scripts/bench_pytorch.py [case ...] [--threads N] [--repeats N]

Networks are written here from the paper's description, only as far as timing needs them.
"""

import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn


class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.n1, self.n2 = nn.GroupNorm(32, c, eps=1e-6), nn.GroupNorm(32, c, eps=1e-6)
        self.c1, self.c2 = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)

    def forward(self, x):
        return x + self.c2(F.silu(self.n2(self.c1(F.silu(self.n1(x))))))


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm = nn.GroupNorm(32, c, eps=1e-6)
        self.q, self.k, self.v, self.out = (nn.Conv2d(c, c, 1) for _ in range(4))

    def forward(self, x):
        b, c, h, w = x.shape
        y = self.norm(x)
        q, k, v = (f(y).reshape(b, c, h * w).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
        return x + self.out(y.transpose(1, 2).reshape(b, c, h, w))


class Down(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv = nn.Conv2d(c, c, 3, stride=2)

    def forward(self, x):
        return self.conv(F.pad(x, (0, 1, 0, 1)))


class Up(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv = nn.Conv2d(c, c, 3, padding=1)

    def forward(self, x):
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))


class Tokenizer(nn.Module):
    def __init__(self, c=64, e=512, n=512, sizes=(64, 32, 16, 8, 4)):
        super().__init__()

        def level(size, blocks):
            for _ in range(blocks):
                yield Residual(c)
                if size in (16, 8):
                    yield Attention(c)

        middle = lambda: [Residual(c), Attention(c), Residual(c)]
        encoder = [nn.Conv2d(3, c, 3, padding=1)]
        for size in sizes:
            encoder += level(size, 2)
            if size != sizes[-1]:
                encoder.append(Down(c))
        encoder += middle() + [nn.GroupNorm(32, c, eps=1e-6), nn.SiLU(), nn.Conv2d(c, e, 3, padding=1), nn.Conv2d(e, e, 1)]
        decoder = [nn.Conv2d(e, e, 1), nn.Conv2d(e, c, 3, padding=1)] + middle()
        for size in reversed(sizes):
            decoder += level(size, 3)
            if size != sizes[0]:
                decoder.append(Up(c))
        decoder += [nn.GroupNorm(32, c, eps=1e-6), nn.SiLU(), nn.Conv2d(c, 3, 3, padding=1)]
        self.encoder, self.decoder = nn.Sequential(*encoder), nn.Sequential(*decoder)
        self.codebook = nn.Embedding(n, e)
        nn.init.uniform_(self.codebook.weight, -1 / n, 1 / n)

    def loss(self, x, perceptual=None):
        y = self.encoder(x)
        flat = y.permute(0, 2, 3, 1).reshape(-1, y.shape[1])
        table = self.codebook.weight
        distance = flat.pow(2).sum(1, keepdim=True) + table.pow(2).sum(1) - 2 * flat @ table.t()
        z = self.codebook(distance.argmin(1)).reshape(y.shape[0], y.shape[2], y.shape[3], -1).permute(0, 3, 1, 2)
        commitment = (y.detach() - z).pow(2).mean() + (y - z.detach()).pow(2).mean()
        reconstruction = self.decoder(y + (z - y).detach())
        loss = (x - reconstruction).abs().mean() + commitment
        return loss if perceptual is None else loss + perceptual(x, reconstruction)


class Perceptual(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, inputs = nn.ModuleList(), 3
        for i, (c, count) in enumerate([(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)]):
            layers = [nn.MaxPool2d(2)] if i else []
            for _ in range(count):
                layers += [nn.Conv2d(inputs, c, 3, padding=1), nn.ReLU(inplace=True)]
                inputs = c
            self.blocks.append(nn.Sequential(*layers))
        self.weights = nn.ParameterList([nn.Parameter(torch.full((1, c, 1, 1), 0.2)) for c in (64, 128, 256, 512, 512)])
        self.requires_grad_(False)

    def forward(self, a, b):
        total = 0
        for block, w in zip(self.blocks, self.weights):
            a, b = block(a), block(b)
            unit = lambda x: x / (x.pow(2).sum(1, keepdim=True).sqrt() + 1e-10)
            total = total + F.conv2d((unit(a) - unit(b)).pow(2), w).mean()
        return total


class Block(nn.Module):
    def __init__(self, d, heads, dropout):
        super().__init__()
        self.heads, self.rate = heads, dropout
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.q, self.k, self.v, self.out = (nn.Linear(d, d) for _ in range(4))
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        self.drop = nn.Dropout(dropout)

    def forward(self, x, cache=None):
        b, t, d = x.shape
        y = self.n1(x)
        q, k, v = (f(y).reshape(b, t, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        if cache is not None:
            keys, values, past = cache
            keys[:, :, past : past + t], values[:, :, past : past + t] = k, v
            y = F.scaled_dot_product_attention(q, keys[:, :, : past + t], values[:, :, : past + t])
        else:
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.rate if self.training else 0.0, is_causal=True)
        x = x + self.drop(self.out(y.transpose(1, 2).reshape(b, t, d)))
        return x + self.drop(self.mlp(self.n2(x)))


class WorldModel(nn.Module):
    def __init__(self, d=256, layers=10, heads=4, steps=20, k=16, n=512, actions=6, dropout=0.1):
        super().__init__()
        self.k, self.heads, self.d, self.length = k, heads, d, steps * (k + 1)
        self.tokens, self.actions = nn.Embedding(n, d), nn.Embedding(actions, d)
        self.positions = nn.Embedding(self.length, d)
        self.blocks = nn.ModuleList([Block(d, heads, dropout) for _ in range(layers)])
        self.norm, self.drop = nn.LayerNorm(d), nn.Dropout(dropout)
        head = lambda out: nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, out))
        self.observations, self.rewards, self.ends = head(n), head(3), head(2)

    def loss(self, tokens, actions, rewards, ends):
        b, steps, k = tokens.shape
        x = torch.cat([self.tokens(tokens), self.actions(actions)[:, :, None]], 2).reshape(b, steps * (k + 1), self.d)
        x = self.drop(x + self.positions.weight)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x).reshape(b, steps, k + 1, self.d)
        speaking = torch.cat([x[:, :, : k - 1], x[:, :, k:]], 2).reshape(b, steps * k, self.d)
        ce = lambda logits, labels: F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        loss = ce(self.observations(speaking)[:, :-1], tokens.reshape(b, -1)[:, 1:])
        return loss + ce(self.rewards(x[:, :, k]), rewards) + ce(self.ends(x[:, :, k]), ends)

    @torch.no_grad()
    def decode(self, tokens, count):
        b = tokens.shape[0]
        caches = [[torch.zeros(b, self.heads, self.length, self.d // self.heads) for _ in range(2)] for _ in self.blocks]
        for past in range(count):
            x = self.tokens(tokens) + self.positions.weight[past]
            for block, (keys, values) in zip(self.blocks, caches):
                x = block(x, (keys, values, past))
            tokens = torch.distributions.Categorical(logits=self.observations(self.norm(x))).sample()


class ActorCritic(nn.Module):
    def __init__(self, actions=6, hidden=512):
        super().__init__()
        channels = [3, 32, 32, 64, 64]
        self.convs = nn.ModuleList([nn.Conv2d(i, o, 3, padding=1) for i, o in zip(channels, channels[1:])])
        self.lstm = nn.LSTMCell(1024, hidden)
        self.actor, self.critic = nn.Linear(hidden, actions), nn.Linear(hidden, 1)

    def loss(self, frames, actions, rewards, state):
        b, t = frames.shape[:2]
        x = frames.flatten(0, 1) * 2 - 1
        for conv in self.convs:
            x = F.relu(F.max_pool2d(conv(x), 2))
        x, states = x.reshape(b, t, -1), []
        for i in range(t):
            state = self.lstm(x[:, i], state)
            states.append(state[0])
        x = torch.stack(states, 1)
        logits, values = self.actor(x), self.critic(x)[..., 0]
        with torch.no_grad():
            returns, last = [], values[:, -1]
            for i in reversed(range(t - 1)):
                last = rewards[:, i] + 0.995 * (0.05 * values[:, i + 1] + 0.95 * last)
                returns.insert(0, last)
            returns = torch.stack(returns, 1)
        policy = torch.distributions.Categorical(logits=logits[:, :-1])
        loss = -(policy.log_prob(actions[:, :-1]) * (returns - values[:, :-1].detach())).mean()
        return loss + F.mse_loss(values[:, :-1], returns) - 0.001 * policy.entropy().mean()


def training_step(module, loss, decay=0.0):
    optimiser = torch.optim.AdamW(module.parameters(), lr=1e-4, weight_decay=decay)

    def step():
        optimiser.zero_grad()
        loss().backward()
        nn.utils.clip_grad_norm_(module.parameters(), 10.0)
        optimiser.step()

    return step


def tokenizer(perceptual=False):
    module, x = Tokenizer(), torch.rand(8, 3, 64, 64) * 2 - 1
    network = Perceptual() if perceptual else None
    return training_step(module, lambda: module.loss(x, network))


def world_model():
    module = WorldModel()
    tokens, actions = torch.randint(512, (2, 20, 16)), torch.randint(6, (2, 20))
    rewards, ends = torch.randint(3, (2, 20)), torch.randint(2, (2, 20))
    return training_step(module, lambda: module.loss(tokens, actions, rewards, ends), 0.01)


def actor_critic():
    module = ActorCritic()
    frames, actions, rewards = torch.rand(4, 20, 3, 64, 64), torch.randint(6, (4, 20)), torch.rand(4, 20)
    state = (torch.rand(4, 512), torch.rand(4, 512))
    return training_step(module, lambda: module.loss(frames, actions, rewards, state))


def decode():
    module = WorldModel().eval()
    tokens = torch.randint(512, (8, 1))
    return lambda: module.decode(tokens, 340)


CASES = {
    "tokenizer": tokenizer,
    "tokenizer-perceptual": lambda: tokenizer(True),
    "world-model": world_model,
    "actor-critic": actor_critic,
    "decode": decode,
}


def peak_memory():
    try:
        for line in open("/proc/self/status"):
            if line.startswith("VmHWM:"):
                return f"{int(line.split()[1]) // 1024:5} MiB"
    except OSError:
        pass
    return "       -"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[[], *CASES], default=[])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads, best of {args.repeats}")
    for name in args.cases or CASES:
        try:
            open("/proc/self/clear_refs", "w").write("5")
        except OSError:
            pass
        step = CASES[name]()
        step()
        best = float("inf")
        for _ in range(args.repeats):
            start = time.perf_counter()
            step()
            best = min(best, time.perf_counter() - start)
        print(f"{name:<22} {1e3 * best:8.1f} ms   {peak_memory()}", flush=True)


if __name__ == "__main__":
    main()
