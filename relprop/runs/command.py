"""A model and a data set by name, and a method with its options, as a command line has them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from relprop.adapters.processing import is_function_of_pictures
from relprop.data import Source, image_transform, open_data
from relprop.errors import InputError, OptionError, first_line, nearest
from relprop.opening.loading import load
from relprop.runs import processes

DIGITS, REVIEWS, LOOKUPS = SHIPPED = ("demo:digits", "demo:reviews", "demo:lookups")
SCENES = 500  # shipped samples are drawn, so their number must be said: this many without a limit


@dataclass(frozen=True)
class Opened:
    """A model by name, on the device it runs on, and its tokenizer or image processor, if one came
    with it."""

    model: nn.Module
    processor: Any = None


#: What Python calls these and JSON does not.
PYTHONS = {"True": True, "False": False, "None": None}


def parse_method(text: str) -> tuple[str, dict[str, Any]]:
    """A method and its options, from ``name`` or ``name:option=value,option=value``.

    >>> parse_method("transformer_attribution:rules=stable,normalize_rows=true")
    ('transformer_attribution', {'rules': 'stable', 'normalize_rows': True})
    >>> parse_method("attnlrp:positions=True")
    ('attnlrp', {'positions': True})
    """
    name, _, rest = text.partition(":")
    return name, parse_options(rest.split(",") if rest else (), f"--method {name}:")


def parse_options(given: Sequence[str], flag: str) -> dict[str, Any]:
    """``name=value``; values are JSON, Python's True, False and None, or plain words. Raises
    ``OptionError`` for anything else."""
    options: dict[str, Any] = {}
    for part in given:
        key, equals, value = part.partition("=")
        if not equals or not key:
            raise OptionError(f"{flag} {part!r}: name=value is wanted")
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = PYTHONS.get(value, value)
    return options


def open_source(data: str, limit: int | None = None, **options: Any) -> Source:
    """The data set of a name: shipped ones (``limit`` samples, or 500), or what
    ``relprop.data.open_data`` makes of a path."""
    shipped: Any
    if data == DIGITS:
        from relprop.demo.scene_source import DigitScenes as shipped
    elif data == REVIEWS:
        from relprop.demo.reviews import Reviews as shipped
    else:
        return open_data(data, **options)
    if options:
        raise OptionError(f"--data {data} has no options: {', '.join(options)}")
    found: Source = shipped(limit or SCENES, seed=0)
    return found


def device_named(name: str | None) -> torch.device:
    """The device of a name, once something could be put there; the process's own without a name.
    Raises ``OptionError`` for one that there is not, or a name among several processes."""
    here = processes.current()
    if name is None:
        return here.device
    if here.count > 1:
        raise OptionError(f"--device {name}: the launcher of {here.count} processes chooses")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).add(1).cpu()
    except Exception as error:  # each backend has its own
        then = ["relprop doctor says which devices there are"]
        raise OptionError(f"--device {name!r}: {first_line(error)}", then=then) from None
    return device


def open_named_model(name: str, device: torch.device, *, trust_remote_code: bool = False) -> Opened:
    """The model of a name, in eval mode on ``device``."""
    if name == DIGITS:
        from relprop.demo.model import digit_scene_model
        from relprop.demo.scenes import as_scene

        digits: Any = digit_scene_model().to(device)
        digits.config = SimpleNamespace(problem_type="multi_label_classification")
        return Opened(digits, as_scene)
    if name == REVIEWS:
        from relprop.demo.review_model import review_model, review_tokenizer

        reviews: nn.Module = review_model()
        return Opened(reviews.to(device), review_tokenizer())
    if name == LOOKUPS:
        from relprop.demo.lookup_model import lookup_model, lookup_tokenizer

        lookups: nn.Module = lookup_model()
        return Opened(lookups.to(device), lookup_tokenizer())
    if name.startswith("demo:"):
        fact = f"there is no shipped model {name!r}: {', '.join(SHIPPED)}"
        raise InputError(fact, then=nearest(name, SHIPPED))
    found, _, processor = load(name, [], None, trust_remote_code)
    return Opened(found.to(device), processor)


def tokenizer_of(processor: Any) -> Any:
    """A processor's tokenizer, or the processor, which may be one itself."""
    return getattr(processor, "tokenizer", processor)


def prepared(source: Source, opened: Opened) -> tuple[Source, Any]:
    """The data set with images as large as the model takes them, and what normalises them; texts as
    they are.

    Image files are resized and cropped as the model's own configuration has it, if there is one;
    images that are tensors already are taken as they are.
    """
    if source.kind == "text":
        if not hasattr(tokenizer_of(opened.processor), "convert_ids_to_tokens"):
            fact = "the data set is of texts, and no tokenizer came with the model"
            then = "save it into the model's folder: tokenizer.save_pretrained(folder)"
            raise InputError(fact, then=[then])
        return source, None
    configured = opened.processor if opened.processor is not None else opened.model
    if opened.processor is None and not getattr(opened.model, "pretrained_cfg", None):
        return source, None
    function = is_function_of_pictures(opened.processor)  # which makes the model's own input
    transform, normalize = (configured, None) if function else image_transform(configured)
    reader: Any = source
    takes = "transform" in getattr(reader, "__dataclass_fields__", ())
    if takes and reader.transform is None and getattr(reader, "size", None) is None:
        source = dataclasses.replace(reader, transform=transform)
    return source, normalize
