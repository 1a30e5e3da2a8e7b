"""What a call is given: its inputs, where they came from, and what they hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from relprop.adapters.pictures import Original, Patches
from relprop.adapters.rgb import is_picture
from relprop.errors import InputError, first_line
from relprop.tracer.advice import made_of

Word = tuple[str, list[int]]


@dataclass(frozen=True)
class Prepared:
    """A call's inputs as the model takes them, with the texts and pictures that they were made
    from; of interest to who writes an adapter.

    ``encodings``: a fast tokenizer's own record of each sample. ``processor``: what the user gave
    as such. ``originals``: for each input of pictures, the pictures every sample was made from;
    ``patches``: which patches its rows are, where it holds pictures as rows of patches.
    ``texts``: what each sample was made from, if it was text. ``seen``: which of its positions are
    no padding, (batch, positions), where a processor padded and ``forward`` takes no mask.
    """

    inputs: Any
    processor: Any = None
    encodings: tuple[Any, ...] = ()
    originals: Mapping[str, tuple[tuple[Original, ...], ...]] = field(default_factory=dict)
    texts: tuple[str, ...] = ()
    patches: Mapping[str, Patches] = field(default_factory=dict)
    seen: Tensor | None = None

    def without_pictures(self) -> Prepared:
        """The same, with no picture kept; where the model's image lies in each is still known."""
        bare = {
            name: tuple(tuple(replace(o, picture=None) for o in one) for one in samples)
            for name, samples in self.originals.items()
        }
        return replace(self, originals=bare)

    def part(self, first: int, count: int) -> Prepared:
        """The same for some samples."""
        some = slice(first, first + count)
        return replace(
            self,
            inputs=None,
            encodings=self.encodings[some],
            originals={name: o[some] for name, o in self.originals.items()},
            texts=self.texts[some],
            seen=None if self.seen is None else self.seen[some],
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
        f"processor {type(processor).__name__} does not read {type(thing).__name__}: "
        f"{first_line(error)}",
        then=made_of(thing, read=True)
        or [
            "prepare the inputs yourself and give the model's own: "
            "inputs=processor(...), processor=processor"
        ],
    )
