"""What is kept of a model: numbers and sentences, as JSON has them."""

from __future__ import annotations

import copy
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

import relprop
from relprop.errors import RelpropError, RelpropWarning, TargetError
from relprop.tracer import passes, trace
from relprop.tracer.facts import facts_of, is_floating, shape
from relprop.tracer.program import Program
from tools.reference.drawn import SINGLE, ULP, enlarge, round_otherwise
from tools.reference.numbers import gap, kept, summed
from tools.reference.sentences import sentence
from tools.reference.subjects import Built, Subject
from tools.reference.ways import (
    EQUAL,
    compiled,
    largest_differences,
    otherwise,
    scores_of,
    together,
    whole_maps,
)
from tools.sweep.subject import CannotBuild
from tools.sweep.targets import element

METHODS = (
    *("rollout", "transformer_attribution", "gae", "attnlrp", "lrp", "attcat"),
    *("partial_lrp", "value_zeroing", "attention_norm", "gradient_x_input"),
)
ROLLED = ("rollout", "transformer_attribution", "gae")
#: The content that the weights are scaled to have, beside the identity's 1.
CONTENT = 1e-3
Entry = dict[str, Any]
Explained = dict[str, Any]


def measure(subject: Subject, rounding: bool) -> Entry:
    """Everything that is kept of a subject; ``rounding``: how far its numbers move, too, where
    weights are rounded otherwise."""
    torch.manual_seed(0)  # of models that draw by chance
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert subject.build is not None  # a call has none
        try:
            built = subject.build()
        except CannotBuild:  # with these versions; the sweep says why
            return {"said": {"model": "cannot be built"}}
    with operations() as counted:
        entry, explained = _first(built)
    entry["operations"] = counted[0] if counted else ""
    if not explained:
        return entry
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _rest(entry, built, subject, explained, rounding)
    return entry


def _rest(
    entry: Entry, built: Built, subject: Subject, explained: Explained, rounding: bool
) -> None:
    """The numbers."""
    _numbers(entry, explained)
    _kept_on_request(entry, built)
    found = {"": scores_of(explained)}
    found |= otherwise(built, explained) if subject.varied else {}
    if subject.compiled:
        entry["compiled"] = compiled(built, found[""])
    entry["scores"] = {k: kept(v) for k, v in found[""].items()}
    if subject.varied:
        entry["whole maps"] = whole_maps(built)
        entry["largest differences"] = largest_differences(found)
        kinds = {way: s for way, s in found.items() if way not in ("", *EQUAL)}
        entry["ways"] = {way: {k: summed(v) for k, v in s.items()} for way, s in kinds.items()}
    if rounding:
        entry["moved"] = moved(built, explained)


def moved(built: Built, explained: Explained) -> dict[str, float]:
    """How far the numbers are from those of weights that are rounded otherwise."""
    graph = relprop.trace(built.model, built.inputs).graph
    calls = (n for n in graph.nodes if n.op == "call_function" and is_floating(n))
    single = any(facts_of(n).value.dtype == torch.float32 for n in calls)
    round_otherwise(built.model, SINGLE if single else ULP)
    then, now = scores_of(explained), scores_of(together(built, explained))
    return {k: gap(now[k], v) for k, v in then.items() if k in now}


@contextmanager
def operations() -> Iterator[list[str]]:
    """Meanwhile: what the first captured graph is made of, before anything is done to it."""
    found: list[str] = []
    plain = passes.canonicalise

    def looked_at(graph: torch.fx.Graph, *args: Any, **more: Any) -> None:
        names = sorted(str(n.target) for n in graph.nodes if n.op == "call_function")
        found.append(f"{len(names)}-{zlib.crc32(' '.join(names).encode()):08x}")
        plain(graph, *args, **more)

    with patch.object(trace, "canonicalise", looked_at):
        yield found


def _first(built: Built) -> tuple[Entry, Explained]:
    """What is said of the model and of each method, and the explanations; the target is settled and
    the weights are scaled on the way. A model that branches on values is captured at every call,
    and so asked less."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        entry: Entry = {"said": {}}
        try:
            _settle(built)
            program = relprop.trace(built.model, built.inputs)
        except Exception as error:
            return entry | {"said": {"capture": sentence(error)}}, {}
        entry["model"] = _model(program)
        if not program.decisions:
            _scale(built)
        found = together(built, METHODS)
        alone, entry["said"] = _one_by_one(built, [m for m in METHODS if m not in found])
        found |= alone
    own = dict.fromkeys(sentence(w.message) for w in told if _is_own(w.category))
    entry["warned"] = list(own)
    return entry, found


def _is_own(category: type) -> bool:
    return issubclass(category, RelpropWarning)


def _settle(built: Built) -> None:
    """The target that is explained: the model's default, or an element of its output."""
    try:
        relprop.explain(built.model, built.inputs, built.target, method="gradient_x_input")
    except TargetError:
        if built.target is not None:
            raise
        one = tree_map_only(Tensor, lambda t: t[:1], built.inputs)
        with torch.no_grad():
            built.target = element(_called_in_single(built.model, one))
    except RelpropError:  # each method says its own
        return


