"""Which axes of queries, keys, values and of the result are whose, found by changing one number."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from relprop.tracer.passes.trials.parts import Piece


def _moved(part: Piece, drawn: tuple[Tensor, ...], y: Tensor, i: int, at: list[int]) -> Tensor:
    """Where the output changes if source ``i`` changes in one place."""
    changed = drawn[i].clone()
    changed[tuple(at)] += 0.7
    return part(*(changed if j == i else t for j, t in enumerate(drawn))) != y


def _along(changed: Tensor, axis: int) -> list[int]:
    """The positions of an axis at which something changes."""
    others = [i for i in range(changed.dim()) if i != axis]
    along: list[int] = (changed.any(others) if others else changed).nonzero().flatten().tolist()
    return along


def _axes(
    part: Piece, drawn: tuple[Tensor, ...], y: Tensor, i: int, place: int
) -> tuple[list[int | None], set[int]]:
    """For each axis of source ``i`` the axis of the output that it is, and the axes along which one
    number of it spreads. ``place``: where it is changed, 0 (the first) or -1 (the last)."""
    base = [0 if place == 0 else s - 1 for s in drawn[i].shape]
    first = _moved(part, drawn, y, i, base)
    spread = {a for a in range(y.dim()) if len(_along(first, a)) > 1}
    if not bool(first.any()):
        raise ValueError("nothing changes")
    found: list[int | None] = []
    for axis, size in enumerate(drawn[i].shape):
        if size == 1:
            found.append(None)
            continue
        other = list(base)
        other[axis] += 1 if place == 0 else -1
        found.append(_went(first, _moved(part, drawn, y, i, other), spread))
    return found, spread


def _went(first: Tensor, second: Tensor, spread: set[int]) -> int | None:
    """The one axis of the output along which a change moves if its place does, but for those along
    which it spreads."""
    others = [a for a in range(first.dim()) if a not in spread and second.any()]
    went = [a for a in others if _along(second, a) != _along(first, a)]
    return went[0] if len(went) == 1 else None


Letters = tuple[str, str, str, str]


def letters_of(
    part: Piece, drawn: tuple[Tensor, ...], y: Tensor, q: int, k: int, v: int
) -> Iterator[Letters]:
    """A letter for every axis of queries, keys, values and of the result; ``n`` the queries', ``m``
    the keys', ``d`` and ``e`` what they hold, capitals for all else."""
    v_axes, v_spread = _axes(part, drawn, y, v, 0)
    q_axes, q_spread = _axes(part, drawn, y, q, -1)
    k_axes, _ = _axes(part, drawn, y, k, 0)
    if len(v_spread) != 1 or len(q_spread) != 1:
        return
    (n,), (e,) = v_spread, q_spread
    if n == e:
        return
    names = ["n" if a == n else "e" if a == e else chr(ord("A") + a) for a in range(y.dim())]
    ones = {c for c, size in zip(names, y.shape, strict=True) if size == 1}
    for q_name in _named(drawn[q], q_axes, names, ones, "d"):
        for v_name in _named(drawn[v], v_axes, names, ones, "m"):
            for k_name in _named(drawn[k], k_axes, names, ones, "md"):
                if "n" in q_name and "e" in v_name and not {"n", "e"} & set(k_name):
                    yield q_name, k_name, v_name, "".join(names)


def _named(
    x: Tensor, axes: list[int | None], names: list[str], ones: set[str], own: str
) -> Iterator[str]:
    """The letters of a tensor's axes: those of the result's axes that they are, of the result's
    ``ones`` for axes of length 1, and for the rest its ``own``, in either order."""
    given = ["" if a is None else names[a] for a in axes]
    left = [c for c in names if c not in given and c not in "ne"]
    for j, size in enumerate(x.shape):
        fits = [c for c in left if size == 1 and c in ones]
        if given[j] == "" and fits:
            given[j] = fits[0]
            left.remove(fits[0])
    free = [j for j, c in enumerate(given) if c == ""]
    if len(free) == len(own):
        for order in {own, own[::-1]}:
            for j, c in zip(free, order, strict=True):
                given[j] = c
            yield "".join(given)
