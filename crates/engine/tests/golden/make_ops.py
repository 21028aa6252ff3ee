"""Writes ops.json: what PyTorch computes where a convention could differ, forward and backward. Run: python make_ops.py > ops.json"""

import json

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
cases = {}


def nhwc(x):
    return x.permute(0, 2, 3, 1) if x.dim() == 4 else x


def numbers(x):
    return [float(f"{v:.9g}") for v in x.detach().contiguous().flatten().tolist()]


def case(name, inputs, f, image=()):
    """Inputs, result and the gradients of sum(result * weights). Images are written as NHWC."""
    inputs = {k: v.requires_grad_() for k, v in inputs.items()}
    out = f(**inputs)
    weights = torch.linspace(-1, 1, out.numel())
    lay = lambda k, x: nhwc(x) if k in image else x
    flat = lay("out", out).contiguous().flatten()
    (flat * weights).sum().backward()
    cases[name] = {
        "inputs": {k: numbers(lay(k, v)) for k, v in inputs.items()},
        "out": numbers(flat),
        "gradients": {k: numbers(lay(k, v.grad)) for k, v in inputs.items()},
    }


x = torch.linspace(-4, 4, 33).reshape(33, 1)
case("gelu", {"x": x.clone()}, lambda x: F.gelu(x))

small = 1e-3 * torch.randn(2, 4, 3, 2)  # so small that epsilon matters
image = ("x", "out", "w")
case(
    "group_norm",
    {"x": small, "gain": torch.rand(4) + 0.5, "shift": torch.randn(4)},
    lambda x, gain, shift: F.group_norm(x, 2, gain, shift, eps=1e-6),
    image,
)
case(
    "group_norm_swish",
    {"x": torch.randn(2, 4, 3, 2), "gain": torch.rand(4) + 0.5, "shift": torch.randn(4)},
    lambda x, gain, shift: F.silu(F.group_norm(x, 2, gain, shift, eps=1e-6)),
    image,
)
case(
    "layer_norm",
    {"x": 1e-2 * torch.randn(3, 5), "gain": torch.rand(5) + 0.5, "shift": torch.randn(5)},
    lambda x, gain, shift: F.layer_norm(x, (5,), gain, shift, eps=1e-5),
)
conv = lambda: {"x": torch.randn(2, 3, 4, 6), "w": torch.randn(5, 3, 3, 3), "b": torch.randn(5)}
case("conv_stride_1", conv(), lambda x, w, b: F.conv2d(x, w, b, padding=1), image)
case("conv_stride_2", conv(), lambda x, w, b: F.conv2d(F.pad(x, (0, 1, 0, 1)), w, b, stride=2), image)
case("upsample", {"x": torch.randn(1, 2, 2, 3)}, lambda x: F.interpolate(x, scale_factor=2.0, mode="nearest"), image)
# Equal values: which of them gets the gradient?
ties = torch.tensor([[[[1.0, 1.0, 0.0, 2.0], [0.0, 1.0, 2.0, 2.0]]]])
case("max_pool", {"x": ties}, lambda x: F.max_pool2d(x, 2), image)

cell = nn.LSTMCell(3, 2)


def lstm(x, h, c, w_ih, w_hh, b_ih, b_hh):
    from torch.func import functional_call

    weights = {"weight_ih": w_ih, "weight_hh": w_hh, "bias_ih": b_ih, "bias_hh": b_hh}
    for _ in range(2):
        h, c = functional_call(cell, weights, (x, (h, c)))
    return torch.cat([h, c], 1)


r = torch.randn
case("lstm", {"x": r(2, 3), "h": r(2, 2), "c": r(2, 2), "w_ih": r(8, 3), "w_hh": r(8, 2), "b_ih": r(8), "b_hh": r(8)}, lstm)

labels = torch.tensor([2, -100, 0])
case("cross_entropy", {"x": torch.randn(3, 4)}, lambda x: F.cross_entropy(x, labels).reshape(1))
choices = torch.tensor([2, 3, 0])
policy = lambda x: torch.distributions.Categorical(logits=x)
case("log_prob", {"x": torch.randn(3, 4)}, lambda x: policy(x).log_prob(choices))
case("entropy", {"x": torch.randn(3, 4)}, lambda x: policy(x).entropy())


def adam(kind, decay):
    """Five steps with a gradient of norm 13 clipped to 10, so that clipping and bias correction both count."""
    p = nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))
    optimiser = kind([p], lr=0.01, betas=(0.9, 0.999), eps=1e-8, weight_decay=decay)
    for _ in range(5):
        optimiser.zero_grad()
        (p * torch.tensor([12.0, -5.0, 0.0])).sum().backward()
        nn.utils.clip_grad_norm_([p], 10.0)
        optimiser.step()
    return numbers(p)


logits = [0.3, -1.0, 1.2, 0.0]
temperatures = {str(t): numbers(torch.softmax(torch.tensor(logits) / t, 0)) for t in (0.01, 0.5, 1.0, 2.0)}

optimisers = {"adam": adam(torch.optim.Adam, 0.0), "adamw": adam(torch.optim.AdamW, 0.1)}
print(json.dumps({"torch": torch.__version__, "cases": cases, "optimisers": optimisers, "logits": logits, "temperatures": temperatures}, indent=None))
