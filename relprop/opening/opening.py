"""What a user may hand over in place of a module and tensors: a model's id or folder, or a
``transformers`` pipeline, with texts, images, sounds.

Nothing here knows a task or an architecture: a config says which class it is of, a pipeline's own
preprocessing says what its model is given.
"""

from __future__ import annotations

import copy
import inspect
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from torch import Tensor, nn

from relprop.adapters import Prepared, adapter_for
from relprop.adapters.given import ready
from relprop.adapters.masks import positions_of
from relprop.adapters.pictures import originals
from relprop.adapters.processing import texts_in, waves
from relprop.adapters.rgb import as_rgb, is_picture
from relprop.error_boundary import guarded
from relprop.errors import InputError, OptionError
from relprop.opening.loading import load
from relprop.opening.rows import Foreign, Rows, for_model, joined, refusing
from relprop.opening.wrapped import base_model, usable_model


@guarded
def open_model(
    model: object, inputs: object, *, processor: object = None, trust_remote_code: bool = False
) -> tuple[nn.Module, Any]:
    """The module and the tensors that ``explain`` would work on: for ``check``, ``instrument`` and
    to load once what is explained often.

    Args:
        model: a module; a folder or an id for ``transformers`` (its config names the class) or timm
            (``timm/...``, ``timm:...``); or a ``transformers`` pipeline.
        inputs: tensors, or what the model's processor or the pipeline takes: a text, an image, a
            sound, a list of them, a dict of arguments.
        processor: as for ``explain``.
        trust_remote_code: for an id or a folder, run the code that comes with it. Never on by
            default.

    Raises:
        InputError: nothing to load there, or inputs that the processor refuses.
    """
    module, prepared = opened(model, inputs, processor, trust_remote_code=trust_remote_code)
    return module, prepared.inputs


def opened(
    model: object, inputs: object, processor: object = None, *, trust_remote_code: bool = False
) -> tuple[nn.Module, Prepared]:
    """The module, and its inputs with what is known about where they came from. Arguments as for
    ``open_model``; inputs that were prepared before stay what they are."""
    if isinstance(model, (str, Path)):
        model, inputs, processor = load(str(model), inputs, processor, trust_remote_code)
    elif trust_remote_code:
        raise OptionError(
            "trust_remote_code is for a model given by id or folder; this one is loaded already"
        )
    pipelines = sys.modules.get("transformers.pipelines.base")
    pipeline: Any = getattr(pipelines, "Pipeline", ())  # while it is imported, there are none
    if isinstance(model, pipeline):
        if processor is not None:
            raise OptionError(
                "processor is for a model without one; a pipeline reads its inputs itself"
            )
        module = usable_model(model.model)
        parts = SimpleNamespace(**{name: getattr(model, name, None) for name in PARTS})
        given = Prepared(inputs, parts) if ready(inputs) else _from_pipeline(model, inputs, parts)
        return module, given
    module = usable_model(model)
    return module, prepared(module, inputs, processor)


def prepared(module: nn.Module, inputs: object, processor: object) -> Prepared:
    """What a module is given, from what a person gave; what was prepared before stays so."""
    if isinstance(inputs, Prepared):
        return inputs
    base = base_model(module)
    return adapter_for(base).prepare(base, inputs, processor)


PARTS = ("tokenizer", "image_processor", "feature_extractor")


class _Reached(Exception):
    """A pipeline has come to the point where it would prepare its inputs: ``args`` are the items
    and its options for them."""


