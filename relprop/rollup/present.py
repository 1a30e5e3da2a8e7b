"""Where the tokens of a source stand, if that is not everywhere: beside padding, and beside tokens
of others that were joined to them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, fx

from relprop.operations import ELEMENTWISE, MOVES, Kind, kind
from relprop.rollup.sources import Sources
from relprop.tracer.atoms import Axes, token_count
from relprop.tracer.editing import is_tensor, tensor_inputs, val
from relprop.tracer.labels import LARGEST, Labels
from relprop.tracer.order import Flow

#: Every token that is there, whichever source's.
ANY = -1
KEEPS_PLACES = ELEMENTWISE | {Kind.NORM, Kind.BATCH_NORM, Kind.SOFTMAX, Kind.LOG_SOFTMAX}


class Present:
    """Where tokens of each source stand: 1 or 0 at each place of a tensor, features of length 1.

    After attention and wherever windows meet they are taken to be everywhere.
    """

    def __init__(self, flow: Flow, axes: Mapping[fx.Node, Axes], sources: Sources) -> None:
        self.flow, self.axes, self.sources = flow, axes, sources
        self._made: dict[int, dict[fx.Node, Tensor | None]] = {}
        self._labels = Labels()
        kinds = (Kind.PAD, Kind.JOIN)
        self._makers = [n for n in flow.nodes if kind(n) in kinds and n in sources.reach]

    def at(self, node: fx.Node, bit: int) -> Tensor | None:
        """Where tokens of a source stand at a node; ``None``: everywhere."""
        makers = [n for n in self._makers if self._leaves_out(n, bit) and self._counts(n, bit)]
        if not any(self.flow.reaches(n, node) for n in makers):
            return None
        known = self._made.setdefault(bit, {})
        if node not in known:
            above = [n for m in makers for n in (m, *self.flow.between(m, node))]
            for n in sorted(set(above), key=self.flow.index.__getitem__):
                if n not in known:
                    known[n] = self._after(n, bit, known)
        return known[node]

    def _counts(self, node: fx.Node, bit: int) -> bool:
        return bool(self.sources.of(node) & bit)

    def _leaves_out(self, node: fx.Node, bit: int) -> bool:
        """Whether tokens of a source do not stand everywhere in a result."""
        if kind(node) is Kind.PAD:
            return True
        return bit != ANY and any(not self._counts(o, bit) for o in tensor_inputs(node))

    def _after(
        self, node: fx.Node, bit: int, known: Mapping[fx.Node, Tensor | None]
    ) -> Tensor | None:
        if not is_tensor(node) or node in self.sources.bits or val(node).numel() > LARGEST:
            return None
        inputs = [o for o in tensor_inputs(node) if is_tensor(o)]
        here = [o for o in inputs if self._counts(o, bit)]
        everywhere = not self._leaves_out(node, bit) and all(known.get(o) is None for o in here)
        if everywhere or not here:
            return None
        shape, one = val(node).shape, torch.ones((), dtype=torch.float64, device="cpu")
        at = {o: one if known.get(o) is None else known[o] for o in here}
        wide = {o: t.expand(val(o).shape) for o, t in at.items() if t is not None}
        made: Tensor | None = None
        if kind(node) in MOVES | {Kind.PAD}:
            others = [o for o in inputs if val(o).is_floating_point()]
            filled = {o: (one * (bit == ANY)).expand(val(o).shape) for o in others}
            made = self._labels.push(node, {**filled, **wide})
        elif kind(node) is Kind.LINEAR:
            made = wide[here[0]].amax(-1, keepdim=True).expand(shape)
        elif kind(node) in KEEPS_PLACES and all(val(o).dim() <= len(shape) for o in here):
            made = torch.stack([w.expand(shape) for w in wide.values()]).amax(0)
        if made is None or bool(made.all()):
            return None
        plain = [i for i, a in enumerate(self.axes.get(node, ())) if token_count(a) == 1]
        return made.amax(plain, keepdim=True) if plain else made
