"""What each operand of a merge carries: the identity once, and whatever attention has mixed in."""

from __future__ import annotations

from collections.abc import Mapping

from torch import fx

from relprop.operations import MOVES, Kind, argument, kind
from relprop.rollup.brought import ONE_TO_ONE, PRODUCTS, Brought
from relprop.tracer.atoms import Axes, is_token, token_count
from relprop.tracer.editing import tensor_inputs, val
from relprop.tracer.order import Flow
from relprop.tracer.program import Site

MERGES = frozenset({Kind.SUM, Kind.PRODUCT, Kind.QUOTIENT, Kind.JOIN, Kind.EXTREMUM, Kind.CHOICE})


def is_merge(node: fx.Node, flow: Flow) -> bool:
    """Whether two or more activations meet in ``node``."""
    return kind(node) in MERGES and len(flow.inputs[node]) > 1


class Merges:
    """What the operands of merges carry: the identity once, and whatever attention has mixed in.

    Sums of sums are one merge: ``(a + b) + c``, with moves, norms and factors between the sums, is
    the sum of its *terms* a, b and c, so that the order in which they are added makes no
    difference. Let x be the nearest common dominator of the terms. A term is *transparent* if x
    reaches it by adds, moves and one-to-one ops alone, and *has a site* if an attention site lies
    on its way from x. Terms that depend on tokens apart from each other's (halves of a text, each
    read by itself) carry equal parts. Otherwise transparent terms and terms with a site carry the
    field whole; transparent ones that bring different tokens of x to the same places (the parts of
    a patch merging, positions that a head picks) carry equal parts. The others (an MLP, a projected
    shortcut) carry nothing if the transparent terms bring their tokens, or if the merge lies in a
    branch, has a term with a site, and an outer merge carries the branch's identity already; those
    that bring more (the mean of all tokens beside the first) carry equal parts with the transparent
    ones; without any of these they carry the identity once together, in equal parts.
    Where terms have no common dominator (several explained inputs), those of one input are judged
    among themselves, and a term in which inputs meet (cross-attention) is whole.
    """

    def __init__(self, flow: Flow, sites: tuple[Site, ...], axes: Mapping[fx.Node, Axes]) -> None:
        self.flow, self.axes = flow, axes
        self.contractions = [s.contraction for s in sites if s.contraction in flow.members]
        self.merges = [n for n in flow.nodes if is_merge(n, flow)]
        self.uses = {n: [u for u in n.users if u in flow.members] for n in flow.nodes}
        self.sums: dict[fx.Node, fx.Node] = {}  # the last sum of the sums that each is part of
        for node in reversed(self.merges):
            if kind(node) is Kind.SUM:
                after = self._next_sum(node)
                self.sums[node] = node if after is None else self.sums[after]
        self.terms: dict[fx.Node, list[fx.Node]] = {}
        for node in self.merges:
            if kind(node) is Kind.SUM:
                self.terms.setdefault(self.sums[node], []).extend(
                    o
                    for o in tensor_inputs(node)
                    if o in flow.members and self._sum_behind(o, node) is None
                )
        self._shares: dict[fx.Node, dict[fx.Node, float]] = {}
        self.known = {n: self._look(n) for n in self.merges}

    def _next_sum(self, node: fx.Node) -> fx.Node | None:
        """The sum that ``node`` is a term of and nothing else, if there is one."""
        while len(self.uses[node]) == 1 and tensor_inputs(self.uses[node][0]).count(node) == 1:
            node = self.uses[node][0]
            if kind(node) is Kind.SUM and is_merge(node, self.flow):
                return node
            if len(self.flow.inputs[node]) > 1 or not self._passes(node):
                return None
        return None

    def _sum_behind(self, operand: fx.Node, node: fx.Node) -> fx.Node | None:
        """The sum whose result ``operand`` is, if it is one merge with ``node``."""
        while operand not in self.sums:
            if len(self.flow.inputs[operand]) != 1 or len(self.uses[operand]) != 1:
                return None
            operand = self.flow.inputs[operand][0]
        return (
            operand
            if self.sums[operand] is self.sums[node] and self._next_sum(operand) is node
            else None
        )

    def _look(
        self, node: fx.Node
    ) -> tuple[fx.Node | None, dict[fx.Node, bool], dict[fx.Node, bool]]:
        operands = self.flow.inputs[node]
        x = self.flow.common_dominator(
            self.terms[self.sums[node]] if node in self.sums else operands
        )
        if x is None:
            return None, {}, {}
        return (
            x,
            {o: self._transparent(x, o) for o in operands},
            {o: self._has_site(x, o) for o in operands},
        )

    def _transparent(self, x: fx.Node, o: fx.Node) -> bool:
        return self.flow.reached_by(x, o, self._passes)

    def _is(self, x: fx.Node, o: fx.Node) -> bool:
        """Whether ``o`` is x but for operations that leave every token where it is."""
        while o is not x and kind(o) in ONE_TO_ONE - MOVES and len(self.flow.inputs[o]) == 1:
            o = self.flow.inputs[o][0]
        return o is x

    def _has_site(self, x: fx.Node, o: fx.Node) -> bool:
        return any(
            self.flow.reaches(c, o) and self.flow.reaches(x, c) and c is not x
            for c in self.contractions
        )

    def _passes(self, node: fx.Node) -> bool:
        lone = kind(node) in PRODUCTS and len(self.flow.inputs[node]) == 1
        return kind(node) in ONE_TO_ONE or lone

    def carries(self, node: fx.Node) -> tuple[float, ...]:
        """The weight of each tensor operand of ``node``, in order of appearance."""
        operands = tensor_inputs(node)
        if kind(node) is Kind.JOIN and not self._joins_features(node):
            return (1.0,) * len(operands)
        if kind(node) in PRODUCTS | {Kind.MATMUL}:
            x, transparent, has_site = self.known[node] if node in self.known else self._look(node)
            with_site = [o for o in transparent if has_site[o]]
            share = (
                {with_site[0]: 1.0}
                if len(with_site) == 1
                else {o: 1 / len(transparent) for o in transparent}
            )
            return (
                (1.0,) * len(operands) if x is None else tuple(share.get(o, 0.0) for o in operands)
            )
        whole = self.sums.get(node, node)
        if whole not in self._shares:
            self._shares[whole] = self._share(whole)
        return tuple(
            self._shares[whole].get(o, 1.0) if o in self.flow.members else 0.0 for o in operands
        )

    def _share(self, whole: fx.Node) -> dict[fx.Node, float]:
        """The weights of the terms of a merge; terms that come from inputs apart share nothing."""
        terms = self.terms.get(whole, [o for o in tensor_inputs(whole) if o in self.flow.members])
        x = self.flow.common_dominator(terms)
        if x is not None:
            return self._share_from(x, terms, terms, whole)
        apart: dict[fx.Node, list[fx.Node]] = {}
        for o in terms:
            apart.setdefault(self.flow.first(o), []).append(o)
        share: dict[fx.Node, float] = {}
        for first, some in apart.items():
            x = self.flow.common_dominator(some) if len(some) > 1 else first
            if x is not None and (
                len(some) > 1 or len(self.flow.inputs[first]) < 2
            ):  # a term in which inputs meet is whole
                share |= self._share_from(x, some, terms, whole)
        return share

    def _share_from(
        self, x: fx.Node, some: list[fx.Node], terms: list[fx.Node], whole: fx.Node
    ) -> dict[fx.Node, float]:
        clear = [o for o in some if self._transparent(x, o)]
        others = [o for o in some if o not in clear and not self._has_site(x, o)]
        if len(clear) == 1 and self._is(x, clear[0]):
            return dict.fromkeys(others, 0.0)
        brought = Brought(x, some, self.flow, self.axes)
        if len(some) > 1 and brought.are_apart():
            return dict.fromkeys(some, 1 / len(some))
        if not clear:
            outside = any(self._has_site(x, o) for o in terms)
            nothing = outside and self._identity_carried_outside(whole)
            return dict.fromkeys(others, 0.0 if nothing else 1 / max(len(others), 1))
        bring_more = [o for o in others if not brought.all_in(o, clear)]
        shared = bool(bring_more) or brought.differ(clear)
        equal = dict.fromkeys((*clear, *bring_more), 1 / len((*clear, *bring_more)))
        return dict.fromkeys(others, 0.0) | (equal if shared else {})

    def identity_of(self, contraction: fx.Node) -> fx.Node | None:
        """The first merge at which the branch of a site meets an operand that is transparent: its
        skip connection."""
        for merge in self.merges:
            x, transparent, _ = self.known[merge]
            if x is None or not self.flow.reaches(contraction, merge):
                continue
            branch = [o for o in transparent if self.flow.reaches(contraction, o)]
            if any(transparent[o] for o in transparent if o not in branch) and not any(
                transparent[o] for o in branch
            ):
                return merge
        return None

    def last_stream(
        self,
        starts: tuple[fx.Node, ...],
        contractions: tuple[fx.Node, ...],
        axes: Mapping[fx.Node, Axes],
        sizes: tuple[int, ...],
    ) -> fx.Node | None:
        """The first node after all the sites that every path to ``starts`` passes through and that
        still has the stream's token positions."""
        for node in self.flow.nodes:
            found = tuple(
                val(node).shape[i] for i, axis in enumerate(axes.get(node, ())) if is_token(axis)
            )
            behind = found == sizes and all(self.flow.reaches(c, node) for c in contractions)
            if behind and all(self.flow.common_dominator([node, s]) is node for s in starts):
                return node
        return None

    def _joins_features(self, node: fx.Node) -> bool:
        dims = val(node).dim()
        dim = argument(node, "dim") % max(dims, 1)
        axis = self.axes.get(node, ((),) * dims)[dim]
        return dims > 1 and (dim == dims - 1 or (bool(axis) and token_count(axis) == 1))

    def _identity_carried_outside(self, node: fx.Node) -> bool:
        """Whether an outer sum has this one on the way to an operand, and another operand that
        carries the identity of what both come from."""
        for outer in self.merges:
            x, transparent, has_site = self.known[outer]
            joins_tokens = kind(outer) is Kind.JOIN and not self._joins_features(outer)
            if (
                x is None
                or joins_tokens
                or kind(outer) in PRODUCTS
                or not self.flow.reaches(node, outer)
                or not self.flow.reaches(x, node)
            ):
                continue
            if self.sums.get(outer, outer) is node:
                continue
            holding = [o for o in transparent if self.flow.reaches(node, o)]
            if (
                holding
                and not any(transparent[o] for o in holding)
                and any(transparent[o] or not has_site[o] for o in transparent if o not in holding)
            ):
                return True
        return False
