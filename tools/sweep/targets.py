"""What a sweep explains: the default target where it applies, else one element of an output, chosen
by shape."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from relprop.targets import output
from relprop.targets.index import Output
from relprop.tracer.binding import flatten_output

PREFERRED = (
    "logits",
    "pred_logits",
    "logits_per_image",
    "start_logits",
    "class_queries_logits",
    "prediction_outputs",
    "prediction_logits",
)


def element(result: Any, pads: Tensor | None = None) -> Output:
    """The largest element of the first floating output of one sample (``result`` has batch
    dimension 1).

    Of an output (positions, features) at one position: the last that is real in every sample where
    it has as many as ``pads``, else the second.
    """
    tensors, tree = flatten_output(result)
    usable = [
        (n, t)
        for n, t in zip(tree.names, tensors, strict=True)
        if t.is_floating_point() and t.dim() >= 2
    ]
    if not usable:
        raise ValueError(f"no floating output with a batch axis among {', '.join(tree.names)}")
    name, tensor = min(
        usable,
        key=lambda u: (
            PREFERRED.index(u[0]) if u[0] in PREFERRED else len(PREFERRED),
            u[1].shape[0] != 1,
        ),
    )
    sample = (
        tensor.detach()[0] if tensor.shape[0] == 1 else tensor.detach()
    )  # else other axes are folded into the batch
    if sample.dim() != 2:
        return output(name)[
            tuple(int(i) for i in torch.unravel_index(sample.argmax(), sample.shape))
        ]
    place = (
        int((~pads).all(0).nonzero().max())
        if pads is not None and pads.shape[1] == sample.shape[0]
        else min(1, sample.shape[0] - 1)
    )
    return output(name)[(place, int(sample[place].argmax()))]
