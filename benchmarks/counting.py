"""What the benchmarks share: counting FLOPs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.utils.flop_counter import FlopCounterMode

Shape = tuple[int, ...]


def _attention(query: Shape, key: Shape, *_: object, **__: object) -> int:
    """The two products of fused attention, which the counter leaves out on a CPU."""
    batch, heads, queries, features = query
    return 4 * batch * heads * queries * key[2] * features


def _attention_backward(_: Shape, query: Shape, key: Shape, *__: object, **___: object) -> int:
    """The five products of its derivative: the scores again, and four gradients."""
    return _attention(query, key) * 5 // 2


FUSED: Mapping[object, Callable[..., int]] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}


class _NoModules:
    """In place of hooks on every module, which would be another model to explain."""

    parents = frozenset({"Global"})

    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


def flops(call: Callable[[], object]) -> int:
    """Those of a second call, of which the first has made what is made once."""
    call()
    counter = FlopCounterMode(display=False, custom_mapping=dict(FUSED))
    counter.mod_tracker = _NoModules()
    with counter:
        call()
    return counter.get_total_flops()
