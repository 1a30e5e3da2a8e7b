"""The head view: which attention heads the map goes through, each with its share and a map of its
own, and what the model says without the strongest."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from relprop.api.explain import explain
from relprop.api.instrument import instrument
from relprop.cards.base import Card, data_uri
from relprop.cards.head_parts import Parts, head_vectors, parts_of, percent
from relprop.cards.head_trials import Ablation, ablated
from relprop.cards.trials import Checks, control_of, made_by
from relprop.error_boundary import guarded
from relprop.errors import InputError, RelpropError, counted, first_line, message
from relprop.explanation import Explanation
from relprop.opening.opening import opened
from relprop.progress import doing, showing
from relprop.rules import RuleSet
from relprop.runner.question import Question, move_processor_options
from relprop.tracer.binding import Inputs, bind
from relprop.views.escape import markup
from relprop.views.shown import only, target_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Result = TypeVar("Result")
METHOD, MOST = "transformer_attribution", 0.8  # the share that the sentence is about
HELP = (
    "How much of the relevance map of this answer goes through each attention head, in per cent "
    "and as a bar; all heads have 100\u00a0% together. A way through several heads counts for the "
    "one nearest the input. Each small map has a scale of its own: its strongest place has the "
    "full colour. A row for each layer, the last one, next to the answer, on top; a column for "
    "each head; both counted from 0. Click a map to enlarge it, or go to it with the arrow keys "
    "and press Enter."
)
TAKEN = (
    "A head is taken away by replacing its attention with its mean over the queries: it still "
    "passes something on, the same to every token."
)


@guarded
def head_view(
    model: nn.Module | str | Any,
    inputs: Any,
    target: Any = None,
    *,
    processor: Any = None,
    rules: RuleSet | str | None = None,
    precision: str | torch.dtype | None = None,
    checks: bool = True,
    made: str | None = None,
    progress: bool | None = None,
    trust_remote_code: bool = False,
    **options: Any,
) -> HeadView:
    """A card of one sample's attention heads: for each head of every layer a small map and a share.

    The scores of ``"transformer_attribution"`` are a sum over the ways that lead from the answer to
    the input through attention. A head's part is the sum over the ways on which it is the head
    nearest the input. The parts of all heads add up to the scores, their shares to 1.

    Args:
        model, inputs, target, processor, rules, precision, progress, trust_remote_code: as in
            ``explain``; one sample.
        checks: also take the five strongest heads away, beside five drawn by chance, and compare
            with the map of the model with shuffled weights.
        made: the call to write at the foot of the card, in place of this one.
        options: those of the processor (``truncation=True``).

    Raises ``InputError`` for several samples, and ``OptionError`` where the heads' parts do not add
    up to the scores: where layers do not follow one another on one sequence (encoders with
    decoders, windows, hierarchies).

    >>> import torch, relprop
    >>> from relprop.demo.model import digit_scene_model
    >>> view = relprop.head_view(digit_scene_model(), torch.rand(1, 1, 32, 32), 3, checks=False)
    >>> [tuple(share.shape) for share in view.shares]
    [(4,), (4,), (4,), (4,)]
    """
    with showing(progress):
        inputs, (question,) = move_processor_options(inputs, [Question(METHOD, options, rules)])
        module, given = opened(model, inputs, processor, trust_remote_code=trust_remote_code)
        bound = bind(given.inputs)
        how: dict[str, Any] = {"rules": rules, "precision": precision}
        if bound.batch != 1:
            fact = f"head_view() shows one sample, and these are {bound.batch}"
            raise InputError(message(fact, then=["a call for each sample: inputs[:1]"]))

        def again(other: nn.Module, aim: Any, **more: Any) -> Explanation:
            return explain(other, given, aim, method=METHOD, **how, **question.settings, **more)

        found = again(module, target, keep="blocks")
        vectors = head_vectors(found)
        known = isinstance(found.target[0], int | tuple)
        aim = list(found.target) if known else target
        shares = shares_of(vectors)

        def taken() -> Ablation:
            with instrument(module, given, aim, verify=False, **how) as probe:
                return ablated(probe, found, shares, given.processor)

        def shuffled_alike() -> float:
            with doing("the model with shuffled weights"):
                return control_of(found, lambda other: again(other, aim), module)

        ablation, why = _tried(taken) if checks else (None, Checks.why_no_control)
        control, unknown = _tried(shuffled_alike) if checks else (None, Checks.why_no_control)
        apart = "heads are taken away here instead of parts of the input"
        judged = Checks(control, None, tuple(found.concerns(0)), unknown, apart)
        called = made or f"relprop.head_view(model, inputs, target={found.target[0]!r})"
        title = f"Which attention heads lead to “{target_of(found, 0)}”?"
        said, line = _said(shares), made_by(module, found, called)
        seen = _seen(found, bound)
        return HeadView(title, said, judged, line, found, vectors, seen, ablation, why)


def _tried(measured: Callable[[], Result]) -> tuple[Result | None, str]:
    """What was measured, or why nobody knows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is wrong with another model's map is no matter
        try:
            return measured(), ""
        except RelpropError as error:
            return None, first_line(error)


