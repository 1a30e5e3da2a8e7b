"""``relprop explain --data ... --out run/``: a model and a data set by name, and a run folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from relprop.api.loading import load
from relprop.data import Source
from relprop.errors import InputError, OptionError, message
from relprop.runs import processes
from relprop.runs.explaining import ExplainWork, MethodChoice
from relprop.runs.running import Summary, run

DIGITS = "demo:digits"


@dataclass(frozen=True)
class Opened:
    """A model by name, on the device it runs on, with what prepares its inputs: a transform of images, or a tokenizer."""

    model: nn.Module
    normalize: Callable[[Tensor], Tensor] | None = None
    processor: Any = None


def explain_data(
    *, model: str, data: str, out: Path, methods: Sequence[str] = (), target: str = "predicted", batch_size: int | None = None, limit: int | None = None,
    resume: bool = False, on_error: str = "stop", precision: str | None = None, max_length: int | None = None, trust_remote_code: bool = False,
    progress: bool = True,
) -> Summary:
    """Explain every sample of a data set into the run folder ``out``; in every process of an ``accelerate launch``.

    Args:
        model: ``demo:digits``; ``timm:...``; an id or a folder for ``transformers``.
        data: ``demo:digits``, or what ``relprop.data.open_data`` opens.
        methods: each a name, or a name with options: ``rollout``, ``transformer_attribution:rules=stable,normalize_rows=true``. Options are JSON or plain words.
        precision: ``"float32"`` or ``"float64"``. Others as for ``run`` and ``ExplainWork``.

    Raises:
        RelpropError: see ``run``, ``ExplainWork`` and the loading of models and data sets.
    """
    chosen = [parse_method(m) for m in methods] or ["transformer_attribution"]
    here = processes.current()
    source = open_source(data, limit)
    opened = open_named_model(model, source.kind, here.device, trust_remote_code=trust_remote_code)
    work = ExplainWork(
        opened.model, source, methods=chosen, target=target, normalize=opened.normalize, processor=opened.processor, max_length=max_length, limit=limit, precision=precision,
    )
    return run(work, out, batch_size=batch_size, resume=resume, on_error=on_error, progress=progress)


def parse_method(text: str) -> MethodChoice:
    """``name``, or ``name:option=value,option=value``.

    >>> parse_method("transformer_attribution:rules=stable,normalize_rows=true")
    ('transformer_attribution', {'rules': 'stable', 'normalize_rows': True})
    """
    name, _, rest = text.partition(":")
    if not rest:
        return name
    options: dict[str, Any] = {}
    for part in rest.split(","):
        key, equals, value = part.partition("=")
        if not equals or not key:
            raise OptionError(message(f"--method {text!r}: {part!r} is no option", then=["--method name:option=value,option=value"]))
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value
    return name, options


def open_source(data: str, limit: int | None = None) -> Source:
    """The data set of a name: the shipped digit scenes (500 of them, or ``limit``), or what ``relprop.data.open_data`` makes of it."""
    found: Source
    if data == DIGITS:
        from relprop.demo.scene_source import DigitScenes

        found = DigitScenes(limit or 500, seed=0)
        return found
    from relprop.data.opening import open_data

    found = open_data(data)
    return found


def open_named_model(name: str, kind: str, device: torch.device, *, trust_remote_code: bool = False) -> Opened:
    """The model of a name, in eval mode on ``device``, with what its inputs of this ``kind`` (``"image"``, ``"text"``) go through."""
    if name == DIGITS:
        if kind != "image":
            raise OptionError(f"model {name!r} looks at images; the data set is of {kind}s")
        from relprop.demo.model import digit_scene_model

        return Opened(digit_scene_model().to(device))
    found, _, processor = load(name, [], None, trust_remote_code)
    found = found.to(device)
    if kind == "text":
        if not hasattr(getattr(processor, "tokenizer", processor), "convert_ids_to_tokens"):
            raise InputError(message(f"model {name!r} has no tokenizer, and the data set is of texts", then=["save the tokenizer into the model's folder: tokenizer.save_pretrained(folder)"]))
        return Opened(found, processor=processor)
    images = getattr(processor, "image_processor", processor)
    if hasattr(images, "image_mean"):
        return Opened(found, normalize=Processed(images))
    if getattr(found, "pretrained_cfg", None):
        return Opened(found, normalize=Transformed.of(found))
    raise InputError(message(f"nothing is known of how images become inputs of {name!r}", then=["ExplainWork(model, source, normalize=...) in Python"]))


class Processed:
    """Images through a Hugging Face image processor, which may resize and crop."""

    def __init__(self, processor: Any) -> None:
        self.processor = processor

    def __call__(self, image: Tensor) -> Tensor:
        made: Tensor = self.processor(images=image, do_rescale=False, return_tensors="pt")["pixel_values"][0]
        return made

    def __repr__(self) -> str:
        return f"{type(self.processor).__name__} {json.dumps(self.processor.to_dict(), sort_keys=True, default=str)}"


class Transformed:
    """Images through a timm model's own evaluation transform, which may resize and crop."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    @classmethod
    def of(cls, model: nn.Module) -> Transformed:
        """The transform of this model, at the size it was built for."""
        from timm.data import create_transform, resolve_model_data_config

        config = resolve_model_data_config(model)
        size = getattr(getattr(model, "patch_embed", None), "img_size", None)
        if isinstance(size, (tuple, list)):
            config["input_size"] = (config["input_size"][0], *size)
        return cls(create_transform(**config, is_training=False))

    def __call__(self, image: Tensor) -> Tensor:
        from torchvision.transforms.functional import to_pil_image

        made: Tensor = self.transform(to_pil_image(image.float()))
        return made

    def __repr__(self) -> str:
        return repr(self.transform)
