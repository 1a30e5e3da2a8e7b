"""What ``probe.set`` is told, as a change of the graph: which part of which value, and what stands
there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

import torch
from torch import Tensor, fx

from relprop.errors import OptionError, RelpropError, first_line
from relprop.tracer.changes import Change, Function
from relprop.tracer.names import axis_of
from relprop.tracer.program import Program

Places = int | Sequence[int] | slice | None


class Parts(TypedDict, total=False):
    """The part of a value that is set alone; ``None``: all of that axis."""

    positions: Places
    heads: Places
    features: Places
    samples: Places


def checked_settings(settings: object) -> list[dict[str, Any]]:
    """The arguments of each setting of ``probe.many``: its ``name``, ``value`` and ``parts``.
    Raises ``OptionError``."""
    listed = settings if isinstance(settings, Sequence) else []
    needed, axes = {"name", "value"}, Parts.__annotations__.keys()
    right = [isinstance(s, Mapping) and needed <= s.keys() <= needed | axes for s in listed]
    if not right or not all(right):
        fact = f"many({settings!r:.200}): a list of settings, each with the arguments of set"
        raise OptionError(fact, then=['[{"name": NAME, "value": 0.0, "heads": 1}, ...]'])
    return [
        {"name": s["name"], "value": s["value"], "parts": {k: s[k] for k in s if k in axes}}
        for s in listed
    ]


def tidy(value: Tensor) -> Tensor:
    """Without the leading 1 of a single sample's call."""
    return value[:, 0] if value.dim() > 1 and value.shape[1] == 1 else value


def at_parts(program: Program, name: str, shown: Tensor, parts: Parts) -> Any:
    """The index of the named ``parts`` of a value as it is ``shown``. Raises ``OptionError``."""
    if unknown := parts.keys() - Parts.__annotations__.keys():
        fact = f"{min(unknown)}= chooses no part of a value inside the model"
        raise OptionError(fact, then=[f"there are {', '.join(Parts.__annotations__)}"])
    given: Any = {part: at for part, at in parts.items() if at is not None}
    chosen = {
        0 if part == "samples" else axis_of(program, name, part): at for part, at in given.items()
    }
    return _index(name, shown, chosen)


def stand_in(name: str, by: str, own: Tensor, others: Tensor, seed: int, *, shared: bool) -> Tensor:
    """What ``ablate`` sets in place of the value ``own``, in its shape, made of those of ``others``
    (``shared``: of the same samples). Raises ``OptionError``."""
    if by not in ("zero", "mean", "resample"):
        raise OptionError(f"ablate({name!r}, {by!r}): 'zero', 'mean' or 'resample'")
    if by == "zero":
        return torch.zeros_like(own)
    if others.shape[1:] != own.shape[1:]:
        fact = f"ablate({name!r}): a sample of reference has {list(others.shape[1:])} there, "
        then = ["give a reference with as many tokens, or set a value"]
        raise OptionError(f"{fact}one of the run {list(own.shape[1:])}", then=then)
    if shared and len(own) == 1:
        fact = f"ablate({name!r}, {by!r}): there is one sample, and no other to take"
        raise OptionError(fact, then=["reference=: other inputs"])
    if by == "mean":
        return others.mean(0, keepdim=True).expand_as(own)
    if shared:
        return own.roll(1, 0)
    if not isinstance(seed, int):
        raise OptionError(f"ablate({name!r}): seed={seed!r}, an integer is needed")
    draw = torch.Generator().manual_seed(seed)
    return others[torch.randint(len(others), (len(own),), generator=draw)]


def change_of(
    program: Program, node: fx.Node, name: str, own: Tensor, value: Any, parts: Parts
) -> Change:
    """The change that sets ``value``, a number, a tensor or a function, at the named ``parts`` of
    the node's value (``own``, batch first, in the graph's shape). Raises ``OptionError``."""
    shown = tidy(own)
    at = at_parts(program, name, shown, parts)
    where = None
    if any(place is not None for place in parts.values()):
        where = torch.zeros(shown.shape, dtype=torch.bool, device=shown.device)
        where[at] = True
    if callable(value):
        function, one = _checked(name, value, own), own[:1].detach()
        return Change(node, name, function=function, where=where, example=one)
    given, whole = _number(name, value, shown), shown.detach().clone()
    try:
        whole[at] = given
    except RuntimeError as error:
        fact = f"set({name!r}): the value has shape {list(given.shape)}, and stands for "
        then = ["a number, or a tensor that stretches to that"]
        raise OptionError(f"{fact}{list(whole[at].shape)}", then=then) from error
    return Change(node, name, value=whole, where=where)


