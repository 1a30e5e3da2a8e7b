"""Samples as a model's inputs: images of one shape together, texts padded to one length, and which
positions are padding."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from relprop.data import Sample
from relprop.data.functions import of_callable
from relprop.errors import InputError, OptionError
from relprop.opening.wrapped import base_model
from relprop.runs import fingerprints
from relprop.tracer.modules import safe_getattr
from relprop.tracer.offloaded import home_of

STEP = 32  # texts are padded to multiples of this: one captured graph for each length


@dataclass(frozen=True, eq=False)
class Group:
    """Samples that go through the model together: their ``places`` in the batch, the model's
    ``inputs``, and for each text how many tokens are not padding."""

    places: tuple[int, ...]
    inputs: Any
    lengths: tuple[int, ...] | None = None
    truncated: tuple[bool, ...] | None = None


class Images:
    """Images (C, H, W) in [0, 1], each through ``normalize``; those of one shape are one group."""

    processor = None

    def __init__(self, normalize: Callable[[Tensor], Tensor] | None) -> None:
        self.normalize = normalize

    def identity(self) -> dict[str, Any]:
        """The transform as it prints itself."""
        return {"normalize": of_callable(self.normalize)}

    def groups(self, samples: Sequence[Sample], model: nn.Module) -> Iterator[Group]:
        """By shape, in the order in which the shapes appear."""
        images = [self.image(s) for s in samples]
        shapes = [(tuple(i.shape), i.dtype) for i in images]
        for shape in dict.fromkeys(shapes):
            places = tuple(i for i, s in enumerate(shapes) if s == shape)
            batch = torch.stack([images[i] for i in places])
            yield Group(places, batch.to(*home_of(model)))

    def image(self, sample: Sample) -> Tensor:
        """One image as the model takes it. Raises ``InputError`` with the sample's key."""
        image = sample.inputs
        if not isinstance(image, Tensor) or image.dim() != 3:
            what = tuple(image.shape) if isinstance(image, Tensor) else type(image).__name__
            raise InputError(f"sample {sample.key!r} is no image (C, H, W): {what}")
        if self.normalize is None:
            return image
        try:
            made = self.normalize(image)
        except (RuntimeError, TypeError, ValueError) as error:
            given = f"sample {sample.key!r}, {tuple(image.shape)}"
            raise InputError(f"normalize does not take {given}: {error}") from error
        if not isinstance(made, Tensor) or made.dim() != 3:
            gave = f"{type(made).__name__} {tuple(getattr(made, 'shape', ()))}"
            fact = f"normalize gave {gave} for sample {sample.key!r}"
            raise InputError(f"{fact}, not an image (C, H, W)")
        return made


class Texts:
    """Texts and pairs of texts through a tokenizer, padded on the right; without a padding token,
    those of one length are one group.

    ``max_length``: longer texts are cut; ``None``: at what the tokenizer says its model takes.
    """

    def __init__(self, tokenizer: Any, max_length: int | None) -> None:
        if tokenizer is None:
            then = "ExplainWork(model, source, processor=tokenizer)"
            raise OptionError("texts need what turns them into tokens", then=[then])
        self.processor = tokenizer
        self.tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
        if not hasattr(self.tokenizer, "convert_ids_to_tokens"):
            fact = f"processor={type(tokenizer).__name__} is no tokenizer"
            raise OptionError(f"{fact}: one with convert_ids_to_tokens is needed, as transformers'")
        own = getattr(self.tokenizer, "model_max_length", None)
        self.max_length = max_length or (own if isinstance(own, int) and own < 1_000_000 else None)

    def identity(self) -> dict[str, Any]:
        """The tokenizer by its vocabulary and what it does; where texts are cut."""
        tokenizer = fingerprints.of_tokenizer(self.tokenizer)
        return {"tokenizer": tokenizer, "max_length": self.max_length}

    def groups(self, samples: Sequence[Sample], model: nn.Module) -> Iterator[Group]:
        """All together, or by length."""
        texts = [_texts(s) for s in samples]
        if len({len(t) for t in texts}) > 1:
            mixed = "some samples are one text and others are pairs"
            raise InputError(f"{mixed}: {samples[0].key!r} and others of its batch")
        whole = [len(ids) for ids in self.tokenize(texts, truncation=False)["input_ids"]]
        lengths = [n if self.max_length is None else min(n, self.max_length) for n in whole]
        pads = self.tokenizer.pad_token is not None
        for length in [max(lengths)] if pads else dict.fromkeys(lengths):
            places = tuple(i for i, n in enumerate(lengths) if pads or n == length)
            made = self._tensors([texts[i] for i in places], length, model)
            own = tuple(lengths[i] for i in places)
            cut = tuple(whole[i] > lengths[i] for i in places)
            yield Group(places, made, own, cut)

    def _tensors(self, texts: Sequence[tuple[str, ...]], length: int, model: nn.Module) -> Any:
        """The encoding of texts of at most ``length`` tokens, padded if the tokenizer can: what the
        model's ``forward`` takes of it, on its device. It knows the words."""
        cuts = self.max_length is not None
        options: dict[str, Any] = {"max_length": self.max_length} if cuts else {}
        if self.tokenizer.pad_token is not None:
            padded = self.padded(length, model)
            options = {"padding": "max_length", "max_length": padded, "padding_side": "right"}
        made = self.tokenize(texts, return_tensors="pt", truncation=cuts, **options)
        takes = inspect.signature(base_model(model).forward).parameters
        for name in [n for n in made if n not in takes]:
            del made[name]
        return made.to(home_of(model)[0])

    def padded(self, length: int, model: nn.Module) -> int:
        """``length`` rounded up to a multiple of ``STEP``, as far as the model has positions; not
        at all if that is not known."""
        config = getattr(base_model(model), "config", None)
        most = self.max_length or safe_getattr(config, "max_position_embeddings")
        if not isinstance(most, int):
            return length
        return max(length, min(-(-length // STEP) * STEP, most))

    def tokenize(self, texts: Sequence[tuple[str, ...]], **options: Any) -> Any:
        """The tokenizer's encoding of texts, or of pairs."""
        columns = (list(column) for column in zip(*texts, strict=True))
        return self.tokenizer(*columns, verbose=False, **options)


def _texts(sample: Sample) -> tuple[str, ...]:
    texts = (sample.inputs,) if isinstance(sample.inputs, str) else sample.inputs
    known = isinstance(texts, tuple) and all(isinstance(t, str) for t in texts)
    if not known or len(texts) not in (1, 2):
        raise InputError(f"sample {sample.key!r} is no text: a str, or a tuple of two, is needed")
    return texts