def _called(model: torch.nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def _called_in_single(model: torch.nn.Module, inputs: Any) -> Any:
    """What a copy returns in float32: some kernels have no float64."""
    narrow = tree_map_only(Tensor, lambda t: t.float() if t.is_floating_point() else t, inputs)
    return _called(copy.deepcopy(model).float(), narrow)


def _scale(built: Built) -> None:
    """Enlarge the last layer until what attention carries is seen beside the identity."""
    try:
        first = relprop.explain(built.model, built.inputs, built.target, verify=False)
        largest = max(float(s.scores.abs().max()) for s in first.streams.values())
        with torch.enable_grad():
            made = torch.utils._pytree.tree_leaves(_called(built.model, built.inputs))
    except (RelpropError, RuntimeError):  # it is explained as it is
        return
    if 0 < largest < CONTENT:
        factor = 2.0 ** min(20, int(np.ceil(np.log2(CONTENT / largest))) + 1)
        y = next(t for t in made if isinstance(t, Tensor) and t.is_floating_point())
        enlarge(built.model, y, factor)


def _one_by_one(built: Built, methods: Iterable[str]) -> tuple[Explained, dict[str, str]]:
    """The explanations by method, and what the others say."""
    found, said = {}, {}
    for method in methods:
        try:
            found[method] = relprop.explain(built.model, built.inputs, built.target, method=method)
        except Exception as error:
            said[method] = sentence(error)
    return found, said


def _model(program: Program) -> Entry:
    """What the graph is said to be, without names of nodes."""
    return {
        "front end": program.front_end,
        "decisions": len(program.decisions),
        "constant inputs": dict(program.constant_inputs),
        "softmaxes without a site": program.softmaxes_without_site,
        "sites": [
            f"{s.path}: {'transposed ' if s.transposed else ''}{_size(s.attention)}"
            for s in program.sites
        ],
    }


def _size(node: torch.fx.Node) -> str:
    return "×".join(str(int(n)) for n in shape(node))


def _numbers(entry: Entry, found: Explained) -> None:
    """Of the explanations: the identity, and what they say of themselves."""
    some = next(iter(found.values()))
    entry["streams"] = {
        name: {
            "tokens": list(s.scores.shape),
            "grid": list(s.grid or ()),
            "special": ["".join("01"[int(v)] for v in row) for row in (~s.content).long().tolist()],
        }
        for name, s in some.streams.items()
    }
    entry["output"] = some.output.detach().double().tolist()
    entry["labels"] = list(some.labels or ())
    entry["facts"] = {m: _facts(e) for m, e in found.items()}
    entry["identity"] = {
        f"{m}|{name}": _nonzero(s.identity)
        for m in ROLLED
        if m in found
        for name, s in found[m].streams.items()
    }


def _kept_on_request(entry: Entry, built: Built) -> None:
    """Books and blocks, which an explanation has where it is asked for them."""
    entry["books"] = {}
    for method in ("transformer_attribution", "lrp"):
        keep = ("blocks",) if method in ROLLED else ()
        try:
            made = relprop.explain(
                built.model, built.inputs, built.target, method=method, keep=keep, ledger=True
            )
        except RelpropError:  # as it is among what is said
            continue
        entry["books"][method] = _books(made.ledger)
        if keep:
            entry["blocks"] = [_block(b) for b in made.blocks or ()]


def _facts(explanation: Any) -> Entry:
    known = ("relevance", "generic", "constant_lookups")
    return {k: v for k in known if (v := explanation.facts.get(k))}


def _nonzero(identity: Tensor) -> list[list[float]]:
    where = identity.detach().double().nonzero().tolist()
    return [[*at, float(identity[tuple(at)])] for at in where]


def _books(ledger: Any) -> Entry:
    """Where relevance went, by cause and name; ``all``: Σ|R|, that differences are measured by."""
    sums = {f"absorbed by {k}": v for k, v in ledger.absorbed().items()}
    sums |= {f"lost: {k}": v for k, v in ledger.lost().items()}
    sums |= {k: v for k, v in ledger.totals().items() if k != "residual"}
    largest = torch.stack([a.absolute.double() for a in ledger.accounts]).amax(0)
    return {"all": largest.tolist()} | {k: v.double().tolist() for k, v in sums.items()}


def _block(block: Any) -> Entry:
    parts = {n: getattr(block, n) for n in ("attention", "gradient", "relevance")}
    sums = {n: _sum(p) for n, p in parts.items() if p is not None}
    return {"path": block.path, "shape": list(block.attention.shape)} | sums


def _sum(part: Tensor) -> Entry:
    part = part.detach().double()
    return {"all": [float(part.abs().sum())], "sum": float(part.sum())}
