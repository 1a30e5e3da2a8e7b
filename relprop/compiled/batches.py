"""For how many samples a run is recorded, so that it shows what grows with them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import count

from torch import Tensor
from torch.utils._pytree import tree_leaves

from relprop.tracer.editing import val
from relprop.tracer.program import Program


def sizes_for(program: Program) -> Iterator[int]:
    """Primes, from 5 on, each of which divides no size and no whole number of a program, nor
    therefore any product of them."""
    numbers = {sys.maxsize}  # "to the end", which 7 divides
    for node in program.graph.nodes:
        made = [t.shape for t in tree_leaves(val(node)) if isinstance(t, Tensor)]
        found = tree_leaves((made, node.args, dict(node.kwargs)))
        numbers |= {abs(n) for n in found if type(n) is int and n}
    primes = (p for p in count(5) if all(p % d for d in range(2, p)))
    return (p for p in primes if all(n % p for n in numbers))