def shares_of(vectors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Each head's share of the whole, for each block (heads,)."""
    total = sum(float(vector.sum()) for vector in vectors)
    return tuple(vector.sum(1) / total for vector in vectors)


def _said(shares: tuple[Tensor, ...]) -> str:
    """How few heads carry most of the map, and which is the strongest."""
    flat = torch.cat(shares)
    few = int((flat.sort(descending=True).values.cumsum(0) < MOST - 1e-9).sum()) + 1
    layer = max(range(len(shares)), key=lambda i: float(shares[i].max()))
    head, share = int(shares[layer].argmax()), float(shares[layer].max())
    return (
        f"{few} of {counted(len(flat), 'attention head')} carr{'ies' if few == 1 else 'y'} "
        f"{percent(MOST)} of the relevance map; the strongest is head {head} of layer {layer} "
        f"({percent(share)})."
    )


def _seen(explanation: Explanation, bound: Inputs) -> np.ndarray | None:
    """The picture that the model saw, bytes (H, W, 3): the part of the kept one, else the input's
    own numbers stretched from black to white; ``None`` for what is no single picture."""
    stream = only(explanation, "head_view()")
    if stream.grid is None or len(stream.grid) != 2 or stream.clock is not None:
        return None
    kept = None if stream.originals is None else stream.originals[0].seen()
    if kept is None:
        kept = dict(zip(bound.names, bound.tensors, strict=True)).get(stream.name)
        if kept is None or kept.dim() != 4 or kept.shape[1] not in (1, 3):
            return None
        low, high = kept[0].aminmax()
        kept = (kept[0].detach().cpu() - low.cpu()) / (high - low).clamp(min=1e-9).cpu() * 255
    found: np.ndarray = kept.float().round().byte().expand(3, -1, -1).movedim(0, -1).numpy()
    return found


@guarded
@dataclass(frozen=True, eq=False, repr=False)
class HeadView(Card):
    """What ``head_view`` found, as a page, a notebook's view and a picture.

    ``explanation``: the map, with its blocks. ``vectors``: for each block in forward order what of
    the scores goes through each of its heads, (heads, tokens); all of them add up to
    ``explanation.scores``. ``seen``: the picture that the model saw, bytes (H, W, 3). ``ablation``:
    what the model says without the strongest heads; ``None`` with ``why_no_ablation``.
    """

    explanation: Explanation
    vectors: tuple[Tensor, ...]
    seen: np.ndarray | None
    ablation: Ablation | None
    why_no_ablation: str

    @property
    def shares(self) -> tuple[Tensor, ...]:
        """Each head's share of the map, for each block in forward order (heads,); all sum to 1."""
        return shares_of(self.vectors)

    @cached_property
    def whole(self) -> Parts:
        """What goes through all heads together, patch by patch or word by word."""
        return parts_of(self.explanation, [torch.cat(self.vectors).sum(0)])[0]

    def _scripts(self) -> tuple[str, ...]:
        return ("heads.js",)

    def _data(self) -> Mapping[str, Any]:
        """All heads in forward order, and last what goes through all together; cells as numbers to
        255, of the strongest one of each head."""
        total = float(torch.cat(self.vectors).sum())
        heads = []
        for layer, vectors in enumerate(self.vectors):
            path = (self.explanation.blocks or ())[layer].path
            for head, part in enumerate(parts_of(self.explanation, list(vectors))):
                share = percent(float(vectors[head].sum()) / total)
                heads.append(_shown(f"layer {layer}, head {head}: {share}", path, part, total))
        heads.append(_shown("all heads together: 100\u00a0%", "", self.whole, total))
        names, (rows, columns) = self.whole.names, self.whole.cells.shape
        first = int(torch.cat(self.shares).argmax())
        return {"heads": heads, "names": names, "rows": rows, "columns": columns, "first": first}

    def _body(self) -> str:
        names = self.whole.names
        left = ""
        if self.seen is not None:
            left = (
                f'<figure><img class="seen" alt="the picture" src="{data_uri(self.seen)}">'
                "<figcaption>What the model saw</figcaption></figure>"
            )
        elif names is not None:
            words = " ".join(f"<bdi>{markup(name)}</bdi>" for name in names)
            left = f"<figure><p>{words}</p><figcaption>What the model read</figcaption></figure>"
        judged = f"No heads were taken away: {self.why_no_ablation}."
        judged = judged if self.ablation is None else self.ablation.sentence
        return (
            f'<section class="side">{left}<figure><div id="large"></div>'
            '<figcaption id="which" aria-live="polite"></figcaption></figure></section>'
            f'<section><h2>Every head of every layer</h2><p class="soft">{HELP}</p>'
            f'<p><button type="button" data-head="{sum(map(len, self.vectors))}" aria-pressed='
            f'"false">All heads together</button></p>{self._table()}</section>'
            "<section><h2>Without the strongest heads</h2>"
            f'<p>{markup(judged, 800)}</p><p class="soft">{TAKEN}</p></section>'
        )

    def _table(self) -> str:
        """A button for each head, the last layer first."""
        strongest, rows, first = max(float(s.max()) for s in self.shares), [], 0
        for layer, shares in enumerate(self.shares):
            cells = "".join(
                f'<td><button type="button" class="head" data-head="{first + head}" aria-pressed='
                f'"false" aria-label="layer {layer}, head {head}: {percent(share)}"><canvas '
                f'aria-hidden="true"></canvas><i style="width:{share / strongest:.0%}"></i>'
                f"{percent(share)}</button></td>"
                for head, share in enumerate(shares.tolist())
            )
            rows.append(f"<tr><th scope=row>layer {layer}</th>{cells}</tr>")
            first += len(shares)
        most = max(map(len, self.shares))
        heads = "".join(f"<th scope=col>head {k}</th>" for k in range(most))
        return (
            f'<div class="wide"><table class="heads" style="--heads:{most}"><caption '
            f'class="silent">Share of each head</caption><tr><td></td>{heads}</tr>'
            f"{''.join(reversed(rows))}</table></div>"
        )

    def _figure(self) -> Figure:
        from relprop.cards.head_picture import drawn

        return drawn(self)


def _shown(label: str, path: str, part: Parts, total: float) -> dict[str, Any]:
    """One head for the page's script. ``most``: the share that its strongest cell has of all."""
    most, rest = float(part.cells.max()), part.rest / total
    beside = f" On tokens that are not shown (class token, separators): {percent(rest)}."
    cells = np.round(255 * part.cells / (most or 1.0)).astype(int)
    return {
        "label": label,
        "path": path,
        "rest": beside if rest >= 0.001 else "",
        "most": round(most / total, 6),
        "cells": cells.ravel().tolist(),
    }
