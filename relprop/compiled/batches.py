"""For how many samples a run is recorded, so that it shows what grows with them."""

from __future__ import annotations

import operator
import sys
from collections.abc import Collection
from itertools import count

from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from relprop.compiled.tape import growing
from relprop.tracer.editing import val
from relprop.tracer.program import Program


def sizes_of(program: Program) -> set[int]:
    """The sizes of a program's tensors, and the numbers that its calls are given as sizes."""
    found = {sys.maxsize}  # "to the end", which 7 divides
    for node in program.graph.nodes:
        made = [t.shape for t in tree_leaves(val(node)) if isinstance(t, Tensor)]
        given: list[object] = [node.args, dict(node.kwargs)]
        if isinstance(node.target, OpOverload):
            grows = growing(node.target)
            given = [a for i, a in enumerate(node.args) if i in grows]
            given += [a for name, a in node.kwargs.items() if name in grows]
        elif node.target is operator.getitem:
            given = []
        found |= {abs(n) for n in tree_leaves((made, given)) if type(n) is int and n}
    return found


def prime_beside(numbers: Collection[int]) -> int:
    """The smallest prime, from 5 on, that divides none of these numbers, nor therefore any product
    of them."""
    primes = (p for p in count(5) if all(p % d for d in range(2, p)))
    return next(p for p in primes if all(n % p for n in numbers))
