"""Writes LPIPS's linear weights with torch.save, in the format before PyTorch 1.6 (lpips.pth, as LPIPS publishes them) and in today's (lpips.pt).

    python make_lpips.py

Values are those of ../golden/README.md.
"""

import pathlib
import sys

import torch

here = pathlib.Path(__file__).parent
sys.path.insert(0, str(here / "../../../cli/tests/checkpoints"))
from make_checkpoints import value  # noqa: E402


class Linear(torch.nn.Module):
    def __init__(self, name, channels):
        super().__init__()
        self.model = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Conv2d(channels, 1, 1, bias=False))
        self.model[1].weight.data = value(f"tokenizer.lpips.{name}.model.1.weight", [1, channels, 1, 1])


network = torch.nn.Module()
for i, channels in enumerate([64, 128, 256, 512, 512]):
    network.add_module(f"lin{i}", Linear(f"lin{i}", channels))
torch.save(network.state_dict(), here / "lpips.pth", _use_new_zipfile_serialization=False)
torch.save(network.state_dict(), here / "lpips.pt")
