"""What is kept of a model: numbers and sentences, as JSON has them."""

from __future__ import annotations

import base64
import re
import warnings
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

import relprop
from relprop.errors import RelpropError, RelpropWarning, TargetError
from relprop.tracer import trace
from relprop.tracer.facts import shape
from tests.common import paths
from tools.reference.drawn import draw, enlarge, numbers, restore, round_otherwise
from tools.reference.subjects import Built, Subject
from tools.sweep.targets import element

METHODS = (
    *("rollout", "transformer_attribution", "gae", "attnlrp", "lrp", "attcat"),
    *("partial_lrp", "value_zeroing", "attention_norm", "gradient_x_input"),
)
ROLLED = ("rollout", "transformer_attribution", "gae")
LONG_METHODS = tuple(m for m in METHODS if m not in ("value_zeroing", "attention_norm"))
#: More numbers of a sample than this are kept as sums with random signs.
WHOLE, SUMS = 300, 8
#: The content that the weights are scaled to have, beside the identity's 1.
CONTENT = 1e-3
CHUNK = 7
#: Ways that should give what the batch gives whole.
EQUAL = ("alone", "chunks", "segments")
Entry = dict[str, Any]
Scores = dict[str, Tensor]


def measure(subject: Subject, rounding: bool) -> Entry:
    """Everything that is kept of a subject; ``rounding``: how far its numbers move, too, where
    weights are rounded otherwise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        built = subject.build()
    with operations() as counted:
        entry, compared = _first(built)
    entry["operations"] = counted[0] if counted else ""
    if compared is None:
        return entry
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _rest(entry, built, subject, compared, rounding)
    return entry


def _rest(entry: Entry, built: Built, subject: Subject, compared: Any, rounding: bool) -> None:
    """The numbers."""
    _numbers(entry, compared)
    _kept_on_request(entry, built)
    found = {"": scores_of(compared)}
    found |= _otherwise(built, subject) if subject.varied else {}
    if subject.compiled:
        entry["compiled"] = _compiled(built, found[""])
    if subject.varied:
        entry["whole maps"] = _whole_maps(built)
        entry["largest differences"] = _differences(found)
    entry["scores"] = {k: kept(v) for k, v in found.pop("").items()}
    kinds = {way: s for way, s in found.items() if way not in EQUAL}
    entry["ways"] = {way: {k: summed(v) for k, v in s.items()} for way, s in kinds.items()}
    if rounding:
        round_otherwise(built.model)
        entry["moved"] = _moved(compared, built)


@contextmanager
def operations() -> Iterator[list[str]]:
    """Meanwhile: what the first captured graph is made of, before anything is done to it."""
    found: list[str] = []
    plain = trace.canonicalise

    def looked_at(graph: torch.fx.Graph, *args: Any, **more: Any) -> None:
        names = sorted(str(n.target) for n in graph.nodes if n.op == "call_function")
        found.append(f"{len(names)}-{zlib.crc32(' '.join(names).encode()):08x}")
        plain(graph, *args, **more)

    with patch.object(trace, "canonicalise", looked_at):
        yield found


def _first(built: Built) -> tuple[Entry, Any]:
    """What is said of the model and of each method, and the explanations; the target is settled
    and the weights are scaled on the way."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        entry: Entry = {"said": {}}
        try:
            _settle(built)
            program = relprop.trace(built.model, built.inputs)
        except Exception as error:
            return entry | {"said": {"capture": sentence(error)}}, None
        entry["model"] = _model(program)
        _scale(built)
        compared = _compare(built, METHODS)
    for method in METHODS:
        if compared is None or method not in compared.explanations:
            entry["said"][method] = _refusal(built, method)
    own = dict.fromkeys(sentence(w.message) for w in told if _is_own(w.category))
    entry["warned"] = list(own)
    return entry, compared


def _is_own(category: type) -> bool:
    return issubclass(category, RelpropWarning)


def sentence(error: BaseException | str) -> str:
    """What an error or a warning says: its class and its first line. Of PyTorch's own, which is of
    its version, the class alone; addresses are any."""
    if isinstance(error, str):
        return error
    name = type(error).__name__
    if not isinstance(error, (RelpropError, RelpropWarning)):
        return f"raw {name}"
    line = re.sub(r" at 0x[0-9a-f]+|(?<=RuntimeError: ).*", "", str(error).splitlines()[0])
    return f"{name}: {rounded(line)}"


def rounded(line: str) -> str:
    """A sentence with small measured numbers, of which rounding is a part, as powers of ten."""
    return re.sub(r"\d(?:\.\d+)?e-(\d+)", "1e-…", line)


def _settle(built: Built) -> None:
    """The target that is explained: the model's default, or an element of its output."""
    try:
        relprop.explain(built.model, built.inputs, built.target, method="gradient_x_input")
    except TargetError:
        if built.target is not None:
            raise
        one = tree_map_only(Tensor, lambda t: t[:1], built.inputs)
        with torch.no_grad():
            built.target = element(_called(built.model, one))
    except RelpropError:  # each method says its own
        return


