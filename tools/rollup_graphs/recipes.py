"""Recipes: operations on tensors of tokens, in order, and how they read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from random import Random
from typing import Any, NamedTuple

import numpy as np


class Node(NamedTuple):
    """One operation: of which results, how, and how many tokens and features there are then."""

    op: str
    of: tuple[int, ...]
    how: Any
    tokens: int
    width: int


@dataclass
class Recipe:
    """Operations in order, and how more are drawn.

    ``pieces``: of a term that holds some heads of a map, the contraction and its share of them all.
    ``reads``: the positions that the target reads, and ``form``: how. ``stages``, ``values``: what
    later layers may read once more, streams and attention's values; ``memory``: another input.
    """

    pick: Random
    nodes: list[Node] = field(default_factory=list)
    pieces: dict[int, tuple[int, float]] = field(default_factory=dict)
    reads: list[tuple[int, int]] = field(default_factory=list)
    form: str = "class"
    batch: int = 1
    stages: list[int] = field(default_factory=list)
    values: list[int] = field(default_factory=list)
    memory: int | None = None

    def add(self, op: str, *of: int, how: Any = None, tokens: int = 0, width: int = 0) -> int:
        """Append an operation; tokens and features are those of its operands if not said."""
        tokens = tokens or max(self.tokens(o) for o in of)
        self.nodes.append(Node(op, of, how, tokens, width or self.width(of[0])))
        return len(self.nodes) - 1

    def tokens(self, x: int) -> int:
        """How many tokens a result has."""
        return self.nodes[x].tokens

    def width(self, x: int) -> int:
        """How many features a result has."""
        return self.nodes[x].width

    def linear(self, x: int, width: int = 0) -> int:
        """A linear layer."""
        return self.add("linear", x, width=width)

    def act(self, x: int, how: str = "sigmoid") -> int:
        """A function of every number."""
        return self.add("act", x, how=how)

    def move(self, x: int, *how: Any) -> int:
        """Tokens moved."""
        return self.add("move", x, how=how, tokens=len(positions(how, self.tokens(x))))

    def windows(self, x: int, name: str, kernel: int = 0, stride: int = 1, padding: int = 0) -> int:
        """Tokens brought together, by a convolution or a pooling; all of them if not said."""
        how = (name, kernel or self.tokens(x), stride, padding)
        return self.add("windows", x, how=how, tokens=len(windows(how, self.tokens(x))))

    def norm(self, x: int) -> int:
        """A norm."""
        return self.add("norm", x)

    def cat(self, *of: int, width: int = 0) -> int:
        """Side by side along features, and a linear layer."""
        whole = self.add("cat", *of, width=sum(self.width(o) for o in of))
        return self.linear(whole, width or self.width(of[0]))

    def join(self, *of: int) -> int:
        """One after another along tokens."""
        return self.add("join", *of, tokens=sum(self.tokens(o) for o in of))

    def sum(self, *of: int) -> int:
        """A sum, in an order and nesting drawn by chance."""
        left = self.pick.sample(of, len(of))
        while len(left) > 1:
            a, b = (left.pop(self.pick.randrange(len(left))) for _ in "ab")
            left.append(self.add(self.pick.choice(["add", "add", "add", "sub"]), a, b))
        return left[0]

    def map(self, q: int, k: int, heads: int, fused: bool = False) -> int:
        """An attention map of queries and keys; ``fused``: written as one function with its use."""
        return self.add("map", q, k, how=(heads, fused), tokens=self.tokens(q))

    def use(self, made: int, values: int) -> int:
        """A contraction of an attention map with values."""
        return self.add("use", made, values, tokens=self.tokens(made), width=self.width(values))

    def attention(self, x: int, keys: int | None = None, values: int | None = None) -> int:
        """Attention of ``x`` to itself or ``keys``, with or without a projection of what comes."""
        keys = x if keys is None else keys
        heads = self.pick.choice([h for h in (1, 2, 4) if self.width(x) % h == 0])
        fused = self.pick.random() < 0.4
        made = self.map(self.linear(x), self.linear(keys, self.width(x)), heads, fused)
        values = self.linear(keys, self.width(x)) if values is None else values
        if keys == x:  # of the stream's own tokens
            self.values.append(values)
        used = self.use(made, values)
        return self.linear(used) if self.pick.random() < 0.6 else used

    @cached_property
    def live(self) -> list[int]:
        """The operations from which the target descends, in order."""
        found, left = set[int](), [node for node, _ in self.reads]
        while left:
            found.add(i := left.pop())
            left += [o for o in self.nodes[i].of if o not in found]
        return sorted(found)

    def of_kind(self, op: str) -> list[int]:
        """The live operations of one name."""
        return [i for i in self.live if self.nodes[i].op == op]

    def described(self) -> str:
        """The recipe, an operation a line."""
        lines = list[str]()
        for i in self.live:
            op, of, how, tokens, width = self.nodes[i]
            share = f"   # {self.pieces[i][1]:.2f} of the heads" if i in self.pieces else ""
            args = ", ".join([f"t{o}" for o in of] + [str(how)] * (how is not None))
            lines.append(f"  t{i} = {op}({args})   [{tokens} × {width}]{share}")
        reads = ", ".join(f"t{node}[{place}]" for node, place in self.reads)
        return "\n".join([*lines, f"  target: {self.form} of {reads}; batch {self.batch}"])


def positions(how: Sequence[Any], n: int) -> Any:
    """From which position each one is moved; −1: from none, it is padding."""
    at = np.arange(n)
    match how:
        case "slice", first, last, step:
            return at[first:last:step]
        case "roll", by:
            return np.roll(at, by)
        case "flip", *_:
            return at[::-1]
        case "pad", before, after:
            return np.pad(at[: n + min(after, 0)], (before, max(after, 0)), constant_values=-1)
    return at[list(how[1])]


def windows(how: Sequence[Any], n: int) -> list[list[int]]:
    """Which positions each window of a convolution or pooling covers."""
    _, kernel, stride, padding = how
    starts = range(-padding, n + padding - kernel + 1, stride)
    return [[p for p in range(s, s + kernel) if 0 <= p < n] for s in starts]
