"""What a spelling is held to: the same outputs, the same gradients, and the same explanations."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

import relprop
from relprop.errors import RelpropError
from tests.spellings.model import Base, Model
from tests.spellings.spelling import Spelling

#: Over attention, and at the input.
OVER_ATTENTION = (
    "transformer_attribution", "rollout", "raw_attention", "attention_grad",
    "attention_times_grad", "gradcam", "gae", "partial_lrp", "cat", "attcat", "attention_norm",
    "value_zeroing",
)  # fmt: skip
AT_INPUT = ("lrp", "attnlrp", "gradient_x_input", "deeplift", "input_gradient")
METHODS = OVER_ATTENTION + AT_INPUT
#: The class explained in each sample.
TARGET = [1, 0, 2]
FUNCTION, SCORES = 1e-12, 1e-9
#: The authors' stabiliser, b + 1e-9, stands on every selection and fan-out of ``partial_lrp``.
STABILISED = {"partial_lrp": 1e-7}


@contextmanager
def _leaf(model: Model) -> Iterator[list[Tensor]]:
    """The output of the embedding as a leaf of autograd, once the model has run."""
    found: list[Tensor] = []

    def cut(module: object, inputs: object, output: Tensor) -> Tensor:
        found.append(output.detach().requires_grad_())
        return found[-1]

    handle = model.embed.register_forward_hook(cut)
    try:
        yield found
    finally:
        handle.remove()


def outputs_and_gradients(model: Model, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The logits, and the gradients of the explained ones by plain autograd: at the embedding's
    output, and at the input if it is one of numbers."""
    x, *rest = inputs
    classes = torch.tensor(TARGET[: len(x)])[:, None]
    with _leaf(model) as leaves:
        y = model(*inputs)
        (at_embedding,) = torch.autograd.grad(y.gather(1, classes).sum(), leaves[0])
    if not x.is_floating_point():
        return y.detach(), at_embedding
    x = x.clone().requires_grad_()
    chosen = model(x, *rest).gather(1, classes).sum()
    return y.detach(), at_embedding, *torch.autograd.grad(chosen, x)


def gap(found: Tensor, wanted: Tensor) -> float:
    """The largest difference, as a part of the largest magnitude of ``wanted``; infinite where the
    shapes are not equal or a number is none."""
    if found.shape != wanted.shape:
        return float("inf")
    difference, scale = float((found - wanted).abs().max()), float(wanted.abs().max())
    return float("inf") if difference != difference else difference / (scale or 1.0)


@dataclass(frozen=True)
class Found:
    """What one method, or one part of what was kept, says of a model: numbers, or why there are
    none. ``defect``: the reason is no refusal but an exception of another kind."""

    value: Tensor | None = None
    why: str = ""
    defect: bool = False


@dataclass(frozen=True)
class Outcome:
    """What came of a method: ``"same"``, ``"differs"``, ``"refused"``, or ``"fails"`` (an exception
    that is no refusal), by how much, and why."""

    kind: str
    difference: float = 0.0
    why: str = ""


def compare_all(
    spelling: Spelling, methods: tuple[str, ...] = METHODS, *, each_alone: bool = True
) -> dict[str, tuple[Outcome, float]]:
    """For each method, what came of it and by how much it differs from the base; likewise for the
    attention, gradient and relevance of all blocks, and for the gradient by plain autograd.

    ``each_alone``: where all methods are refused together, each of them is asked alone, for which
    the model is captured again; else the first of them is, and speaks for all."""
    wanted = reference_results(spelling.base, methods)
    model = spelling.model()
    found = results(model, spelling.base, methods, each_alone)
    outcomes = {name: _outcome(name, found[name], wanted[name]) for name in wanted}
    if "input_gradient" in methods:
        plain = Model(spelling.base).eval() if spelling.inference else model
        gradient = Found(_autograd(plain, spelling.base))
        outcomes["autograd"] = _outcome("autograd", found["input_gradient elementwise"], gradient)
    return {name: (o, o.difference) for name, o in outcomes.items()}


def verdict(spelling: Spelling, outcomes: Mapping[str, tuple[Outcome, float]]) -> list[str]:
    """What is wrong with these outcomes, a line for each method; nothing if they are as they should
    be."""
    if spelling.refused:
        return [f"{n}: {o.kind}" for n, (o, _) in outcomes.items() if not _refusal(spelling, o)]
    return [
        f"{name}: {o.kind}, by {o.difference:.1e} {o.why}".rstrip()
        for name, (o, _) in outcomes.items()
        if name not in spelling.apart
        and o.kind != "same"
        and not (spelling.either and o.kind == "refused")
    ]


