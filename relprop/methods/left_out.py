"""A method at the input that takes parts of a text out and asks the user's own model again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from relprop.errors import OptionError
from relprop.runner.deletion import Row
from relprop.runner.input_study import InputStudy, is_text

Groups = Sequence[Sequence[int]]


def leave_one_out(
    at: InputStudy, *, groups: Groups | Sequence[Groups] | Mapping[str, Any] | None = None
) -> Mapping[str, Tensor]:
    """y_t(x) − y_t(x without a group of tokens), which are deleted: what stands behind them moves
    up (Cohen-Wang et al. 2024).

    ``groups``: lists of positions that go together, the same for every sample or a list of such
    lists for each, or a dict of these by input name; positions in none score 0. ``None``: each
    token alone. A group's tokens share its score evenly. What a deleted position would have
    predicted is read at the last one before it. Signed; exact: one forward pass of the user's own
    model per group, those of one
    length up to 32 in one, no gradient. Of texts alone; pictures are for ``occlusion``.
    """
    found = {
        name: torch.zeros_like(value, dtype=at.start.scalars.dtype)
        for name, value in at.values.items()
    }
    texts = [name for name in at.values if is_text(at.run.inputs, name)]
    if not texts:
        raise OptionError(
            f"leave_one_out deletes tokens of a text, and {', '.join(at.values)} has none",
            then=["method='occlusion' hides positions of pictures and sound"],
        )
    named = groups if isinstance(groups, Mapping) else {texts[0]: groups}
    if unknown := sorted(set(named) - set(texts)):
        raise OptionError(f"groups={unknown}: the texts are {', '.join(texts)}")
    for name in texts if groups is None else named:
        count = found[name].shape[at.positions[name][0]]
        if groups is None and count == 1 and len(texts) > 1:  # a decoder's first token: 0
            continue
        rows = grouped(
            named.get(name), count, len(found[name]), at.run.part.first, at.run.part.whole
        )
        _score(at, name, rows, found[name])
    return found


def _score(at: InputStudy, name: str, groups: list[list[list[int]]], found: Tensor) -> None:
    """Write what every group of every sample is worth."""
    count, (axis,) = found.shape[at.positions[name][0]], at.positions[name]
    parts = [(sample, one) for sample, lists in enumerate(groups) for one in lists]
    whole: list[tuple[int, list[int]]] = [(sample, []) for sample in range(len(groups))]
    asked, rows = [*whole, *parts], list[Row]()
    for sample, positions in asked:
        gone = torch.zeros(count, dtype=torch.bool)
        gone[positions] = True
        rows.append((sample, gone))
    values = at.without(name, rows)
    features = found[0].numel() // count
    moved = found.movedim(axis, 1)
    for (sample, positions), value in zip(asked, values, strict=True):
        if positions:
            moved[sample, positions] = (values[sample] - value) / len(positions) / features


def grouped(given: Any, count: int, batch: int, first: int, whole: int) -> list[list[list[int]]]:
    """For each of ``batch`` samples its groups. Raises ``OptionError`` for what is none."""
    if given is None and count == 1:
        raise OptionError("leave_one_out: the text is one token, without which nothing is left")
    if given is None:
        return [[[k] for k in range(count)]] * batch
    try:
        apart = bool(given) and all(isinstance(k, int) for group in given for k in group)
        apart = apart and all(len(group) > 0 for group in given)
        rows = [given] * batch if apart else list(given)[first : first + batch]
        lists = [[[int(k) for k in group] for group in row] for row in rows]
        right = apart or len(given) == whole
    except (TypeError, ValueError):
        right = False
    if not right:
        raise OptionError(
            f"groups={given!r}: lists of positions, or such lists for each of {whole} samples"
        )
    for row in lists:
        taken = [k for group in row for k in group]
        if not all(row) or len(set(taken)) < len(taken) or not all(0 <= k < count for k in taken):
            raise OptionError(
                f"groups={row!r}: each is positions from 0 to {count - 1}, none of them in two"
            )
        if any(len(group) >= count for group in row):
            raise OptionError(
                f"groups={row!r}: one is the whole text, without which nothing is left"
            )
    return lists