def _from_pipeline(pipe: Foreign, inputs: object, parts: SimpleNamespace) -> Prepared:
    """What the pipeline would give its model when called with ``inputs``."""
    with refusing(
        "the pipeline refuses these inputs", "call the pipeline on them and mend that first"
    ):
        items, options = _items(pipe, inputs)
        items = [_read(item, pipe) for item in items]
        samples, records = [], []
        for item in items:
            some, recorded = _samples(pipe, item, options)
            samples += some
            records += recorded
        batch = joined(samples, pipe.tokenizer)
        batch |= positions_of(base_model(pipe.model), batch)
        name = next((n for n, t in batch.items() if t.dim() == 4 and t.is_floating_point()), "")

        def process(picture: object) -> Tensor:
            return _samples(pipe, picture, options)[0][0][name][0]

        each = name and len(items) == len(samples)  # item is a sample's picture
        pictures = originals(name, items, process, batch[name]) if each else {}
        encodings, texts = zip(*records, strict=True) if len(records) == len(samples) else ((), ())
        return Prepared(batch, parts, encodings, pictures, () if None in texts else texts)


def _items(pipe: Foreign, inputs: object) -> tuple[list[object], dict[str, object]]:
    """The items that a call of the pipeline would prepare, and how: found by calling a copy of it
    that stops there."""

    def one(item: object, options: object, *rest: object) -> NoReturn:
        raise _Reached([item], options)

    def several(
        items: Iterable[object], workers: object, size: object, options: object, *rest: object
    ) -> NoReturn:
        raise _Reached(list(items), options)

    probe = copy.copy(pipe)
    probe.run_single, probe.get_iterator = one, several
    first = list(inspect.signature(type(pipe).__call__).parameters)[1]
    try:
        result = (
            probe(**inputs) if isinstance(inputs, Mapping) and first in inputs else probe(inputs)
        )
    except _Reached as reached:
        return reached.args  # type: ignore[return-value]
    raise InputError(f"the pipeline returned {type(result).__name__} and gave its model nothing")


def _read(item: object, pipe: Foreign) -> object:
    """What a pipeline is given as it should read it: pictures in RGB, upright as it turns them;
    recordings as numbers from -1 to 1. It would clip levels of 16 bits, and scale floats twice."""
    if isinstance(item, Mapping):
        return {name: _read(one, pipe) for name, one in item.items()}
    if not pipe.image_processor:
        return waves(item) if pipe.feature_extractor else item
    file = isinstance(item, str) and os.path.isfile(item)
    return as_rgb(item, upright=True) if file or is_picture(item) else item


class _RecordingTokenizer:
    """A tokenizer that remembers the encodings it makes, each with its text, if it is one."""

    def __init__(self, tokenizer: Foreign) -> None:
        self._tokenizer = tokenizer
        self.recorded: list[tuple[Foreign, str | None]] = []

    def __getattr__(self, name: str) -> Foreign:
        return getattr(self._tokenizer, name)

    def __call__(self, *args: object, **kwargs: object) -> Foreign:
        made = self._tokenizer(*args, **kwargs)
        encodings = getattr(made, "encodings", None) or []
        texts = texts_in(args[0] if args else kwargs)
        fits = len(texts) == len(encodings)
        self.recorded += zip(encodings, texts if fits else [None] * len(encodings), strict=True)
        return made


def _samples(
    pipe: Foreign, item: object, options: dict[str, object]
) -> tuple[list[Rows], list[tuple[Foreign, str | None]]]:
    """What the pipeline makes of one item: one sample, or several (the parts of a long text,
    candidate labels); and its tokenizer's records."""
    probe = copy.copy(pipe)
    probe.tokenizer = None if pipe.tokenizer is None else _RecordingTokenizer(pipe.tokenizer)
    made = probe.preprocess(item, **options)
    chunks = [made] if isinstance(made, Mapping) else made
    batches = [for_model(chunk, pipe.model) for chunk in chunks]
    samples = [
        {name: t[i : i + 1] for name, t in b.items()}
        for b in batches
        for i in range(len(next(iter(b.values()), ())))
    ]
    if not samples:
        raise InputError(
            "the pipeline gives its model no tensor that its forward takes by name",
            then=["explain the pipeline's model with tensors of yours"],
        )
    return samples, probe.tokenizer.recorded if probe.tokenizer is not None else []