def _refusal(spelling: Spelling, outcome: Outcome) -> bool:
    return outcome.kind == "refused" and bool(re.search(spelling.refused, outcome.why, re.I))


def _autograd(model: Model, base: Base) -> Tensor:
    """|∂y_t/∂x| at what the methods at the input explain: the vectors, or the ids' embeddings."""
    return outputs_and_gradients(model, base.inputs())[-1].abs()


def _outcome(name: str, found: Found, wanted: Found) -> Outcome:
    if found.value is not None and wanted.value is not None:
        difference = gap(found.value, wanted.value)
        same = difference <= STABILISED.get(name, SCORES)
        return Outcome("same" if same else "differs", difference)
    if found.value is not None:
        return Outcome("differs", float("inf"), f"the base has no answer: {wanted.why}")
    if wanted.value is None and not found.defect:
        return Outcome("same")
    return Outcome("fails" if found.defect else "refused", float("inf"), found.why)


@functools.cache
def reference_results(base: Base, methods: tuple[str, ...] = METHODS) -> Mapping[str, Found]:
    """What the base itself gives."""
    return results(Model(base).eval(), base, methods)


def results(
    model: Model, base: Base, methods: tuple[str, ...], each_alone: bool = True
) -> dict[str, Found]:
    """Scores by method, what all blocks hold, and the gradient before it is summed."""
    found: dict[str, Found] = {}
    for names, keep in ((OVER_ATTENTION, "blocks"), (AT_INPUT, "input")):
        chosen = [m for m in methods if m in names]
        found |= _explained(model, base, chosen, keep, each_alone) if chosen else {}
    return found


def _explained(
    model: Model, base: Base, methods: list[str], keep: str, each_alone: bool
) -> dict[str, Found]:
    try:
        compared = _compare(model, base, methods, keep)
    except Exception as error:
        refused = isinstance(error, RelpropError)
        if len(methods) == 1:
            return _parts(methods[0], None, _first_line(error), not refused)
        first, *rest = methods
        found = _explained(model, base, [first], keep, each_alone)
        for method in rest:
            if refused and found[first].value is None and not each_alone:
                found |= _parts(method, None, _first_line(error))
            else:
                found |= _explained(model, base, [method], keep, each_alone)
        return found
    given = compared.explanations
    return {
        name: found
        for m in methods
        for name, found in _parts(m, given.get(m), compared.refused.get(m, "")).items()
    }


def _compare(model: Model, base: Base, methods: list[str], keep: str) -> relprop.Comparison:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return relprop.compare(model, base.inputs(), methods, target=TARGET, keep=keep)


def _parts(
    method: str, explanation: relprop.Explanation | None, why: str, defect: bool = False
) -> dict[str, Found]:
    """A method's scores, and whatever else is taken from its explanation."""
    e, none = explanation, Found(None, why, defect)
    found = {method: none if e is None else Found(e.scores)}
    if method == "transformer_attribution":
        for part in ("attention", "gradient", "relevance"):
            found[f"{part} of blocks"] = none if e is None else Found(_blocks(e, part))
    if method == "input_gradient":
        found["input_gradient elementwise"] = none if e is None else Found(e.input)
    return found


def _blocks(explanation: relprop.Explanation, part: str) -> Tensor:
    """A part of every block, (blocks, batch, heads, tokens, tokens): axes of size 1 and merged ones
    are all heads."""
    assert explanation.blocks is not None
    kept = [getattr(b, part) for b in explanation.blocks]
    flat = [t.reshape(len(t), -1, t.shape[-1], t.shape[-1]) for t in kept if _square(t)]
    whole = len(flat) == len(kept) and len({t.shape for t in flat}) == 1
    return torch.stack(flat) if whole else torch.empty(0)


def _square(t: Tensor) -> bool:
    """Whether the queries, or those of several heads one after the other, are all the tokens."""
    return t.shape[-2] % t.shape[-1] == 0


def _first_line(error: Exception) -> str:
    text = str(error).splitlines()
    name = "" if isinstance(error, RelpropError) else f"{type(error).__name__}: "
    return name + (text[0] if text else type(error).__name__)
