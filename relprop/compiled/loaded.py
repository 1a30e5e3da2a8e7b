"""What a saved explainer knows without the model: the classes' labels, which ids are special, how a
processor's output is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from inspect import Parameter, Signature
from typing import Any, Never

from torch import Tensor, nn

from relprop.adapters import Adapter, HuggingFace, Prepared, Timm
from relprop.errors import (
    InputError,
    OptionError,
    TargetError,
    UnsavedAdapterWarning,
    warn,
)
from relprop.explanation import Explanation
from relprop.numerics import is_below_infinity
from relprop.targets.start import Target
from relprop.tracer.binding import Inputs

#: The adapters of which everything is remembered that they say of tokens.
KNOWN = (Adapter, HuggingFace, Timm)


@dataclass(frozen=True)
class Remembered:
    """``labels`` of the classes; ``special``: the ids that are special tokens; ``causal``: whether
    a text's next token is predicted; ``hugging_face``: whether masks and processors are those of
    Hugging Face's models."""

    labels: tuple[str, ...]
    special: tuple[int, ...]
    causal: bool
    hugging_face: bool

    @classmethod
    def of(cls, adapter: Adapter, model: nn.Module, processor: object) -> Remembered:
        """What an adapter says of a model. Warns of what an adapter of the user's own says beyond
        that."""
        if type(adapter) not in KNOWN:
            fact = (
                f"the saved explainer does not know what adapter {type(adapter).__name__!r} says "
                "of tokens, words and content"
            )
            warn(UnsavedAdapterWarning(fact, then=["an explainer that relprop.compile made knows"]))
        return cls(
            adapter.labels(model),
            adapter.special_ids(model, processor),
            adapter.is_causal(model),
            isinstance(adapter, HuggingFace),
        )


class _LoadedAdapter(Adapter):
    """An adapter whose model is not there."""

    def __init__(self, remembered: Remembered) -> None:
        self.remembered = remembered

    def labels(self, model: nn.Module) -> tuple[str, ...]:
        """Those of the saved model."""
        return self.remembered.labels

    def label_index(self, model: nn.Module, label: str) -> int | None:
        """The class of a label."""
        return Adapter.label_index(self, model, label)

    def is_causal(self, model: nn.Module) -> bool:
        """As the saved model was."""
        return self.remembered.causal

    def special_ids(self, model: nn.Module, processor: Any) -> tuple[int, ...]:
        """The saved ones."""
        return self.remembered.special


class _LoadedHuggingFace(_LoadedAdapter, HuggingFace):
    """The same of a Hugging Face model."""


class _Absent(nn.Module):
    """Stands for a model that is not there, and takes what it took: inputs of these ``names``."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()

        def forward(*args: object, **kwargs: object) -> Never:
            raise OptionError("a saved explainer has no model")

        taken = [Parameter(name, Parameter.KEYWORD_ONLY) for name in names if name.isidentifier()]
        forward.__signature__ = Signature(taken)  # type: ignore[attr-defined]
        self.forward = forward


@dataclass(frozen=True)
class Loaded:
    """What a loaded explainer knows. ``names``: the inputs it takes."""

    remembered: Remembered
    names: tuple[str, ...]
    processor: object = None

    @cached_property
    def model(self) -> nn.Module:
        """What stands for the model."""
        return _Absent(self.names)

    @property
    def adapter(self) -> Adapter:
        """Who knows what tokens are."""
        found = _LoadedHuggingFace if self.remembered.hugging_face else _LoadedAdapter
        return found(self.remembered)

    def prepared(self, inputs: object, processor: object) -> Prepared:
        """A call's tensors from what a person gave; of what a processor gives those that were
        captured."""
        made = self.adapter.prepare(self.model, inputs, processor)
        if processor is not None and isinstance(made.inputs, Mapping):
            kept = {n: made.inputs[n] for n in self.names if n in made.inputs}
            return replace(made, inputs=kept)
        return made

    def element(self, target: Target, sample: int, inputs: Inputs) -> tuple[int, ...]:
        """None: targets are looked up in a model."""
        fact = f"target {target.written()} needs the model, which a saved explainer has not"
        raise TargetError(fact, then=["give the index of one element"])

    def refreshed(self) -> None:
        """Nothing: the weights are the saved ones."""

    def check(self, flat: Explanation, inputs: object, target: object) -> None:
        """Nothing: there is no model to compare with."""

    def refuse_outputs(self, outputs: Mapping[str, Tensor]) -> None:
        """Raise ``InputError`` for outputs that are NaN or ∞."""
        for name, value in outputs.items():
            if name.startswith("model.") and not is_below_infinity(value):
                raise InputError(
                    f"the model's output {name.removeprefix('model.')!r} holds NaN or "
                    "infinite values"
                )
