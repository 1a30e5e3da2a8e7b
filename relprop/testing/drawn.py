"""Calls like a given one, drawn by Hypothesis: other shapes, values and roles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

Arguments = tuple[Any, ...]
#: How large a drawn axis is at most, and how many numbers of a tensor are shown.
LONGEST, SHOWN = 4, 12


def smallest(
    called: Callable[..., Any],
    given: Arguments,
    keywords: Mapping[str, Any],
    breaks: Callable[[Arguments], bool],
    draws: int,
) -> Arguments | None:
    """Of ``draws`` calls like ``called(*given, **keywords)`` the smallest that ``breaks`` a law, or
    ``None``.

    Axes of one length stay of one length; those that the call needs as they are stay. Values are
    quarters from −2 to 2: 0 is one of them. A tensor per sample may be drawn as a parameter, of
    one sample, as long as another is left.
    """
    from hypothesis import HealthCheck, Phase, find, settings
    from hypothesis import strategies as st
    from hypothesis.errors import NoSuchExample
    from hypothesis.extra.numpy import arrays

    def runs(arguments: Arguments) -> bool:
        try:
            called(*arguments, **keywords)
        except Exception:  # a size or a role that the operation does not take
            return False
        return True

    lengths = sorted({n for g in given if isinstance(g, Tensor) for n in g.shape})
    free = [n for n in lengths if runs(tuple(_resized(g, {n: n + 1}) for g in given))]
    plain = [i for i, g in enumerate(given) if _is_drawn(g) and not isinstance(g, nn.Parameter)]

    @st.composite
    def calls(draw: Callable[..., Any]) -> Arguments:
        """A call, which may be one that the operation does not take."""
        sizes = {n: draw(st.integers(1, LONGEST)) for n in free}
        fixed = {i for i in plain[1:] if draw(st.booleans())}
        made = list(given)
        for i, like in enumerate(given):
            if _is_drawn(like):
                shape = _resized(like, sizes).shape[int(i in fixed) :]
                quarters = st.integers(-8, 8).map(lambda n: n / 4)
                values = torch.from_numpy(draw(arrays("float64", tuple(shape), elements=quarters)))
                own = i in fixed or isinstance(like, nn.Parameter)
                made[i] = nn.Parameter(values) if own else values
        return tuple(made)

    quiet = settings(
        max_examples=draws,
        database=None,
        deadline=None,
        derandomize=True,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    try:
        return find(calls(), lambda one: runs(one) and breaks(one), settings=quiet)
    except NoSuchExample:
        return None


def shown(value: Any) -> str:
    """An argument of a call, with the numbers of a small tensor."""
    if not isinstance(value, Tensor):
        return repr(value)
    kind = "parameter" if isinstance(value, nn.Parameter) else "tensor"
    few = value.numel() <= SHOWN
    return f"{kind} {value.tolist()}" if few else f"{kind} of shape {tuple(value.shape)}"


def _is_drawn(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.dim() > 0


def _resized(value: Any, sizes: Mapping[int, int]) -> Any:
    """Anything, with other lengths in place of a tensor's."""
    if not isinstance(value, Tensor):
        return value
    made = torch.ones([sizes.get(n, n) for n in value.shape], dtype=value.dtype)
    return nn.Parameter(made) if isinstance(value, nn.Parameter) else made
