"""``check_method``: one method on one model, by what it says of itself and by the laws that every
method keeps."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from relprop.api.explain import explain
from relprop.errors import RelpropError
from relprop.explanation import Explanation
from relprop.runner.method import Method, method_named
from relprop.testing.faults import Checked, Examination
from relprop.tracer.binding import bind

EXACT = 1e-6  # of the largest |score|, in float64


def check_method(
    method: str,
    model: nn.Module,
    inputs: Any,
    target: Any = 0,
    *,
    other: Any = 1,
    **options: Any,
) -> Checked:
    """Examine a registered method on a model, in float64.

    Args:
        method: its name, as ``relprop.methods.register`` has it.
        inputs: tensors as ``explain`` takes them, of at least two samples.
        target, other: two classes, to see whether the method tells them apart.
        options: the method's own.

    The laws: the method *runs* and returns scores of the right names and shapes, which are finite;
    it is *repeatable* and *batch-exact* (a batch gives what its samples give alone, to 1e-6 of the
    largest score); it is *signed* and *class-specific* only if it says so, and so in fact; it
    *leaves the model* as it was.

    Raises ``CheckFailed``, which names every law that is broken and what to do.

    >>> import torch, relprop
    >>> from relprop.demo.model import digit_scene_model
    >>> images = torch.rand(2, 1, 32, 32)
    >>> print(relprop.testing.check_method("gae", digit_scene_model(), images, 3, other=8))
    method 'gae': runs, repeatable, batch-exact, signed as said, class-specific as said, leaves the model
    """  # noqa: E501
    examination, by = Examination(f"method {method!r}"), method_named(method, level=None)
    before = {n: p.detach().clone() for n, p in model.state_dict().items()}
    how = {"method": method, "precision": "float64", **options}
    try:
        found = explain(model, inputs, target, **how)
        again = explain(model, inputs, target, **how)
        rival = explain(model, inputs, other, **how)
        alone = [explain(model, one, target, **how) for one in _one_by_one(inputs)]
    except RelpropError as error:
        then = "docs/write-a-method.md says what a method is given and what it returns"
        examination.law("runs", False, str(error), then)
        return examination.end()
    examination.law("runs", True)
    off = _apart(found, again)
    then = "draw random numbers from a torch.Generator of your own seed, and keep no state"
    examination.law("repeatable", off == 0, f"a second call differs by {off:.2g}", then)
    off = max(_apart(found, one, sample=i) for i, one in enumerate(alone))
    fact = f"a batch gives other scores than its samples alone, by {off:.2g} of the largest"
    then = "no sum, mean or maximum may go over the first axis, and no padding may count"
    examination.law("batch-exact", off <= EXACT, fact, then)
    _what_it_says(examination, by, found, _apart(found, rival))
    changed = [n for n, p in model.state_dict().items() if not torch.equal(p.detach(), before[n])]
    fact = f"it changed {', '.join(changed[:3])}"
    examination.law("leaves the model", not changed, fact, "work on copies: tensor.clone()")
    return examination.end()


def _what_it_says(
    examination: Examination, by: Method, found: Explanation, classes_apart: float
) -> None:
    least = min(float(s.scores.min()) for s in found.streams.values())
    fact = f"it is said to be unsigned, and a score is {least:.3g}"
    then = "register(..., signed=True), or .clamp(min=0)"
    examination.law("signed as said", by.signed or least >= 0, fact, then)
    differ = classes_apart > EXACT
    said, seen = ("to be", "the same") if by.class_specific else ("not to be", "different")
    fact = f"it is said {said} class-specific, and two classes have {seen} scores"
    then = f"register(..., class_specific={differ})"
    examination.law("class-specific as said", by.class_specific is differ, fact, then)


def _one_by_one(inputs: Any) -> list[Any]:
    """The samples of a batch, each as a call of its own."""
    bound, found = bind(inputs), []
    for i in range(bound.batch):
        args, keywords = bound.rebuild(bound.samples(i, i + 1))
        found.append(dict(keywords) or tuple(args))
    return found


def _apart(found: Explanation, other: Explanation, *, sample: int | None = None) -> float:
    """The largest difference, as a share of the largest |score|; ``sample``: of one, alone in
    ``other``."""
    worst = 0.0
    for name, stream in found.streams.items():
        mine = stream.scores if sample is None else stream.scores[sample : sample + 1]
        theirs = other.streams[name].scores
        scale = float(mine.abs().max()) or 1.0
        worst = max(worst, float((mine - theirs).abs().max()) / scale)
    return worst
