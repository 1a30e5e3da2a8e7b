"""The row of every input by hand: the definition of the roll-up as it is written, multiplied
forward.

Of each result of a recipe and each *source* (the tokens of an input, the uses of an attention map,
learned tokens), ``stands`` says which tokens of the source stand at its positions. Numbers are
dense matrices and paths are sets; nothing is shared with relprop. Where the definition can be read
otherwise, ``READINGS`` says how.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from tools.rollup_graphs.recipes import Node, Recipe, positions, windows

Matrix = np.ndarray[Any, np.dtype[np.float64]]
#: Of each input, scores and identity, (batch, tokens).
Rows = list[tuple[Matrix, Matrix]]
#: What does not mix tokens: what stood at a token stands there.
ONE_EACH = frozenset({"linear", "norm", "act", "scale", "features", "columns"})
MOVES = frozenset({"move", "join"})
SUMS = frozenset({"add", "subtract"})
#: On a way of these alone a tensor is still itself.
PASSING = frozenset({"norm", "act", "scale", "features", *MOVES, *SUMS})
BETWEEN = frozenset({"norm", "act", "scale"})
#: Where the definition can be read otherwise: x is what all terms come from, those without a way,
#: too; sums with a norm between them are one; so are products of products; sums that others read,
#: too, are one with the next; a pooling leaves out what only a map brought; a target's positions
#: count where nothing of a source stands; a term counts where another input or a learned token
#: stands; so does one that is some positions of a tensor of which others are the other terms.
READINGS = ("paths", "between", "factors", "shared", "there", "read", "columns", "picks")


class ByHand:
    """The recipe multiplied out. ``maps``: the mean over the heads of each attention map, (batch,
    queries, keys); ``weights``: of operations that mix tokens by a constant matrix. ``reading``:
    which part of the definition is read otherwise."""

    def __init__(
        self,
        recipe: Recipe,
        maps: dict[int, Matrix],
        weights: dict[int, Matrix],
        reading: str = "",
    ) -> None:
        self.recipe, self.nodes, self.live = recipe, recipe.nodes, recipe.live
        self.maps, self.weights, self.reading = maps, weights, reading
        self.users = [o for i in self.live for o in self.nodes[i].of]
        self.behind = dict[int, set[int]]()  # from what each result is computed, itself included
        for i in self.live:
            self.behind[i] = {i}.union(*(self.behind[o] for o in self.nodes[i].of))
        self.uses = recipe.of_kind("use")
        self.start = {n: self.token_tensor(n) for n in recipe.of_kind("input")}
        self.roots = {s: [s] for s in (*self.start.values(), *recipe.of_kind("learned"))}
        self.source = dict[int, int]()  # of a use: the first use of its source
        for u in self.uses:
            self.source[u] = self.first_of(u)
            self.roots.setdefault(self.source[u], []).append(u)
        self.stands = dict[int, dict[int, Matrix]]()
        self.there = dict[int, Matrix]()  # which positions are no padding
        for i in self.live:
            self.compute(i)

    # -- sources

    def token_tensor(self, leaf: int) -> int:
        """The last result through which every path from an input to the target and any map goes,
        and which no other input has entered."""
        ends = [n for n, _ in self.recipe.reads] + self.recipe.of_kind("map")
        common = self.dominators([leaf], [e for e in ends if leaf in self.behind[e]])
        others = set(self.recipe.of_kind("input")) - {leaf}
        return max(c for c in common if not others & self.behind[c] and self.nodes[c].op != "map")

    def in_order(self) -> bool:
        """Whether the tokens of each input are its positions, in their order."""
        before = set().union(*(self.behind[s] for s in self.start.values()))
        return {self.nodes[i].op for i in before} <= ONE_EACH | {"input", "learned", "join"}

    def first_of(self, use: int) -> int:
        """The first use of its map such that as many uses of that map lie behind it."""
        same = [u for u in self.uses if self.nodes[u].of[0] == self.nodes[use].of[0]]

        def depth(u: int) -> int:
            return max((1 + depth(v) for v in same if v in self.behind[u] - {u}), default=0)

        return min(u for u in same if depth(u) == depth(use))

    def dominators(self, roots: list[int], ends: list[int]) -> set[int]:
        """Through which results every path from the roots to all ends passes."""
        found = {root: {root} for root in roots}
        for i in self.live:
            before = [found[o] for o in self.nodes[i].of if o in found]
            if before and i not in found:
                found[i] = {i} | set.intersection(*before)
        return set.intersection(*(found[e] for e in ends))

    # -- how it goes through an operation

    def compute(self, i: int) -> None:
        """What stands at the positions of a result."""
        node = self.nodes[i]
        self.there[i] = self.present(node)
        self.stands[i] = {}
        for b in {b for o in node.of for b in self.stands[o]}:
            stands = self.through(i, node, b)
            if stands is not None and stands.any():
                self.stands[i][b] = stands
        for b in [b for b, roots in self.roots.items() if i in roots]:  # a source's own tokens
            places = [np.eye(node.tokens) * (r == i) for r in self.roots[b]]
            self.stands[i][b] = np.concatenate(places, 1)

    def present(self, node: Node) -> Matrix:
        """Which positions are no padding."""
        of = [self.there[o] for o in node.of]
        if node.op == "windows":
            return np.array([of[0][w].max(initial=0) for w in windows(node.how, len(of[0]))])
        if node.op in ONE_EACH | MOVES:
            return self.carried(node, [t[:, None] for t in of])[:, 0]
        if node.op in SUMS | {"cat", "larger", "multiply"}:
            return reduce(np.maximum, of)
        return np.ones(node.tokens)

    def through(self, i: int, node: Node, b: int) -> Matrix | None:
        """What an operation makes of what stands at its operands; ``None`` where no way leads."""
        of = [self.stands[o].get(b) for o in node.of]
        known = [m for m in of if m is not None]
        if not known or node.op in ("map", "use"):
            return None
        if node.op == "windows":
            return self.brought_together(i, known[0], b)
        if node.op == "mix":
            shares = abs(self.weights[i]) * self.there[node.of[0]]
            return shares / shares.sum(1, keepdims=True) @ known[0]
        if node.op in ONE_EACH | MOVES:
            none = [np.zeros((self.nodes[o].tokens, known[0].shape[1])) for o in node.of]
            return self.carried(
                node, [n if m is None else m for m, n in zip(of, none, strict=True)]
            )
        return self.merged(i, b)

    def carried(self, node: Node, of: list[Matrix]) -> Matrix:
        """Rows at the places to which tokens move."""
        if node.op == "join":
            return np.concatenate(of)
        if node.op != "move":
            return of[0]
        return np.concatenate([of[0], 0 * of[0][:1]])[positions(node.how, len(of[0]))]

    def brought_together(self, i: int, stands: Matrix, b: int) -> Matrix:
        """Even shares of the tokens that are there."""
        x = self.nodes[i].of[0]
        there = self.there[x].copy()
        if self.reading == "there":  # where a map alone stands is no token
            columns = [m for s, m in self.stands[x].items() if s not in self.uses]
            there *= sum((m.any(1) for m in columns), stands.any(1)) > 0
        shares = np.zeros((self.nodes[i].tokens, len(stands)))
        for row, over in zip(shares, windows(self.nodes[i].how, len(stands)), strict=True):
            row[over] = there[over] / max(there[over].sum(), 1)
        return shares @ stands

    # -- merges

    def merged(self, i: int, b: int) -> Matrix:
        """The mean over the terms to which a way leads, place by place; over those that are still
        what all come from, where these hold all its tokens."""
        n, terms = self.nodes[i].tokens, self.terms(i)
        ways = [t for t in terms if b in self.stands[t]]
        if self.nodes[i].op == "multiply":  # what is the same at every token is a factor
            ways = [t for t in ways if self.nodes[t].tokens == n] or ways
            terms = [t for t in terms if self.nodes[t].tokens == n]
        others = [t for t in terms if b not in self.stands[t]]
        if self.nodes[i].op != "multiply" and len(ways) > 1:
            ways = self.still(ways, terms, b) or ways
        found = [np.broadcast_to(self.stands[t][b], (n, self.stands[t][b].shape[1])) for t in ways]
        count = sum(self.counted(t, b, terms) for t in ways + others)
        shares = [self.share(t, b) for t in ways]
        total = sum(s * m for s, m in zip(shares, found, strict=True))
        return total / np.maximum(count, 1)[:, None]

    def counted(self, t: int, b: int, terms: list[int]) -> Matrix:
        """At which positions a term takes part."""
        own = self.stands[t].get(b, np.zeros((self.nodes[t].tokens, 1)))
        found = [own]
        if self.reading == "columns" and b not in self.uses:
            found += [m for s, m in self.stands[t].items() if s not in self.uses]
        if self.reading == "picks" and len({self.picked_from(o) for o in terms}) == 1:
            found = [self.there[t][:, None]]
        return np.sign(np.concatenate(found, 1).sum(1))

    def picked_from(self, t: int) -> int:
        """Of which tensor a term holds some positions."""
        while self.nodes[t].op in ONE_EACH | {"move", "windows", "mix"}:
            t = self.nodes[t].of[0]
        return t

    def terms(self, i: int) -> list[int]:
        """The terms of a merge, those of sums within a sum included; a sum that others read, too,
        is a merge of its own."""
        alike = {"multiply"} if self.reading == "factors" else SUMS
        found = list[int]()
        for o in self.nodes[i].of:
            inner = o
            while (
                self.reading == "between" and self.nodes[inner].op in BETWEEN and self.alone(inner)
            ):
                inner = self.nodes[inner].of[0]
            nested = {self.nodes[i].op, self.nodes[inner].op} <= alike and self.alone(inner)
            found += self.terms(inner) if nested else [o]
        return found

    def alone(self, i: int) -> bool:
        """Whether one operation reads a result."""
        return self.reading == "shared" or self.users.count(i) == 1

    def share(self, term: int, b: int) -> float:
        """Of a map's heads that stand at a term, how many of all."""
        use, share = self.recipe.pieces.get(term, (-1, 1.0))
        return share if self.source.get(use) == b else 1.0

    def still(self, ways: list[int], terms: list[int], b: int) -> list[int]:
        """The terms that are still x, if together they hold every token of it."""
        below = [t for t in terms if self.behind[t] & set(self.roots[b])]
        common = self.dominators(self.roots[b], below if self.reading == "paths" else ways)
        if not common:
            return []
        x = max(common)
        held = {t: self.held(x, t) for t in ways}
        every = sum(held.values()) + (self.there[x] == 0)
        return [t for t in ways if held[t].any()] if np.all(every) else []

    def held(self, x: int, t: int) -> Matrix:
        """Which tokens of x a term has by a way on which it is still x."""
        n = self.nodes[x].tokens
        found = {x: np.eye(n)}
        for i in self.live:
            node = self.nodes[i]
            if x < i <= t and node.op in PASSING:
                of = [found.get(o, np.zeros((self.nodes[o].tokens, n))) for o in node.of]
                found[i] = of[0] + of[1] if node.op in SUMS else self.carried(node, of)
        return np.sign(found.get(t, np.zeros((1, n))).sum(0))

    # -- chains

    def rows(self) -> Rows:
        """Of each input, scores and identity, (batch, tokens)."""
        chains = dict[int, Matrix]()
        for u in reversed(self.uses):
            chains[u] = self.row(self.source[u], chains)[:, self.columns(u)]
        return [
            (self.row(self.start[n], chains) - (own := self.target(self.start[n])), own)
            for n in sorted(self.start, key=lambda n: self.nodes[n].how)
        ]

    def columns(self, use: int) -> slice:
        """Where the queries of one use stand among those of its source."""
        n, roots = self.nodes[use].tokens, self.roots[self.source[use]]
        return slice(roots.index(use) * n, (roots.index(use) + 1) * n)

    def row(self, b: int, chains: dict[int, Matrix]) -> Matrix:
        """N(target, b) + Σ row(target, s) E_s N(values of s, b)."""
        total = self.target(b)
        for u, chain in chains.items():
            made, values = self.nodes[u].of
            if b in self.stands[values]:
                total = total + (chain[:, None] @ self.maps[made])[:, 0] @ self.stands[values][b]
        return total

    def target(self, b: int) -> Matrix:
        """A merge of the positions that the target reads, (1, tokens)."""
        rows = [self.stands[n][b][place] for n, place in self.recipe.reads if b in self.stands[n]]
        size = sum(self.nodes[r].tokens for r in self.roots[b])
        count = len(self.recipe.reads) if self.reading == "read" else sum(r.any() for r in rows)
        return (sum(rows, np.zeros(size)) / max(count, 1))[None]
