"""Random weights that make a model's attention and its output depend on the input: libraries
initialise many parts to 0 or 1."""

from __future__ import annotations

import math

import torch
from torch import nn


def enliven(model: nn.Module, seed: int = 0) -> None:
    """Give constant parameters a little noise, and tiny matrices the size that keeps the variance
    of what passes through them.

    A head that starts at zero, a layer scale of 1e-5 or matrices drawn at 0.02 would leave nothing
    to explain.
    """
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            if not p.is_floating_point() or p.numel() == 0:
                continue
            spread = float(p.float().std()) if p.numel() > 1 else 0.0
            if p.dim() < 2 or spread == 0:
                if spread < 1e-3:
                    noise = torch.randn(p.shape, generator=source)
                    tiny = 0 < float(p.float().abs().max()) < 0.01
                    p.copy_(0.3 * noise if tiny else p + 0.1 * noise)
            else:
                wanted = 1 / math.sqrt(p[0].numel())
                if spread < 0.5 * wanted:
                    p.mul_(wanted / spread)
