"""Whether a flat program gives what ``explain`` gives."""

from __future__ import annotations

import torch

from relprop.errors import CaptureError, message
from relprop.explanation import Explanation


def compare(flat: Explanation, own: Explanation) -> None:
    """Raise ``CaptureError`` where two explanations differ by more than rounding: by more than √ε
    of the largest score."""
    if flat.target != own.target:
        raise _differs(f"it explains {flat.target}, not {own.target}")
    for name, stream in own.streams.items():
        mine, theirs = flat.streams[name].scores, stream.scores
        allowed = torch.finfo(own.output.dtype).eps ** 0.5
        largest = float(theirs.abs().max())
        off = float((mine - theirs).abs().max())
        if off > allowed * largest:
            raise _differs(
                f"the scores of {name!r} are off by {off / largest if largest else off:.1e} of "
                "the largest"
            )


def _differs(fact: str) -> CaptureError:
    return CaptureError(
        message(
            f"the flat program does not give what relprop.explain gives: {fact}",
            then=["report this model; relprop.explain explains it"],
        )
    )
