"""Calls of public functions whose answers are kept: models × methods × options, what each gives,
and what each says where it refuses.

A call is a function without arguments. ``answer`` makes tensors and sentences of what it returned.
"""

import copy
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

import relprop
from relprop import targets
from tests.common import models as small
from tests.methods.table import FEW, MODELS, made
from tools.reference.drawn import draw, draw_inputs
from tools.reference.sentences import sentence

RULES = ("stable", "reference", "lrp", "epsilon_lrp", "attnlrp", "cp_lrp")
BOOKS = ("transformer_attribution", "lrp")


class Convolved(nn.Module):
    """A convolutional stem, two blocks, a mean: features that overlap, a pool, a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.GELU(), nn.MaxPool2d(2)
        )
        self.blocks = nn.ModuleList(small.Block(small.Recipe()) for _ in range(2))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).flatten(2).mT
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


class Masked(nn.Module):
    """Padded text of ids and a mask, one block, the mean of the real positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv = nn.Embedding(11, 8), nn.Linear(8, 24)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.embed(ids)
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        scores = (q @ k.mT / 8**0.5).masked_fill(mask[:, None] == 0, float("-inf"))
        x = (x + scores.softmax(-1) @ v) * mask[..., None]
        return self.head(x.sum(1) / mask.sum(1, keepdim=True))


