"""The models of which scores are kept, by name, and how each is built with its calls."""

from __future__ import annotations

import copy
import importlib.util
import json
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from tools.reference.drawn import draw, draw_inputs
from tools.sweep.command import excluded
from tools.sweep.huggingface_inputs import call_for
from tools.sweep.huggingface_models import CHANGES
from tools.sweep.subject import Subject as Swept
from tools.sweep.subjects import build, subjects

EXCLUSIONS = Path(__file__).parents[2] / "tests" / "sweep" / "exclusions.json"
#: So many of the models are also run in other ways, and so many compiled.
VARIED, COMPILED = 250, 40
LONG = 300
#: With what the names of calls begin.
CALL = "calls/"


@dataclass
class Built:
    """A model in float64 with drawn weights, a call of two samples, and what is explained.

    ``calls``: other calls by what is other in them. ``draw`` draws weights anew from another seed.
    """

    model: nn.Module
    inputs: Any
    target: Any = None
    calls: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Subject:
    """A model by its name, or a call of a public function, which has nothing to ``build``.

    ``family`` names the file that holds its scores; ``varied``: whether it is run in other ways,
    too; ``compiled``: whether as a program.
    """

    name: str
    family: str
    build: Callable[[], Built] | None = None
    varied: bool = False
    compiled: bool = False


@cache
def every() -> dict[str, Subject]:
    """All of them, by name."""
    found = [*_swept(), *_people(), *_third_party(), *_calls()]
    return {s.name: s for s in found}


def _swept() -> list[Subject]:
    """The models of the sweep; of each family the first one is varied, those that the project
    promises before others."""
    left_out = json.loads(EXCLUSIONS.read_text())
    models = [s for source in ("timm", "hf") for s in subjects(source) if not excluded(s, left_out)]
    first: dict[tuple[str, str], Swept] = {}
    for s in sorted(models, key=lambda s: (not s.named, zlib.crc32(s.name.encode()))):
        first.setdefault((s.source, s.family), s)
    varied = [s.name for s in first.values()][:VARIED]
    compiled = set(varied[: 4 * COMPILED : 4])
    return [
        Subject(
            s.name,
            f"{s.source}-{s.family}",
            partial(_of_the_sweep, s),
            s.name in varied,
            s.name in compiled,
        )
        for s in models
    ]


def _of_the_sweep(subject: Swept) -> Built:
    made = build(subject, batch=2)
    model = made.model.double().eval()
    calls = dict(_other_calls(subject, model, made.inputs))
    draw(model, 0)
    drawn = {name: draw_inputs(call, 2) for name, call in calls.items()}
    return Built(model, draw_inputs(made.inputs, 1), made.target, drawn)


def _other_calls(subject: Swept, model: nn.Module, inputs: Any) -> list[tuple[str, Any]]:
    """A second length and a long call, where the model takes them."""
    found = []
    for name, length in (("another length", 9), ("long", LONG)):
        try:
            if subject.source == "timm":
                size = inputs.shape[-1] * (2 if length == LONG else 1.5)
                call: Any = torch.randn(1, inputs.shape[1], int(size), int(size)).double()
                with torch.no_grad():
                    model(call)
            else:
                call = _text(subject, model, length)
        except Exception:  # most models take one size, or no more positions
            continue
        found.append((name, call))
    return found


def _text(subject: Swept, model: nn.Module, length: int) -> Any:
    """A call of one sample with so many tokens. Raises whatever the model does."""
    changes = {**CHANGES.get(subject.family, {}), **CHANGES.get(subject.entry, {})}
    settings = {k.removeprefix("call:"): v for k, v in changes.items() if k.startswith("call:")}
    torch.manual_seed(3)
    call, _, _ = call_for(model, subject.tasks, 1, {**settings, "length": length})
    ids = call.get("input_ids")
    if ids is None or ids.shape[1] != length:
        raise ValueError("no text")
    with torch.no_grad():
        model(**draw_inputs(call, 2))
    return call


def _people() -> list[Subject]:
    """The hand-written models of ``tests/people``."""
    from tests.people.everything import PAIRS

    return [
        Subject(f"people/{name}", "people", partial(_pair, make)) for name, make in PAIRS.items()
    ]


def _pair(make: Callable[[], Any]) -> Built:
    pair = make()
    model = copy.deepcopy(pair.model).double().eval()
    draw(model, 0)
    inputs = tree_map_only(torch.Tensor, lambda t: t[:2], pair.inputs)
    target = pair.target[:2] if isinstance(pair.target, list) else pair.target
    return Built(model, draw_inputs(inputs, 1), target)


def _third_party() -> list[Subject]:
    """The models of ``tests/third_party``, where their packages are installed."""
    from tests.third_party.models import CASES

    return [
        Subject(f"third-party/{name}", f"third-party-{needed[-1]}", partial(_case, case))
        for name, case in CASES.items()
        if all(map(importlib.util.find_spec, needed := _packages(case)))
    ]


def _packages(case: Any) -> list[str]:
    """The packages that a case is built from, by its paths (``package.module:name``)."""
    return list(dict.fromkeys(re.findall(r"'(\w+)[\w.]*:\w+'", repr(case.made))))


def _case(case: Any) -> Built:
    from tests.third_party.checks import built

    torch.manual_seed(0)  # buffers that a model draws
    model = built(case.made).double().eval()
    draw(model, 0)
    named = isinstance(next(iter(case.inputs)), str)
    return Built(model, case.inputs if named else tuple(case.inputs.values()), case.target)


def _calls() -> list[Subject]:
    """The calls of ``tests/reference/calls.py``."""
    from tests.reference.calls import calls

    return [Subject(f"{CALL}{n}", f"calls-{n.partition('/')[0]}") for n in calls()]
