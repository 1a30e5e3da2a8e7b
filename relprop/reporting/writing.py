"""``report``: explanations in, one HTML file out."""

from __future__ import annotations

import platform
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from relprop.errors import InputError, OptionError, message, warn, writable
from relprop.explanation import Block, Explanation
from relprop.reporting.chunks import Chunks, png
from relprop.reporting.code import code_for
from relprop.reporting.content import facts_of, ledger_content, stream_content
from relprop.reporting.maps import KINDS, Maps
from relprop.reporting.page import rendered

if TYPE_CHECKING:
    from relprop.api.compare import Comparison

LONGEST = 448  # pixels of a picture's longer side
TRIES = 5


def report(
    explanations: Explanation | Comparison | Mapping[str, Explanation] | Sequence[Explanation],
    path: str | Path,
    *,
    model: nn.Module | None = None,
    pictures: Tensor | None = None,
    title: str | None = None,
    code: str | None = None,
    megabytes: float = 5.0,
) -> Path:
    """Write one HTML file to look into explanations with: hover a token and see its row of C, any
    head's attention, gradient and relevance, the ledger.

    The file needs no network and no other file; every number a table shows is the explanation's own
    in float32, except those of single heads, which are rounded as far as the limit demands (the
    page says how far). What was not kept (``keep=``) is not in it, and it says how to get it.

    Args:
        explanations: one, or several of the same inputs: targets, methods; by their names in a
            mapping, or as ``compare`` returns them. All have the same batch.
        path: where the file goes.
        model: the model that was explained, for its class and the hashes of its weights and
            settings.
        pictures: what the model was shown, (batch, 1 or 3, H, W) in [0, 1], before any
            normalisation; drawn under the patches.
        title: the page's heading.
        code: what makes the explanation again, instead of the call that the report writes itself.
        megabytes: the limit, in 10⁶ bytes per sample. A larger file than all of them allow is
            warned of.

    Returns the path. Raises ``OptionError`` for explanations of different batches, ``InputError``
    for pictures of another shape or range, for numbers that are not finite, and for a path in a
    folder that does not exist.

    >>> import tempfile, torch, relprop
    >>> from relprop.demo.model import digit_scene_model
    >>> images = torch.rand(1, 1, 32, 32)
    >>> e = relprop.explain(digit_scene_model(), images, target=3, keep=("blocks", "matrix"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     relprop.report([e], f"{folder}/report.html", pictures=images).stat().st_size < 5e6
    True
    """
    path, named = writable(path), _named(explanations)
    given = [e for _, e in named]
    batch = len(given[0])
    if any(len(e) != batch for e in given):
        raise OptionError(
            "one report is for one batch: these explanations have "
            f"{', '.join(str(len(e)) for e in given)} samples"
        )
    if not megabytes > 0:
        raise OptionError(f"megabytes={megabytes!r}: a positive number")
    for label, e in named:
        _refuse_nonfinite(label, e)
    facts = None if model is None else _model_facts(model)
    shown = _pictures(pictures, batch)
    limit = megabytes * 1e6 * batch
    data: dict[str, Any] = {
        "title": title if title is not None else "What the model looked at",
        "batch": batch,
        "model": None if facts is None else [[k, str(v)] for k, v in facts.items()],
        "versions": _versions(),
        "megabytes": megabytes,
        "explanations": [
            {
                "label": label,
                "method": e.method,
                "facts": facts_of(e),
                "code": code if code is not None else code_for(e, facts),
            }
            for label, e in named
        ],
    }
    room, text = limit, ""
    for _ in range(TRIES):
        chunks = Chunks()
        filled = data | {
            "explanations": _filled(data["explanations"], given, shown, chunks, megabytes, room)
        }
        text = rendered(filled, chunks.texts)
        size = len(text.encode("utf-8", "replace"))
        if size <= limit or room <= 0:
            break
        room -= size - limit + 0.01 * limit
    if size > limit:
        warn(
            message(
                (
                    f"the report has {size / 1e6:.1f} MB, more than {limit / 1e6:.1f}: "
                    "scores and pictures alone take that much"
                ),
                then=["megabytes=", "fewer samples, targets or methods"],
            )
        )
    path.write_bytes(text.encode("utf-8", "replace"))
    return path


def _filled(
    heads: list[dict[str, Any]],
    given: list[Explanation],
    pictures: list[str] | None,
    chunks: Chunks,
    megabytes: float,
    limit: float,
) -> list[dict[str, Any]]:
    """The explanations with all they hold of every sample. Everything but the maps is written
    first; the maps share what ``limit`` leaves."""
    batch = len(given[0])
    matrices = sum(s.matrix is not None for e in given for s in e.streams.values())
    room = 0.6 * megabytes * 1e6 / max(matrices, 1)
    filled: list[dict[str, Any]] = [
        {**head, "samples": [_sample(e, n, pictures, chunks, room) for n in range(batch)]}
        for head, e in zip(heads, given, strict=True)
    ]
    rest = limit - chunks.size() - len(rendered({"title": "", "explanations": filled}, []))
    for n in range(batch):
        maps = Maps()
        keys = [[maps.add(block, n, _scores(e, n)) for block in e.blocks or ()] for e in given]
        written = maps.written(chunks, max(0.0, rest / batch - 700 * len(maps.entries)))
        for e, mine, one in zip(given, keys, filled, strict=True):
            if e.blocks is not None:
                one["samples"][n]["blocks"] = [
                    {
                        "path": b.path,
                        **_tokens_of(b, e),
                        **{kind: written[key] for kind, key in k.items()},
                    }
                    for b, k in zip(e.blocks, mine, strict=True)
                ]
    return filled


