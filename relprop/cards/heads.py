"""The head view: which attention heads the map goes through, each with its share and a map of its
own, and what the model says without the strongest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from relprop.api.explain import explain
from relprop.api.instrument import instrument
from relprop.cards.answer import percent
from relprop.cards.base import Card, picture_bytes, stack
from relprop.cards.chances import same_target
from relprop.cards.head_parts import Parts, head_vectors, in_one_sentence, parts_of, shares_of
from relprop.cards.head_trials import ablated
from relprop.cards.trials import (
    UNASKED,
    Checks,
    Comparison,
    control_of,
    made_by,
    tried,
)
from relprop.error_boundary import guarded
from relprop.errors import InputError
from relprop.explanation import Explanation, TokenScores
from relprop.opening.opening import opened
from relprop.progress import showing
from relprop.rules import RuleSet
from relprop.runner.question import Question, move_processor_options
from relprop.runs.fingerprints import of_model
from relprop.tracer.binding import Inputs, bind
from relprop.tracer.surroundings import plain_numbers
from relprop.views.escape import markup
from relprop.views.page import data_uri
from relprop.views.shown import only, target_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

METHOD = "transformer_attribution"
HELP = (
    "Attention heads are the parts of a transformer that carry something from one token to "
    "another. The number below each, and its bar, is its share of the relevance map; all heads "
    "have 100\u00a0% together. Relevance that passed several heads, layer after layer, counts "
    "for the one nearest the input. The small maps show where each head reads; heads with a "
    "small share are pale; a text runs over several rows. The last layer, next to the answer, "
    "is on top; layers and heads are counted from 0. Click a map to enlarge it, or go to it "
    "with the arrow keys and press Enter."
)
APART = "heads are taken away here instead of parts of the input"
LEFT, BESIDE = 3.4, 0.9  # inches of the figure: the left part, and the room around it
SIDE, STRIP_HIGH = 0.7, 0.4  # inches of a small map, and how high a text's is
TAKEN = (
    "Several at once, since one head alone seldom decides. A head is taken away by replacing "
    "its attention with its mean over the queries: it still passes something on, the same to "
    "every token."
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
    with showing(progress), plain_numbers():
        inputs, (question,) = move_processor_options(inputs, [Question(METHOD, options, rules)])
        module, given = opened(model, inputs, processor, trust_remote_code=trust_remote_code)
        bound = bind(given.inputs)
        if bound.batch != 1:
            fact = f"head_view() shows one sample, and these are {bound.batch}"
            raise InputError(fact, then=["a call for each sample: inputs[:1]"])
        how: dict[str, Any] = {"rules": rules, "precision": precision}

        def again(other: nn.Module, aim: Any, **more: Any) -> Explanation:
            return explain(other, given, aim, method=METHOD, **how, **question.settings, **more)

        found = again(module, target, keep="blocks")
        vectors = head_vectors(found)
        aim = same_target(found, target)

        def taken() -> Comparison:
            with instrument(module, given, aim, verify=False, **how) as probe:
                return ablated(probe, found, shares_of(vectors), given.processor)

        without: Comparison | str = UNASKED
        control: float | str = UNASKED
        if checks:
            without = tried(taken, "taking heads away")
            control = control_of(module, found, lambda other: again(other, aim))
        called = made or f"relprop.head_view(model, inputs, target={found.target[0]!r})"
        return HeadView(
            f"Which attention heads lead to “{target_of(found, 0)}”?",
            in_one_sentence(shares_of(vectors)),
            Checks(tuple(found.concerns(0)), control, APART),
            made_by(found.method, found.rules, of_model(module), called),
            found,
            vectors,
            _seen(only(found, "head_view()"), bound),
            without,
        )


def _seen(stream: TokenScores, bound: Inputs) -> np.ndarray | None:
    """The picture that the model saw, bytes (H, W, 3): the part of the kept one, else the input's
    own numbers; ``None`` for what is no single picture."""
    if stream.grid is None or len(stream.grid) != 2 or stream.clock is not None:
        return None
    kept = None if stream.originals is None else stream.originals[0].seen()
    if kept is not None:
        return picture_bytes(kept / 255)
    own = dict(zip(bound.names, bound.tensors, strict=True)).get(stream.name)
    if own is None or own.dim() != 4 or own.shape[1] not in (1, 3):
        return None
    return picture_bytes(own[0])


@guarded
@dataclass(frozen=True, eq=False, repr=False)
class HeadView(Card):
    """What ``head_view`` found, as a page, a notebook's view and a picture.

    ``explanation``: the map, with its blocks. ``vectors``: for each block in forward order what of
    the scores goes through each of its heads, (heads, tokens); all of them add up to
    ``explanation.scores``. ``seen``: the picture that the model saw, bytes (H, W, 3).
    ``ablation``: what the model says without the strongest heads, or why that is not known.
    """

    script: ClassVar[str] = "heads.js"
    explanation: Explanation
    vectors: tuple[Tensor, ...]
    seen: np.ndarray | None
    ablation: Comparison | str

    @property
    def shares(self) -> tuple[Tensor, ...]:
        """Each head's share of the map, for each block in forward order (heads,); all sum to 1."""
        return shares_of(self.vectors)

    @cached_property
    def whole(self) -> Parts:
        """What goes through all heads together, patch by patch or word by word."""
        return parts_of(self.explanation, [torch.cat(self.vectors).sum(0)])[0]

    def _data(self) -> Mapping[str, Any]:
        """All heads in forward order, and last what goes through all together; cells as numbers to
        255, of the strongest one of each head."""
        total, heads = float(torch.cat(self.vectors).sum()), []
        for layer, (vectors, shares) in enumerate(zip(self.vectors, self.shares, strict=True)):
            module = f"module {(self.explanation.blocks or ())[layer].path}"
            for head, part in enumerate(parts_of(self.explanation, list(vectors))):
                label = f"Layer {layer}, head {head}: {percent(float(shares[head]))}, {module}"
                heads.append(_shown(label, part, total))
        heads.append(_shown("All heads together: 100%", self.whole, total))
        rows, columns = self.whole.cells.shape
        first = int(torch.cat(self.shares).argmax())
        size = {"names": self.whole.names, "rows": rows, "columns": columns}
        return {"heads": heads, "first": first, **size}

    def _body(self) -> str:
        names = self.whole.names
        if names is None:
            uri = "" if self.seen is None else data_uri(self.seen)
            size = self.whole.cells.shape if self.seen is None else self.seen.shape
            shown = uri and f"{stack(uri, size)}<figcaption>What the model saw</figcaption>"
            large = stack(uri, size, '<canvas id="large"></canvas>')
        else:
            words = " ".join(f"<bdi>{markup(name)}</bdi>" for name in names)
            shown = f"<p>{words}</p><figcaption>What the model read</figcaption>"
            large = '<p id="large"></p>'
        if isinstance(self.ablation, str):
            without = f"No heads were taken away: {self.ablation}."
        else:
            without = self.ablation.sentence
        return (
            f'<section class="side"><figure>{shown}</figure><figure>{large}'
            '<figcaption id="which" aria-live="polite"></figcaption></figure></section>'
            f'<section><h2>Every head of every layer</h2><p class="soft">{HELP}</p>'
            f'<p><button type="button" data-head="{sum(map(len, self.vectors))}" aria-pressed='
            f'"false">All heads together</button></p>{self._table()}</section>'
            "<section><h2>Without the strongest heads</h2>"
            f'<p>{markup(without, 800)}</p><p class="soft">{TAKEN}</p></section>'
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
        """Left all heads together, over the picture or the words; right a map for each head, the
        last layer on top."""
        from relprop.views.figure import TICK, blank, grid_of, show_heatmap
        from relprop.views.shaded_text import draw_words

        whole, most = self.whole, max(map(len, self.vectors))
        high = SIDE if whole.names is None else STRIP_HIGH
        wide, height = 0.6 + SIDE * most, 0.6 + (high + 0.15) * len(self.vectors)
        fig = blank(LEFT + BESIDE + wide, max(height, LEFT) + 0.4)
        left, right = grid_of(fig, 1, 2, [LEFT + BESIDE, wide])[0]
        if whole.names is not None:
            shares = whole.cells / (float(whole.cells.max()) or 1.0)
            draw_words(left, list(whole.names), shares.flat[: len(whole.names)].tolist(), LEFT, 9.0)
        else:
            size = None if self.seen is None else self.seen.shape[:2]
            heat = torch.tensor(whole.cells) if size is None else self.explanation.heatmap(size)[0]
            show_heatmap(left, heat, "all heads together", self.seen)
        self._draw_heads(right, most)
        fig.suptitle(self.said, fontsize=TICK + 1).set_parse_math(False)
        return fig

    def _draw_heads(self, axes: Axes, most: int) -> None:
        """A unit square for each head: its map on a scale of its own, and its share below."""
        from relprop.views.figure import GREY, TICK, scale_of, write_ticks

        small, layers = {"ha": "center", "va": "top", "color": GREY}, len(self.vectors)
        for layer, (vectors, shares) in enumerate(zip(self.vectors, self.shares, strict=True)):
            top = layers - 1 - layer
            for head, part in enumerate(parts_of(self.explanation, list(vectors))):
                extent = (head - 0.45, head + 0.45, top + 0.25, top - 0.45)
                axes.imshow(part.cells, extent=extent, aspect="auto", **scale_of(part.cells))
                share = percent(float(shares[head]))
                axes.text(head, top + 0.29, share, fontsize=TICK - 1, **small)  # type: ignore[arg-type]
        axes.set_xlim(-0.5, most - 0.5)
        axes.set_ylim(layers - 0.5, -0.5)
        write_ticks(axes, "x", [f"head {k}" if k == 0 else str(k) for k in range(most)])
        write_ticks(axes, "y", [f"layer {layers - 1 - k}" for k in range(layers)])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)


def _shown(label: str, part: Parts, total: float) -> dict[str, Any]:
    """One head for the page's script: what is said of it, and its cells. ``most``: the share of all
    that its strongest cell has."""
    most, rest = float(part.cells.max()), part.rest / total
    if most > 0:
        at = int(part.cells.argmax())
        row, column = divmod(at, part.cells.shape[1])
        patch = f"the patch in row {row}, column {column}"
        place = patch if part.names is None else f"“{part.names[at]}”"
        label += f". Strongest: {place} ({percent(most / total)})"
    if rest >= 0.001:
        label += f". On tokens that are not shown (class token, separators): {percent(rest)}"
    cells = np.round(255 * part.cells / (most or 1.0)).astype(int)
    return {"says": f"{label}.", "most": round(most / total, 6), "cells": cells.ravel().tolist()}