def _called(model: torch.nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def _scale(built: Built) -> None:
    """Enlarge the last layer until what attention carries is seen beside the identity."""
    try:
        first = relprop.explain(built.model, built.inputs, built.target)
        largest = max(float(s.scores.abs().max()) for s in first.streams.values())
    except RelpropError:
        return
    if 0 < largest < CONTENT:
        factor = 2.0 ** min(20, int(np.ceil(np.log2(CONTENT / largest))) + 1)
        with torch.enable_grad():
            parts = torch.utils._pytree.tree_leaves(_called(built.model, built.inputs))
        y = next(t for t in parts if isinstance(t, Tensor) and t.is_floating_point())
        enlarge(built.model, y, factor)


def _compare(built: Built, methods: tuple[str, ...], inputs: Any = None) -> Any:
    """All methods from one forward pass, or ``None`` where none is defined."""
    given = built.inputs if inputs is None else inputs
    try:
        return relprop.compare(built.model, given, methods, built.target)
    except RelpropError:
        return None


def _refusal(built: Built, method: str) -> str:
    try:
        relprop.explain(built.model, built.inputs, built.target, method=method)
    except Exception as error:
        return sentence(error)
    return "refused beside others, explained alone"


def _model(program: relprop.Program) -> Entry:
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


def _numbers(entry: Entry, compared: Any) -> None:
    """Of the explanations: the identity, and what they say of themselves."""
    found = compared.explanations
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


def scores_of(compared: Any) -> Scores:
    """The scores by method and input."""
    return {
        f"{m}|{name}": s.scores.detach().double()
        for m, e in compared.explanations.items()
        for name, s in e.streams.items()
    }


def _otherwise(built: Built, subject: Subject) -> dict[str, Scores]:
    """The same model in other ways: alone, in chunks, in segments, of other lengths, and with other
    weights."""
    found: dict[str, Scores] = {}

    def add(way: str, methods: tuple[str, ...] = METHODS, inputs: Any = None) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compared = _compare(built, methods, inputs)
        found[way] = {} if compared is None else scores_of(compared)

    add("alone", inputs=tree_map_only(Tensor, lambda t: t[1:], built.inputs))
    with paths.in_chunks(CHUNK):
        add("chunks")
    with paths.in_segments():
        add("segments")
    for name, call in built.calls.items():
        add(name, LONG_METHODS if name == "long" else METHODS, call)
    before = numbers(built.model)
    draw(built.model, 9)
    add("other weights")
    restore(built.model, before)
    return found


def _whole_maps(built: Built) -> list[str]:
    """Why which maps are made whole where the others are made in chunks."""
    with paths.in_chunks(CHUNK):
        try:
            made = relprop.explain(built.model, built.inputs, built.target)
        except RelpropError:
            return []
    return [str(reason) for reason in made.facts.get("whole_maps", ())]


def _differences(found: Mapping[str, Scores]) -> Entry:
    """How far ways that should be equal are from the whole batch at once, at the most."""
    whole = found[""]
    return {
        way: max((gap(v, whole[k][-len(v) :]) for k, v in found[way].items()), default=0.0)
        for way in EQUAL
    }


def gap(now: Tensor, then: Tensor) -> float:
    """The largest difference, as a part of the sample's largest number."""
    if now.shape != then.shape:
        return float("inf")
    largest = then.abs().flatten(1).amax(1).clamp(min=1e-20)
    return float(((now - then).abs().flatten(1).amax(1) / largest).max())


def _compiled(built: Built, whole: Scores) -> float | str:
    """How far the program of the default method is from the method."""
    try:
        explainer = relprop.compile(built.model, built.inputs, built.target)
        made = explainer(built.inputs, built.target)
    except RelpropError as error:
        return sentence(error)
    return max(
        gap(s.scores.detach().double(), whole[f"transformer_attribution|{name}"])
        for name, s in made.streams.items()
    )


def _moved(compared: Any, built: Built) -> Entry:
    """How far the numbers are from those of the weights as they are now."""
    again = _compare(built, METHODS)
    if again is None:
        return {}
    then, now = scores_of(compared), scores_of(again)
    return {k: gap(now[k], v) for k, v in then.items() if k in now}


def kept(scores: Tensor) -> Entry:
    """Scores as text: all of them, or sums of what is too long."""
    if scores[0].numel() > WHOLE:
        return summed(scores)
    return {"shape": list(scores.shape), "numbers": _written(scores)}


def _written(numbers: Tensor) -> str:
    array = np.ascontiguousarray(numbers.numpy(), dtype="<f8")
    return base64.b64encode(array.tobytes()).decode()


def read(text: str) -> Tensor:
    """The numbers that ``kept`` and ``summed`` wrote."""
    return torch.from_numpy(np.frombuffer(base64.b64decode(text), dtype="<f8").copy())


def summed(scores: Tensor) -> Entry:
    """Sums of a sample's scores over its largest with fixed random signs: any score that changes
    shows in most of them."""
    flat = scores.flatten(1)
    largest = flat.abs().amax(1, keepdim=True).clamp(min=1e-20)
    signs = np.random.default_rng(flat.shape[1]).choice([-1.0, 1.0], (SUMS, flat.shape[1]))
    sums = (flat / largest) @ torch.from_numpy(signs).T
    return {"shape": list(scores.shape), "sums": _written(sums), "largest": _written(largest)}