def _tokens_of(block: Block, e: Explanation) -> dict[str, str | None]:
    """Which input's tokens a block's queries and keys are taken to be: the one input with as many.
    Windows have tokens of their own."""

    def only(count: int) -> str | None:
        names = [s.name for s in e.streams.values() if s.scores.shape[1] == count]
        return names[0] if len(names) == 1 and block.attention.dim() == 4 else None

    return {
        "query_tokens": only(block.attention.shape[-2]),
        "key_tokens": only(block.attention.shape[-1]),
    }


def _scores(e: Explanation, sample: int) -> Any:
    return next(iter(e.streams.values())).scores[sample].detach().cpu().float().numpy()


def _target(e: Explanation, n: int) -> str:
    """What was explained in sample ``n``: the class's label, where the model has one, with its
    index."""
    label = None if e.labels is None else e.labels[n]
    return (
        str(e.target[n])
        if label is None or label == str(e.target[n])
        else f"{label} ({e.target[n]})"
    )


def _sample(
    e: Explanation, n: int, pictures: list[str] | None, chunks: Chunks, room: float
) -> dict[str, Any]:
    picture = None if pictures is None else pictures[n]
    return {
        "target": _target(e, n),
        "output": float(e.output[n]),
        "streams": [stream_content(s, n, picture, chunks, room) for s in e.streams.values()],
        "blocks": None,
        "ledger": None if e.ledger is None else ledger_content(e.ledger, n),
    }


def _named(explanations: Any) -> list[tuple[str, Explanation]]:
    """The explanations, each with its method's name; two of one method for the same targets are
    told apart by number."""
    explanations = getattr(explanations, "explanations", explanations)  # a Comparison
    pairs = (
        list(explanations.items())
        if isinstance(explanations, Mapping)
        else [
            (None, e)
            for e in ([explanations] if isinstance(explanations, Explanation) else explanations)
        ]
    )
    if not pairs or not all(isinstance(e, Explanation) for _, e in pairs):
        kinds = ", ".join(sorted({type(e).__name__ for _, e in pairs}))
        raise OptionError(
            message(
                f"report() is of explanations, not of {kinds or 'an empty list'}",
                then=["relprop.report([explanation], 'report.html')"],
            )
        )
    seen: Counter[tuple[str, str]] = Counter()
    named = []
    for label, e in pairs:
        name = str(label) if label is not None else e.method
        seen[name, str(e.target)] += 1
        times = seen[name, str(e.target)]
        named.append((name if times == 1 else f"{name} ({times})", e))
    return named


def _refuse_nonfinite(label: str, e: Explanation) -> None:
    held = {"the output": e.output} | {
        f"{n} of {s.name!r}": getattr(s, n)
        for s in e.streams.values()
        for n in ("scores", "row", "identity", "matrix")
    }
    held |= {f"{kind} of {b.path}": getattr(b, kind) for b in e.blocks or () for kind in KINDS}
    bad = [
        name
        for name, values in held.items()
        if values is not None and not bool(torch.isfinite(values).all())
    ]
    if bad:
        raise InputError(
            message(
                f"{label}: {bad[0]} holds NaN or infinite values, which no picture shows",
                then=["relprop.explain(..., precision='float64')"],
            )
        )


def _pictures(pictures: Tensor | None, batch: int) -> list[str] | None:
    if pictures is None:
        return None
    if (
        not isinstance(pictures, Tensor)
        or pictures.dim() != 4
        or pictures.shape[0] != batch
        or pictures.shape[1] not in (1, 3)
    ):
        raise InputError(
            f"pictures is a tensor ({batch}, 1 or 3, H, W), not "
            f"{list(pictures.shape) if isinstance(pictures, Tensor) else type(pictures).__name__}"
        )
    if (
        not pictures.is_floating_point()
        or not bool(torch.isfinite(pictures).all())
        or float(pictures.min()) < -1e-3
        or float(pictures.max()) > 1 + 1e-3
    ):
        raise InputError(
            message(
                (
                    f"pictures has values from {float(pictures.min()):.3g} to "
                    f"{float(pictures.max()):.3g}, not in [0, 1]"
                ),
                then=["give the pictures as they were before normalisation"],
            )
        )
    return [png(p, LONGEST) for p in pictures]


def _model_facts(model: nn.Module) -> dict[str, Any]:
    from relprop.runs.fingerprints import of_model

    return of_model(model)


def _versions() -> list[list[str]]:
    """What computed this: Python, and the libraries that were loaded."""
    known = {
        name: getattr(sys.modules[name], "__version__", None)
        for name in ("relprop", "torch", "timm", "transformers", "captum")
        if name in sys.modules
    }
    return [
        ["python", platform.python_version()],
        *([name, str(version)] for name, version in known.items() if version),
    ]
