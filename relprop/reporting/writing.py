"""``report``: explanations in, one HTML file out."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from relprop.error_boundary import guarded
from relprop.errors import OptionError, ReportSizeWarning, warn, writable
from relprop.explanation import Explanation
from relprop.progress import showing
from relprop.reporting.arguments import batch_of, data_uris, named_explanations, refuse_nonfinite
from relprop.reporting.chunks import Chunks
from relprop.reporting.code import code_for
from relprop.reporting.content import Material, facts_of, filled
from relprop.reporting.page import rendered
from relprop.writing import written

if TYPE_CHECKING:
    from relprop.api.comparison import Comparison

TRIES = 5


@guarded
def report(
    explanations: Explanation | Comparison | Mapping[str, Explanation] | Sequence[Explanation],
    path: str | Path,
    *,
    model: nn.Module | None = None,
    pictures: Any = None,
    title: str | None = None,
    names: Sequence[str] | None = None,
    code: str | None = None,
    megabytes: float = 5.0,
    progress: bool | None = None,
    strict: bool = False,
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
        pictures: what ``explain`` was given (a PIL picture, an array (H, W, 3), or a list of them),
            of which the part that the model saw is drawn under the patches; or the model's own
            images, (batch, 1 or 3, H, W) in [0, 1], before any normalisation. ``None``: those that
            the explanation kept, if it kept any.
        title: the page's heading.
        names: what each sample is called, such as its file.
        code: what makes the explanation again, instead of the call that the report writes itself.
        megabytes: the limit, in 10⁶ bytes per sample. A larger file than all of them allow is
            warned of.
        progress: show which sample it is at, as ``explain`` does.
        strict: as in ``explain``.

    Returns the path. Raises ``OptionError`` for explanations of different batches, ``InputError``
    for pictures of another size or range, for numbers that are not finite, and for a path in a
    folder that does not exist.

    >>> import tempfile, torch, relprop
    >>> from relprop.demo.model import digit_scene_model
    >>> images = torch.rand(1, 1, 32, 32)
    >>> e = relprop.explain(digit_scene_model(), images, target=3, keep=("blocks", "matrix"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     relprop.report([e], f"{folder}/report.html", pictures=images).stat().st_size < 5e6
    True
    """
    path, named = writable(path), named_explanations(explanations)
    batch = batch_of(named)
    if isinstance(megabytes, bool) or not isinstance(megabytes, (int, float)) or not megabytes > 0:
        raise OptionError(f"megabytes={megabytes!r}: a positive number")
    if names is not None and len(names) != batch:
        raise OptionError(f"names has {len(names)} names: {batch} samples are explained")
    for label, explanation in named:
        refuse_nonfinite(label, explanation)
    facts = None if model is None else _model_facts(model)
    material = Material(
        [e for _, e in named], data_uris(pictures, [e for _, e in named]), megabytes * 1e6
    )
    data: dict[str, Any] = {
        "title": title if title is not None else "What the model looked at",
        "batch": batch,
        "names": None if names is None else list(map(str, names)),
        "model": None if facts is None else [[k, str(v)] for k, v in facts.items()],
        "versions": _versions(),
        "megabytes": megabytes,
        "explanations": [
            {
                "label": label,
                "facts": facts_of(e),
                "code": code_for(e, facts) if code is None else code,
            }
            for label, e in named
        ],
    }
    with showing(progress):
        page = _fitted(data, material)
    with written(path, "the report") as beside:
        beside.write_bytes(page)
    return path


def _fitted(data: dict[str, Any], material: Material) -> bytes:
    """The page, with maps as finely written as the limit allows: where the page is too large, once
    more with less room."""
    limit = room = material.per_sample * material.batch
    for _ in range(TRIES):
        chunks = Chunks()
        explanations = filled(data["explanations"], material, chunks, room)
        text = rendered(data | {"explanations": explanations}, chunks.texts)
        page = text.encode("utf-8", "replace")
        if len(page) <= limit or room <= 0:
            break
        room -= len(page) - limit + 0.01 * limit
    if len(page) > limit:
        fact = (
            f"the report has {len(page) / 1e6:.1f} MB, more than {limit / 1e6:.1f}: "
            "scores and pictures alone take that much"
        )
        warn(ReportSizeWarning(fact, then=["megabytes=", "fewer samples, targets or methods"]))
    return page


def _model_facts(model: nn.Module) -> dict[str, Any]:
    from relprop.runs.fingerprints import of_model

    if not isinstance(model, nn.Module):
        fact = f"model={model!r}: the nn.Module that was explained, or None, is needed"
        raise OptionError(fact)
    return of_model(model)


def _versions() -> list[list[str]]:
    """What computed this: Python, and the libraries that were loaded."""
    names = ("relprop", "torch", "timm", "transformers", "captum")
    known = [(name, getattr(sys.modules.get(name), "__version__", None)) for name in names]
    return [["python", platform.python_version()], *([n, str(v)] for n, v in known if v)]
