"""What a pair is, and the register of them: a pair is made by a function, whose name it has."""

import warnings
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

BATCH = 3
METHODS = (
    "transformer_attribution",
    "rollout",
    "raw_attention",
    "attention_times_grad",
    "gae",
    "attcat",
    "attention_norm",
    "value_zeroing",
    "lrp",
    "attnlrp",
    "gradient_x_input",
)
AT_THE_INPUT = ("lrp", "attnlrp", "gradient_x_input")
PAIRS: dict[str, Callable[[], "Pair"]] = {}


@dataclass(frozen=True)
class Pair:
    """A model, its twin, and what both are called with.

    ``inputs`` are the model's: a tensor, a tuple or a dict, batch first. ``twin`` is one module, or
    one per sample where side inputs (a timestep, a class) are numbers of the twin, no inputs; it
    takes ``twin_inputs`` (those of the model, if not given) and ``twin_target``. ``tokens``: how
    many scores a method over attention gives, for each explained input in order.

    ``out`` and ``twin_out`` make of an output the tensor that is the same for both, batch first;
    ``leaves`` are the two parameters (a table of embeddings) whose gradients are the same, for ids.
    ``differentiable``: whether the model's own code has gradients on a CPU. ``padding``: which
    tokens of the first explained input must score exactly 0 (by methods at the input
    ``padding_at_input``, where those are other tokens). ``refused``: by method, what the refusal
    says, of model and twin alike; ``silent``: the methods that rightly score every token 0.
    """

    model: nn.Module
    twin: nn.Module | tuple[nn.Module, ...]
    inputs: Any
    tokens: int | tuple[int, ...]
    target: Any = 1
    twin_inputs: Any = None
    twin_target: Any = None
    out: Callable[[Any], Tensor] = lambda out: out
    twin_out: Callable[[Any], Tensor] | None = None
    leaves: tuple[Tensor, Tensor] | None = None
    differentiable: bool = True
    padding: Tensor | None = None
    padding_at_input: Tensor | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
    silent: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        fill = {
            "twin_inputs": self.inputs if self.twin_inputs is None else self.twin_inputs,
            "twin_target": self.target if self.twin_target is None else self.twin_target,
            "twin_out": self.twin_out or self.out,
            "padding_at_input": self.padding_at_input
            if self.padding_at_input is not None
            else self.padding,
            "tokens": self.tokens if isinstance(self.tokens, tuple) else (self.tokens,),
        }
        for name, value in fill.items():
            object.__setattr__(self, name, value)


def pair(make: Callable[[], Pair]) -> Callable[[], Pair]:
    """Register a pair. It is made once, from a seed of its own, in float64 and eval mode."""

    @cache
    def made() -> Pair:
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # modules warn of how they are put together
            torch.manual_seed(zlib.crc32(make.__name__.encode()))
            found = make()
        return replace(found, model=_ready(found.model), twin=_all_ready(found.twin))

    PAIRS[make.__name__] = made
    return made


def _ready(model: nn.Module) -> nn.Module:
    return model.double().eval()


def _all_ready(twin: Any) -> Any:
    if isinstance(twin, tuple):
        return tuple(_ready(one) for one in twin)
    return _ready(twin)


def drawn(model: nn.Module, scale: float = 0.5) -> nn.Module:
    """The model in float64, every parameter drawn anew: about 1 where it was 1 (scales of norms),
    about 0 elsewhere, none of them 0 or 1 by accident."""
    model.double()
    with torch.no_grad():
        for p in model.parameters():
            noise = torch.randn(p.shape, dtype=torch.float64)
            p.copy_(1 + 0.2 * noise if bool((p == 1).all()) else scale * noise)
    return model


def filled(twin: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """The twin in float64 with these weights, every parameter of it by name."""
    twin.double()
    parameters = dict(twin.named_parameters())
    assert parameters.keys() == weights.keys(), parameters.keys() ^ weights.keys()
    with torch.no_grad():
        for name, p in parameters.items():
            assert p.shape == weights[name].shape, f"{name}: {p.shape}, {weights[name].shape}"
            p.copy_(weights[name])
    return twin


def renamed(model: nn.Module, *changes: tuple[str, str]) -> dict[str, Tensor]:
    """The model's parameters, their names changed by replacements in order."""
    weights = {}
    for name, p in model.named_parameters():
        for old, new in changes:
            name = name.replace(old, new)
        weights[name] = p.detach()
    return weights


def normal(*shape: int) -> Tensor:
    """Numbers of a floating input."""
    return torch.randn(shape, dtype=torch.float64)


def ids(tokens: int, size: int, low: int = 0) -> Tensor:
    """Token ids of a batch."""
    return torch.randint(low, size, (BATCH, tokens))


def one(inputs: Any, i: int) -> Any:
    """Sample ``i`` alone, as a batch of one."""
    if isinstance(inputs, Tensor):
        return inputs[i : i + 1]
    if isinstance(inputs, Mapping):
        return {name: one(value, i) for name, value in inputs.items()}
    return tuple(one(value, i) for value in inputs)


def called(model: nn.Module, inputs: Any) -> Any:
    """What the model returns for inputs of any of the three forms."""
    if isinstance(inputs, Tensor):
        return model(inputs)
    return model(**inputs) if isinstance(inputs, Mapping) else model(*inputs)


def over_attention(why: str, but: Iterable[str] = ()) -> dict[str, str]:
    """The refusal of every method over attention, but for those named."""
    return {name: why for name in METHODS if name not in (*AT_THE_INPUT, *but)}