class Unruled(nn.Module):
    """An operation without a rule, ids looked up twice, and a picture past all attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.again = nn.Embedding(11, 8), nn.Embedding(11, 4)
        self.block, self.conv = small.Block(small.Recipe()), nn.Conv2d(1, 4, 2, 2)
        self.head = nn.Linear(8, 4)

    def forward(self, ids: Tensor, picture: Tensor) -> Tensor:
        x = self.block(self.embed(ids)).mean(1)
        beside = torch.cumprod(torch.tanh(self.conv(picture).flatten(2).mean(2)), 1)
        return self.head(x + beside.repeat(1, 2)) + self.again(ids).sum(1)


def _unruled(**options: Any) -> Any:
    """A model that is new at every call: some warnings are given once per model."""
    source = torch.Generator().manual_seed(5)
    model = small.randomise(Unruled(), 6).double().eval()
    ids = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
    picture = torch.randn(2, 1, 6, 6, generator=source, dtype=torch.float64)
    return relprop.explain(model, {"ids": ids, "picture": picture}, 1, **options)


def _convolved() -> tuple[nn.Module, Any, Any]:
    source = torch.Generator().manual_seed(2)
    model = small.randomise(Convolved(), 3).double().eval()
    return model, torch.randn(2, 1, 16, 16, generator=source, dtype=torch.float64), 1


def _masked() -> tuple[nn.Module, Any, Any]:
    ids = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 0, 0]])
    model = small.randomise(Masked(), 4).double().eval()
    return model, {"ids": ids, "mask": (ids > 0).long()}, None


def _built(**changes: Any) -> tuple[nn.Module, Any, Any]:
    return small.build(**changes), small.sample(**changes), None


OWN: dict[str, Callable[[], tuple[nn.Module, Any, Any]]] = {
    "class token": _built,
    "tied, shared, post": functools.partial(
        _built, ids=True, tied=True, shared=True, norm="post", pool="last", seed=5
    ),
    "parallel, written out": functools.partial(
        _built, parallel=True, fused=False, pool="mean", activation="silu", depth=3, seed=6
    ),
    "convolved": _convolved,
    "masked": _masked,
}


@functools.cache
def model(name: str) -> tuple[nn.Module, Any, Any]:
    """A model, its inputs and its target, made once, with numbers that are the same anywhere."""
    given, inputs, target = OWN[name]() if name in OWN else made(name)
    own = copy.deepcopy(given)
    draw(own, 0)
    return own, draw_inputs(inputs, 1), target


def explain(name: str, target: Any = ..., **options: Any) -> Any:
    """``relprop.explain`` on a model of the record."""
    made_model, inputs, usual = model(name)
    options = {"ledger": True, **options}  # the walk was recorded, where one gradient would do
    return relprop.explain(made_model, inputs, usual if target is ... else target, **options)


def _difference(y: Any) -> Tensor:
    y = getattr(y, "logits", y)
    return y[0, 1] - 0.5 * y[0, 2]


def _log_probability(y: Any) -> Tensor:
    return getattr(y, "logits", y)[0].log_softmax(-1)[1]


OPTIONS: dict[str, dict[str, Any]] = {
    "layers": {"layers": [-1]},
    "layers slice": {"layers": slice(0, 1)},
    "no gradient": {"use_gradient": False},
    "rows normalised": {"normalize_rows": True},
    "maximum of heads": {"head_fusion": "max"},
    "minimum of heads": {"head_fusion": "min"},
    "gradient fusion": {"head_fusion": "gradient"},
    "discarded": {"method": "rollout", "discard_ratio": 0.3},
    "one by one": {"batch_size": 1},
    "float32": {"precision": "float32"},
    "blocks": {"keep": "blocks"},
    "input": {"keep": "input"},
    "layers kept": {"keep": "layers", "method": "gae"},
    "unverified": {"verify": False},
    "strict": {"on_unknown": "error"},
    "2021 norms": {"method": "attention_norm", "variant": "2021"},
    "steps": {"method": "integrated_gradients", "n_steps": 3},
    "difference": {"target": _difference},
    "log-probability": {"target": _log_probability},
    "negative class": {"target": -1},
    "one class each": {"target": [0, 2]},
}
OPTIONED = ("class token", "masked", "ViT", "BERT", "Swin")


def _instrumented(name: str) -> dict[str, Tensor]:
    made_model, inputs, target = model(name)
    with relprop.instrument(made_model, inputs, target=target) as probe:
        hidden = [n for n in probe.names() if "linear" in n or "softmax" in n][:6]
        found = {f"relevance {n}": v for n in hidden for v in probe.relevance(n).values()}
        found |= {f"gradient {n}": v for n in hidden for v in probe.gradient(n).values()}
        return found | {f"value {n}": v for n in hidden for v in probe.value(n).values()}


def _hooked() -> dict[str, Tensor]:
    made_model, inputs, target = model("class token")
    with relprop.instrument(made_model, inputs, target=target) as probe:
        probe.hook("*softmax*", lambda r: r.clamp(min=0))
        found = {n: probe.relevance(n)[n] for n in probe.names("*linear*")}
        return found | {
            "scores": probe.explanation().scores,
            "lrp": probe.explanation(method="lrp").scores,
        }


def _compared(name: str) -> Any:
    made_model, inputs, target = model(name)
    some = ["transformer_attribution", "rollout", "lrp", "gae", ("lrp", {"rules": "stable"})]
    return relprop.compare(made_model, inputs, some, target)


def _generated() -> dict[str, Tensor]:
    made_model, inputs, _ = model("Llama")
    found = relprop.explain_generation(made_model, inputs, max_new_tokens=3)
    return {"scores": found.scores, "output": found.output, "content": found.content}


def _several(name: str) -> list[Any]:
    made_model, inputs, _ = model(name)
    return relprop.explain_many(made_model, inputs, [0, 1, [1, 2]])


def _checked(name: str) -> str:
    made_model, inputs, _ = model(name)
    return str(relprop.check(made_model, inputs))


def _stable() -> Tensor:
    made_model, inputs, target = model("class token")
    return relprop.rounding_stability(made_model, inputs, target)


def _refused() -> Iterator[tuple[str, Callable[[], Any]]]:
    from tests.e2e.test_bad_input import REFUSED

    for name, (_, _, call) in REFUSED.items():
        yield f"refused/{name}", call


def calls() -> dict[str, Callable[[], Any]]:
    """All of them, by name."""
    found: dict[str, Callable[[], Any]] = {}
    for name in (*MODELS, *OWN):
        for method in relprop.methods.METHODS:
            options = FEW.get(method, {})
            found[f"{name}/{method}"] = functools.partial(explain, name, method=method, **options)
        found[f"{name}/check"] = functools.partial(_checked, name)
    for name in OPTIONED:
        for option, given in OPTIONS.items():
            found[f"{name}/option {option}"] = functools.partial(explain, name, **given)
        for rules in RULES:
            found[f"{name}/rules {rules}"] = functools.partial(explain, name, rules=rules)
        for several in (_several, _instrumented, _compared):
            found[f"{name}/{several.__name__}"] = functools.partial(several, name)
    found |= {
        "matrix": functools.partial(explain, "class token", keep="matrix"),
        "matrix of a tower": functools.partial(explain, "ViT", keep="matrix"),
        "one input": functools.partial(explain, "CLIP", explain_inputs="pixel_values"),
        "position": functools.partial(explain, "Llama", target=(3, 7)),
        "token": functools.partial(explain, "T5", target=targets.token(7, position=1)),
        "query": functools.partial(explain, "DETR", target=targets.query(2)),
        "hooked": _hooked,
        "generation": _generated,
        "rounding_stability": _stable,
        "warned/scores": _unruled,
        "warned/books": functools.partial(_unruled, method="lrp"),
        "warned/refused": functools.partial(_unruled, method="lrp", on_unknown="error"),
    }
    return found | dict(_refused())


def answer(call: Callable[[], Any], books: bool) -> tuple[dict[str, Tensor], list[str]]:
    """What a call gives: tensors by name, and sentences: of a refusal, or of warnings."""
    torch.manual_seed(0)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            found, said = dict(_tensors("", call(), books)), []
        except Exception as error:
            found, said = {}, [sentence(error, whole=True)]
    text = found.pop("text", None)
    said += [text] if isinstance(text, str) else []
    own = (w.message for w in told if issubclass(w.category, relprop.RelpropWarning))
    return found, said + [sentence(w, whole=True) for w in own]


def _tensors(path: str, value: Any, books: bool) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Tensor):
        yield path, value.detach()
    elif isinstance(value, str):
        yield "text", value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _tensors(f"{path}.{key}", part, books)
    elif isinstance(value, (list, tuple)):
        for i, part in enumerate(value):
            yield from _tensors(f"{path}[{i}]", part, books)
    elif isinstance(value, relprop.Comparison):
        for label, part in value.explanations.items():
            yield from _tensors(f"{path}.{label}", part, books)
    elif isinstance(value, relprop.Explanation):
        yield from _explained(path, value, books)


def _explained(path: str, e: relprop.Explanation, books: bool) -> Iterator[tuple[str, Tensor]]:
    yield f"{path}.output", e.output.detach()
    for name, stream in e.streams.items():
        for part in ("scores", "row", "identity", "matrix", "input", "layers"):
            if getattr(stream, part) is not None:
                yield f"{path}.{name}.{part}", getattr(stream, part).detach()
    for block in e.blocks or ():
        for part in ("attention", "gradient", "relevance"):
            if getattr(block, part) is not None:
                yield f"{path}.{block.path}.{part}", getattr(block, part).detach()
    if e.ledger is None:
        return
    yield from ((f"{path}.ledger.{k}", v) for k, v in e.ledger.totals().items() if k != "residual")
    if books:
        sums = {f"{a.node} {a.rule}": a for a in e.ledger.accounts}
        yield f"{path}.books", torch.stack([a.arrived.double() for a in sums.values()])
        yield f"{path}.handed on", torch.stack([a.to_inputs.double() for a in sums.values()])
        for kind in ("absorbed", "lost"):
            for name, amount in getattr(e.ledger, kind)().items():
                yield f"{path}.{kind}.{name}", amount
