"""An adapter says what the tokens *are*. It never says how the model works, and never sees a rule.

Write one by subclassing ``Adapter`` and registering it (docs/write-an-adapter.md). Every method may
be left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from relprop.adapters.patches import Patches
from relprop.adapters.pictures import Original, originals
from relprop.adapters.rgb import is_picture
from relprop.adapters.texts import Text
from relprop.errors import InputError, TargetError, first_line, message
from relprop.tracer.binding import Inputs
from relprop.tracer.offloaded import home_of

Word = tuple[str, list[int]]


@dataclass(frozen=True)
class Prepared:
    """A call's inputs, ready for the model, and what is known about where they came from.

    ``encodings``: a fast tokenizer's own record of each sample. ``processor``: what the user gave
    as such. ``originals``: for each input of pictures, the pictures every sample was made from;
    ``patches``: which patches its rows are, where it holds pictures as rows of patches.
    ``texts``: what each sample was made from, if it was text.
    """

    inputs: Any
    processor: Any = None
    encodings: tuple[Any, ...] = ()
    originals: Mapping[str, tuple[tuple[Original, ...], ...]] = field(default_factory=dict)
    texts: tuple[str, ...] = ()
    patches: Mapping[str, Patches] = field(default_factory=dict)

    def without_pictures(self) -> Prepared:
        """The same, with no picture kept; where the model's image lies in each is still known."""
        bare = {
            name: tuple(tuple(replace(o, picture=None) for o in one) for one in samples)
            for name, samples in self.originals.items()
        }
        return replace(self, originals=bare)

    def part(self, first: int, count: int) -> Prepared:
        """The same for some samples."""

        def cut(given: tuple[Any, ...]) -> tuple[Any, ...]:
            return given[first : first + count]

        return replace(
            self,
            inputs=None,
            encodings=cut(self.encodings),
            originals={name: cut(o) for name, o in self.originals.items()},
            texts=cut(self.texts),
        )


@dataclass(frozen=True)
class Given:
    """One explained input of a call: its name (``stream``), all tensors of the call by name (batch
    first), and what ``Prepared`` knows."""

    stream: str
    inputs: Mapping[str, Tensor]
    batch: int
    prepared: Prepared

    @property
    def tensor(self) -> Tensor:
        """The explained input itself."""
        return self.inputs[self.stream]


class Adapter:
    """A plain PyTorch model: floating inputs are explained themselves, the first integer input
    through its embedding."""

    @classmethod
    def fits(cls, model: nn.Module) -> bool:
        """Whether this adapter knows what ``model``'s tokens are."""
        return True

    def prepare(self, model: nn.Module, inputs: Any, processor: Any) -> Prepared:
        """The model's inputs from what the user gave. Here ``processor`` is a function from one
        picture (or other thing) to its tensor."""
        if processor is None or ready(inputs):
            return Prepared(inputs, processor)
        things = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        try:
            tensors = torch.stack([processor(thing) for thing in things]).to(home_of(model)[0])
        except (TypeError, RuntimeError, ValueError, AttributeError) as error:
            raise cannot_prepare(things[0], processor, error) from error
        return Prepared(
            tensors, processor, originals=originals("input_0", things, processor, tensors)
        )

    def token_inputs(self, model: nn.Module, inputs: Inputs) -> tuple[str, ...] | None:
        """The names of the inputs to explain; ``None`` leaves it to the graph."""
        return None

    def label_index(self, model: nn.Module, label: str) -> int | None:
        """The class index of a label, or ``None`` if the model knows no such label. Raises
        ``TargetError`` for a label of several classes."""
        found = [i for i, known in enumerate(self.labels(model)) if known == label]
        if len(found) > 1:
            raise TargetError(
                f"label {label!r} is that of {len(found)} classes, "
                f"{', '.join(map(str, found))}: give the index"
            )
        return found[0] if found else None

    def labels(self, model: nn.Module) -> tuple[str, ...]:
        """The labels the model knows, in order of class index."""
        return ()

    def probabilities(self, model: nn.Module, logits: Tensor) -> Tensor | None:
        """The probabilities that the model's users read from ``logits`` (batch, classes); ``None``
        if nothing says which function makes them."""
        return None

    def is_multi_label(self, model: nn.Module) -> bool:
        """Whether several of the model's classes can be true of one sample."""
        return False

    def is_causal(self, model: nn.Module) -> bool:
        """Whether the model predicts the next token, so that ``target=None`` means the last real
        position."""
        return False

    def last_position(self, inputs: Inputs, length: int) -> Tensor:
        """The last real position of every sample, (batch,)."""
        return torch.full((inputs.batch,), length - 1)

    def tokens(self, model: nn.Module, given: Given) -> list[list[str]] | None:
        """A label for every position of every sample, or ``None``."""
        return None

    def words(self, model: nn.Module, given: Given) -> list[list[Word]] | None:
        """The words of every sample, each with the positions it is made of, or ``None``."""
        return None

    def texts(self, model: nn.Module, given: Given) -> list[Text] | None:
        """The text of every sample, with the characters that each position was made from, or
        ``None``."""
        return None

    def content(self, model: nn.Module, given: Given) -> Tensor | None:
        """Which positions are content, bool, of ``given.tensor``'s shape (axes without positions
        may have length 1); ``None``: all of them."""
        return None

    def padding(self, model: nn.Module, given: Given) -> Tensor | None:
        """Which positions are padding, bool, of ``given.tensor``'s shape (axes without positions
        may have length 1); ``None``: none of them."""
        return None

    def special_ids(self, model: nn.Module, processor: Any) -> tuple[int, ...]:
        """The ids that are special tokens, whatever text they stand in: what a saved explainer
        remembers of ``content``."""
        return ()

    def clock(self, model: nn.Module, given: Given) -> tuple[int, float] | None:
        """Which axis of ``given.tensor`` is time, and how many seconds one step of it is; ``None``
        if that is not known."""
        return None


def ready(inputs: Any) -> bool:
    """Whether ``inputs`` holds a tensor, as what a model is called with does, and no picture."""
    if isinstance(inputs, Tensor):
        return True
    some = inputs if isinstance(inputs, (list, tuple)) else ()
    values = () if any(map(is_picture, some)) else some
    if hasattr(inputs, "keys"):
        values = [inputs[name] for name in list(inputs.keys())]
    return any(isinstance(v, Tensor) for v in values)


def cannot_prepare(thing: Any, processor: Any, error: Exception) -> InputError:
    """The error for a thing that the processor does not take."""
    return InputError(
        message(
            f"processor {type(processor).__name__} does not read {type(thing).__name__}: "
            f"{first_line(error)}",
            then=[
                "prepare the inputs yourself and give the model's own: "
                "inputs=processor(...), processor=processor"
            ],
        )
    )
