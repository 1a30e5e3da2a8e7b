"""The row of every input by hand: the definition of the roll-up as it is written, multiplied
forward.

Of each result of a recipe and each *source* (the tokens of an input, the uses of an attention map,
learned tokens), ``stands`` says which tokens of the source stand at its positions. Numbers are
dense matrices and paths are sets; nothing is shared with relprop.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tools.rollup_graphs.recipes import Recipe, positions, windows

Matrix = np.ndarray[Any, np.dtype[np.float64]]
#: Of each input, scores and identity, (batch, tokens).
Rows = list[tuple[Matrix, Matrix]]
#: What does not mix tokens: what stood at a token stands there.
ONE_EACH = frozenset({"linear", "norm", "act", "scale", "features", "columns"})
LAYERS = frozenset({"linear", "columns", "mix"})
MOVES = frozenset({"move", "join"})
SUMS = frozenset({"add", "sub"})
#: On a way of these alone a tensor is still itself.
BETWEEN = frozenset({"norm", "act", "scale"})
PASSING = frozenset({"features", *BETWEEN, *MOVES, *SUMS})


class ByHand:
    """The recipe multiplied out. ``maps``: the mean over the heads of each attention map, (batch,
    queries, keys); ``weights``: of operations that mix tokens by a constant matrix. ``unclear``:
    the definition can be read either way: at some place of some merge a source does not stand where
    a term has other tokens, though a way leads to that term; or a norm stands between two sums."""

    def __init__(self, recipe: Recipe, maps: dict[int, Matrix], weights: dict[int, Matrix]) -> None:
        self.recipe, self.nodes, self.live = recipe, recipe.nodes, recipe.live
        self.maps, self.weights, self.unclear = maps, weights, False
        self.readers = [o for i in self.live for o in self.nodes[i].of]
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
        for i in self.live:
            below = {b for o in self.nodes[i].of for b in self.stands[o]}
            passes = self.nodes[i].op not in ("map", "use", "weight")
            self.stands[i] = {b: self.through(i, b) for b in below if passes}
            for b in [b for b, roots in self.roots.items() if i in roots]:  # its own tokens
                places = [np.eye(self.nodes[i].tokens) * (r == i) for r in self.roots[b]]
                self.stands[i][b] = np.concatenate(places, 1)

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

    def there(self, x: int) -> Matrix:
        """Which positions are no padding: where anything stands."""
        return np.sign(sum((m.sum(1) for m in self.stands[x].values()), np.zeros(1)))

    def through(self, i: int, b: int) -> Matrix:
        """What an operation makes of what stands at its operands."""
        node, size = self.nodes[i], sum(self.nodes[r].tokens for r in self.roots[b])
        of = [self.stands[o].get(b, np.zeros((self.nodes[o].tokens, size))) for o in node.of]
        if node.op in ONE_EACH | MOVES:
            return self.carried(i, of)
        if node.op not in ("windows", "mix"):
            return self.merged(i, b)
        shares = np.zeros((node.tokens, len(of[0])))
        if node.op == "windows":  # even shares
            self.unclear |= self.is_gate(node.of[0])
            for row, over in zip(shares, windows(node.how, len(of[0])), strict=True):
                row[over] = 1
        else:
            shares = abs(self.weights[i])
        shares = shares * self.there(node.of[0])  # of the tokens that are there
        total = shares.sum(1, keepdims=True)
        return shares / np.where(total, total, 1) @ of[0]

    def is_gate(self, x: int) -> bool:
        """Whether a tensor is a product of two others that nothing else reads: brought together at
        once, it is handed out by the size of its terms, which is not known here."""
        while self.nodes[x].op in ("scale", "move") and self.readers.count(x) == 1:
            x = self.nodes[x].of[0]
        wide = all(self.nodes[o].tokens == self.nodes[x].tokens for o in self.nodes[x].of)
        return self.nodes[x].op == "mul" and wide and self.readers.count(x) == 1

    def carried(self, i: int, of: list[Matrix]) -> Matrix:
        """Rows at the places to which tokens move."""
        if self.nodes[i].op == "join":
            return np.concatenate(of)
        if self.nodes[i].op != "move":
            return of[0]
        return np.concatenate([of[0], 0 * of[0][:1]])[positions(self.nodes[i].how, len(of[0]))]

    # -- merges

    def merged(self, i: int, b: int) -> Matrix:
        """The mean over the terms to which a way leads, place by place; over those that are still
        what all come from, where these hold all its tokens."""
        n, product = self.nodes[i].tokens, self.nodes[i].op == "mul"
        led = [t for t in self.terms(i) if b in self.stands[t]]
        ways = [t for t in led if self.stands[t][b].any()]
        if product:  # what is the same at every token is a factor
            led = ways = [t for t in ways if self.nodes[t].tokens == n] or ways
        elif len(ways) > 1 and (still := self.still(ways, b)):
            led = ways = still
        found = {t: self.stands[t][b] for t in led}
        total = sum((self.share(i, t, b) * m for t, m in found.items()), np.zeros((n, 1)))
        here = sum((np.sign(m.sum(1)) for m in found.values()), np.zeros(n))
        there = sum((self.there(t) for t in led), np.zeros(n))
        self.unclear |= bool((total.any(1) & (here != there)).any())
        return total / np.maximum(here, 1)[:, None]

    def terms(self, i: int) -> list[int]:
        """The terms of a merge, those of sums within a sum, or of such times a constant, included;
        a sum that others read, too, is a merge of its own."""
        found = list[int]()
        for o in self.nodes[i].of:
            inner, between = o, set[str]()
            while self.nodes[inner].op in BETWEEN and self.readers.count(inner) == 1:
                between.add(self.nodes[inner].op)
                inner = self.nodes[inner].of[0]
            sums = {self.nodes[i].op, self.nodes[inner].op} <= SUMS
            nested = sums and self.readers.count(inner) == 1
            self.unclear |= nested and not between <= {"scale"}
            found += self.terms(inner) if nested else [o]
        return found

    def share(self, i: int, term: int, b: int) -> float:
        """Of a map's heads that stand at a term, how many of all: of those laid side by side before
        any layer, or of one that was cut into pieces."""
        use, share = self.recipe.pieces.get(term, (-1, 1.0))
        if use >= 0 or self.nodes[i].op != "cat":
            return share if self.source.get(use) == b else 1.0
        terms = self.nodes[i].of
        before = self.dominators(self.recipe.of_kind("input"), list(terms))
        alone = [
            {
                s
                for s in self.bare(t)
                if before < self.behind[s]  # not from before what all branch off from
                and not any(s in self.stands[o] for k, o in enumerate(terms) if k != j)
            }
            for j, t in enumerate(terms)
        ]
        heads = [max((self.heads(s) for s in found), default=0) for found in alone]
        mine = sum(h for h, found in zip(heads, alone, strict=True) if b in found)
        return mine / sum(heads) if mine else 1.0

    def bare(self, x: int) -> set[int]:
        """The maps whose results come to a tensor before any layer."""
        node = self.nodes[x]
        if node.op == "use":
            return {self.source[x]}
        layer = node.op in LAYERS or (node.op == "windows" and node.how[0] == "convolution")
        return set() if layer else set().union(*map(self.bare, node.of))

    def heads(self, use: int) -> int:
        """How many heads a map has."""
        return int(self.nodes[self.nodes[use].of[0]].how[0])

    def still(self, ways: list[int], b: int) -> list[int]:
        """The terms that are still x, if together they hold every token of it."""
        common = self.dominators(self.roots[b], ways)
        if not common:
            return []
        held = {t: self.held(max(common), t) for t in ways}
        every = sum(held.values()) + (self.there(max(common)) == 0)
        return [t for t in ways if held[t].any()] if np.all(every) else []

    def held(self, x: int, t: int) -> Matrix:
        """Which tokens of x a term has by a way on which it is still x."""
        n = self.nodes[x].tokens
        found = {x: np.eye(n)}
        for i in self.live:
            node = self.nodes[i]
            if x < i <= t and node.op in PASSING:
                of = [found.get(o, np.zeros((self.nodes[o].tokens, n))) for o in node.of]
                found[i] = of[0] + of[1] if node.op in SUMS else self.carried(i, of)
        return np.sign(found.get(t, np.zeros((1, n))).sum(0))

    # -- chains

    def rows(self) -> Rows:
        """Of each input, scores and identity, (batch, tokens)."""
        chains = dict[int, Matrix]()
        for u in reversed(self.uses):
            n, roots = self.nodes[u].tokens, self.roots[self.source[u]]
            row, at = self.row(self.source[u], chains), roots.index(u) * n
            chains[u] = row[:, at : at + n]  # of the queries of this use
        return [
            (self.row(self.start[n], chains) - (own := self.target(self.start[n])), own)
            for n in sorted(self.start, key=lambda n: self.nodes[n].how)
        ]

    def row(self, b: int, chains: dict[int, Matrix]) -> Matrix:
        """N(target, b) + Σ row(target, s) E_s N(values of s, b)."""
        total = self.target(b)
        for u, chain in chains.items():
            made, values = self.nodes[u].of
            if b in self.stands[values]:
                total = total + (chain[:, None] @ self.maps[made])[:, 0] @ self.stands[values][b]
        return total

    def target(self, b: int) -> Matrix:
        """The mean of the positions that the target reads, (1, tokens)."""
        rows = [self.stands[n][b][place] for n, place in self.recipe.reads if b in self.stands[n]]
        size = sum(self.nodes[r].tokens for r in self.roots[b])
        return (sum(rows, np.zeros(size)) / len(self.recipe.reads))[None]
