"""What PyTorch keeps of every capture for as long as the process lives, let go again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import graph_module

#: So many results of operations on tensors without values are kept for later captures: some MB.
KEPT = 1000


@contextmanager
def without_leftovers() -> Iterator[None]:
    """Around a capture: the text of each graph that PyTorch writes as Python code on the way is let
    go, and so are the results of operations on tensors without values where they have become many.
    Both are for speed and for tracebacks, and belong to nobody afterwards."""
    texts = graph_module._loader.eval_cache
    before = set(texts)
    try:
        yield
    finally:
        for name in set(texts) - before:
            texts.pop(name, None)
        if len(FakeTensorMode.cache) > KEPT:
            FakeTensorMode.cache_clear()


def no_view(tensor: Tensor) -> Tensor:
    """A copy of a tensor that is a view, any other as it is: of a view torch.export keeps the sizes
    of what it is a view of, in a cycle through C++, which holds the capture and is never
    collected."""
    return tensor.clone() if tensor._is_view() else tensor
