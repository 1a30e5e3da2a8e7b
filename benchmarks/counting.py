"""What the benchmarks share: counting FLOPs."""

from __future__ import annotations

from collections.abc import Callable

from torch.utils.flop_counter import FlopCounterMode


def flops(call: Callable[[], object]) -> int:
    """Those of a second call: the counter hooks every module, for which the first captures the
    model anew."""
    with FlopCounterMode(display=False) as counter:
        call()
        first = counter.get_total_flops()
        call()
    return counter.get_total_flops() - first
