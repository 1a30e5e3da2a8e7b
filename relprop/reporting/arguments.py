"""What ``report`` is given, checked before any work is done for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from relprop.adapters.pictures import framed
from relprop.errors import InputError, OptionError
from relprop.explanation import Explanation, TokenScores
from relprop.reporting.chunks import png
from relprop.reporting.maps import KINDS
from relprop.views.overlay import is_original, pixels, turned
from relprop.views.shown import pairs_of

LONGEST = 448  # pixels of a picture's longer side


def named_explanations(explanations: Any) -> list[tuple[str, Explanation]]:
    """The explanations, each with its method's name; two of one method for the same targets are
    told apart by number."""
    several = [explanations] if isinstance(explanations, Explanation) else explanations
    pairs = pairs_of(several, "report()", "an explanation, or a list or a dict of them,")
    if not pairs or not all(isinstance(e, Explanation) for _, e in pairs):
        kinds = ", ".join(sorted({type(e).__name__ for _, e in pairs}))
        raise OptionError(
            f"report() is of explanations, not of {kinds or 'an empty list'}",
            then=["relprop.report([explanation], 'report.html')"],
        )
    seen: Counter[tuple[str, str]] = Counter()
    named = []
    for label, e in pairs:
        name = str(label) if label is not None else e.method
        seen[name, str(e.target)] += 1
        times = seen[name, str(e.target)]
        named.append((name if times == 1 else f"{name} ({times})", e))
    return named


def batch_of(named: list[tuple[str, Explanation]]) -> int:
    """How many samples all of them have."""
    counts = [len(e) for _, e in named]
    if len(set(counts)) > 1:
        raise OptionError(
            "one report is for one batch: these explanations have "
            f"{', '.join(map(str, counts))} samples"
        )
    return counts[0]


def refuse_nonfinite(label: str, e: Explanation) -> None:
    """Refuse numbers that no picture shows."""
    held = {"the output": e.output} | {
        f"{n} of {s.name!r}": getattr(s, n)
        for s in e.streams.values()
        for n in ("scores", "row", "identity", "matrix")
    }
    held |= {f"{kind} of {b.path}": getattr(b, kind) for b in e.blocks or () for kind in KINDS}
    for name, values in held.items():
        if values is not None and not bool(torch.isfinite(values).all()):
            raise InputError(
                f"{label}: {name} holds NaN or infinite values, which no picture shows",
                then=["relprop.explain(..., precision='float64')"],
            )


def data_uris(pictures: Any, explanations: Sequence[Explanation]) -> list[str] | None:
    """What the model saw of the pictures, as it stands in the page; of those that were kept where
    none are given, ``None`` where none were."""
    batch = len(explanations[0])
    stream = _of_pictures(explanations)
    if pictures is None:
        kept = stream.originals if stream is not None else None
        seen = [original.seen() for original in kept or ()]
        there = [s.float() / 255 for s in seen if s is not None]
        return [png(s, LONGEST) for s in there] if there and len(there) == batch else None
    given = [pictures] if hasattr(pictures, "convert") else pictures
    if not isinstance(given, (list, tuple)):
        _refuse_values(given, batch)
    elif len(given) != batch:
        raise InputError(f"{len(given)} pictures are given for {batch} samples")
    return [png(_seen(p, stream, n), LONGEST) for n, p in enumerate(given)]


def _of_pictures(explanations: Sequence[Explanation]) -> TokenScores | None:
    """An explained input of pictures, one that knows where they came from if there is one."""
    streams = [s for e in explanations for s in e.streams.values()]
    found = [s for s in streams if s.grid is not None and len(s.grid) == 2 and s.image is not None]
    return next((s for s in found if s.originals is not None), next(iter(found), None))


def _seen(picture: Any, stream: TokenScores | None, sample: int) -> Tensor:
    """What the model saw of a picture that is its own image or the one it was made from, (1 or 3,
    H, W) in [0, 1]. Raises ``InputError`` for one of another size."""
    shown = torch.from_numpy(pixels(picture))
    whole = shown[None] if shown.dim() == 2 else shown.movedim(-1, 0)[:3]
    if stream is None:
        return whole
    if not is_original(picture, tuple(whole.shape[1:]), stream, sample):
        return turned(whole.movedim(0, -1), stream).movedim(-1, 0)
    assert stream.originals is not None  # it is one of them
    original = stream.originals[sample]
    return framed(whole, original.size, original.frame, padding=0.5)


def _refuse_values(pictures: Any, batch: int) -> None:
    """Refuse what is no batch of pictures in [0, 1]."""
    is_tensor = isinstance(pictures, Tensor)
    shape = list(pictures.shape) if is_tensor else type(pictures).__name__
    fits = is_tensor and pictures.dim() == 4 and len(pictures) == batch
    if not fits or pictures.shape[1] not in (1, 3):
        raise InputError(
            f"pictures is a tensor ({batch}, 1 or 3, H, W), not {shape}; or a list of {batch} "
            "pictures"
        )
    least, most = float(pictures.min()), float(pictures.max())
    finite = pictures.is_floating_point() and bool(torch.isfinite(pictures).all())
    if not finite or least < -1e-3 or most > 1 + 1e-3:
        raise InputError(
            f"pictures has values from {least:.3g} to {most:.3g}, not in [0, 1]",
            then=["give the pictures as they were before normalisation"],
        )