def _number(name: str, value: object, like: Tensor) -> Tensor:
    """A given value as a tensor of the type and on the device of another. Raises ``OptionError``
    for what is no finite real number."""
    try:
        exact = None if isinstance(value, Tensor) else torch.float64
        given = torch.as_tensor(value, dtype=exact).detach().to(like.device)
    except (TypeError, ValueError, RuntimeError) as error:
        fact = f"set({name!r}, {value!r}): a number, a tensor or a function is needed"
        raise OptionError(fact) from error
    if given.is_complex() or given.is_meta or given.layout != torch.strided:
        raise OptionError(f"set({name!r}): the value is no tensor of real numbers, or a sparse one")
    given = given.to(like.dtype)
    if not bool(given.isfinite().all()):
        raise OptionError(f"set({name!r}): the value is not finite, as {like.dtype} has it")
    return given


def step_of(name: str, direction: object, strength: object, own: Tensor) -> Tensor:
    """What ``steer`` adds to each sample of the value ``own``. Raises ``OptionError``."""
    if not isinstance(direction, Tensor) or not isinstance(strength, int | float):
        fact = f"steer({name!r}, {direction!r:.80}, {strength!r}): a tensor and a number are needed"
        raise OptionError(fact)
    step = _number(name, strength * direction.detach(), own)
    if not _stretches(step, own.shape[1:]):
        fact = f"steer({name!r}): the direction has shape {list(step.shape)}, and one sample's "
        raise OptionError(f"{fact}value {list(own.shape[1:])}, to which it does not stretch")
    return step


def _stretches(tensor: Tensor, shape: torch.Size) -> bool:
    """Whether a tensor can be expanded to a shape."""
    sizes = zip(reversed(tensor.shape), reversed(shape), strict=False)
    return tensor.dim() <= len(shape) and all(m in (1, n) for m, n in sizes)


def applied(change: Change, own: Tensor) -> Tensor:
    """The node's value, batch first and in the graph's shape, with the change."""
    given = change.value if change.function is None else change.function(tidy(own))
    assert given is not None
    made = given.to(own.dtype).expand(tidy(own).shape).reshape(own.shape)
    return made if change.where is None else torch.where(change.where.reshape(own.shape), made, own)


def _checked(name: str, function: Callable[[Tensor], Any], own: Tensor) -> Function:
    """The function, which must return a tensor that stretches to what it gets, and leave that as it
    is."""

    def call(value: Tensor) -> Tensor:
        try:
            made = function(value)
        except RelpropError:
            raise
        except Exception as error:
            if "tracing" in str(error):  # it is told there
                raise
            fact = f"set({name!r}): the function fails on a value of shape {list(value.shape)}: "
            raise OptionError(f"{fact}{first_line(error)}") from error
        if not isinstance(made, Tensor) or not made.is_floating_point():
            what = str(made.dtype) if isinstance(made, Tensor) else type(made).__name__
            raise OptionError(f"set({name!r}): the function returned {what}, no floating tensor")
        if not _stretches(made, value.shape):
            shapes = f"{list(made.shape)} of a value of {list(value.shape)}"
            fact = f"set({name!r}): the function returned {shapes}"
            raise OptionError(f"{fact}: the same shape, or one that broadcasts to it, is needed")
        return made if made.dtype == value.dtype else made.to(value.dtype)

    shown = tidy(own).detach()
    given = shown.clone()
    made = call(given)
    if not torch.equal(given, shown):
        fact = f"set({name!r}): the function writes into the value that it gets"
        raise OptionError(fact, then=["return a new tensor: value * 0, not value.mul_(0)"])
    if not bool(made.isfinite().all()):
        raise OptionError(f"set({name!r}): the function makes values that are not finite")
    alone = torch.cat([call(v[None]).expand(1, *v.shape) for v in shown])
    if made.expand(shown.shape).sub(alone).abs().max() > 1e-5 * (1 + alone.abs().max()):
        fact = f"set({name!r}): the function makes something else of a sample alone than of a batch"
        then = ["set a value: probe.set(name, function(probe.value(name)[name]))"]
        raise OptionError(fact, then=then)
    return call


def _index(name: str, shown: Tensor, chosen: dict[int, Places]) -> Any:
    """An index of the chosen places of each axis, all others whole."""
    if not chosen:
        return ...
    axes = []
    for axis, size in enumerate(shown.shape):
        at = chosen.get(axis)
        places = torch.tensor(range(size) if at is None else _entries(name, at, size))
        shape = [-1 if k == axis else 1 for k in range(shown.dim())]
        axes.append(places.reshape(shape))
    return tuple(axes)


def _entries(name: str, at: Places, size: int) -> list[int]:
    """The places, counted from the first. Raises ``OptionError``."""
    try:
        if isinstance(at, slice):
            found = list(range(size))[at]
        else:
            given = torch.as_tensor(at)
            if given.dtype == torch.bool and given.shape == (size,):
                given = given.nonzero()
            found = given.flatten().tolist()
    except (TypeError, ValueError, RuntimeError):
        found = []
    if not found or any(type(e) is not int or not -size <= e < size for e in found):
        raise OptionError(f"set({name!r}): {at!r} is no place among {size}")
    return [e % size for e in found]
