"""A model by name together with one input for it: what ``explain``, ``compare`` and ``check`` work
on."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from relprop.adapters import adapter_for
from relprop.commands.given import Given
from relprop.errors import InputError, OptionError, TargetError, message
from relprop.opening.loading import load
from relprop.opening.opening import open_model
from relprop.opening.wrapped import base_model
from relprop.runs import processes
from relprop.runs.command import DIGITS, REVIEWS, Opened, open_named_model
from relprop.targets import token

INDICES = re.compile(r"-?\d+(,-?\d+)*")


@dataclass(frozen=True)
class Subject:
    """A model in eval mode, ``inputs`` and ``processor`` as ``relprop.explain`` takes them, and the
    labels of its classes."""

    model: nn.Module
    inputs: Any
    processor: Any
    labels: tuple[str, ...] = ()

    def target(self, text: str) -> Any:
        """What ``--target`` says: ``predicted``, an index, several with commas between them (one
        element of a larger output), a label, or ``token:TEXT``, the token that a language model may
        predict at the mask or next.

        Raises ``TargetError`` for a label that the model does not have, with those that are written
        alike.
        """
        if text == "predicted":
            return None
        if text.startswith("token:"):
            return token(
                text.removeprefix("token:"), getattr(self.processor, "tokenizer", self.processor)
            )
        if INDICES.fullmatch(text):
            indices = tuple(int(part) for part in text.split(","))
            return indices if len(indices) > 1 else indices[0]
        if adapter_for(base_model(self.model)).label_index(base_model(self.model), text) is None:
            near = difflib.get_close_matches(text, self.labels, n=3, cutoff=0.5) or self.labels[:3]
            raise TargetError(
                message(
                    f"--target {text!r}: the model has no class of this name"
                    + ("" if self.labels else ", and no names of classes at all"),
                    then=[f"--target {label!r}" for label in near] or ["--target 0  # an index"],
                )
            )
        return text

    def label(self, target: Any) -> str | None:
        """What the class of an explanation's ``target`` is called, if the model says so."""
        if isinstance(target, str):
            return target
        known = (
            isinstance(target, int)
            and not isinstance(target, bool)
            and 0 <= target < len(self.labels)
        )
        return self.labels[target] if known else None

    def tensors(self) -> Any:
        """The inputs as the model is called with them."""
        return open_model(self.model, self.inputs, processor=self.processor)[1]

    def own_image(self) -> Tensor | None:
        """The model's own image, (C, H, W), its values stretched to [0, 1], if it reads one."""
        found = self.tensors()
        tensors = (
            [found]
            if isinstance(found, Tensor)
            else [found[k] for k in found]
            if hasattr(found, "keys")
            else list(found)
        )
        image = next(
            (
                t
                for t in tensors
                if isinstance(t, Tensor) and t.dim() == 4 and t.is_floating_point()
            ),
            None,
        )
        if image is None:
            return None
        image = image[0].detach().float().cpu()
        return (image - image.min()) / (image.max() - image.min()).clamp(min=1e-12)


def open_subject(
    name: str, given: Given, *, max_length: int | None = None, trust_remote_code: bool = False
) -> Subject:
    """The model called ``name`` (``relprop.runs.command.open_named_model``) with ``given``, on the
    device it runs on.

    ``max_length``: longer texts are cut to so many tokens. Raises ``InputError`` if the model reads
    something else than what is given.
    """
    opened = open_named_model(name, processes.current().device, trust_remote_code=trust_remote_code)
    if name == DIGITS:
        opened = replace(opened, processor=digit_scene)
    tokenizer = getattr(opened.processor, "tokenizer", opened.processor)
    texts, pictures = hasattr(tokenizer, "convert_ids_to_tokens"), _reads_pictures(opened)
    if (given.text is not None and not texts) or (given.picture is not None and not pictures):
        reads = (
            " and ".join(
                what for what, known in (("texts", texts), ("pictures", pictures)) if known
            )
            or "neither texts nor pictures by itself"
        )
        missing = (
            f"; there is no file {given.text!r}"
            if given.picture is None and given.name == "text"
            else ""
        )
        raise InputError(
            message(
                f"{given.kind} is given, and the model {name!r} reads {reads}{missing}",
                then=[]
                if texts or pictures
                else [
                    (
                        "save its tokenizer or image processor into the model's folder: "
                        "save_pretrained(folder)"
                    )
                ],
            )
        )
    inputs: Any = given.text if given.picture is None else given.picture
    if given.picture is not None and given.text is not None:
        inputs = {"text": [given.text], "images": given.picture}
    elif max_length is not None:
        if given.text is None:
            raise OptionError("--max-length is for texts")
        inputs = tokenizer(
            [given.text], return_tensors="pt", truncation=True, max_length=max_length
        ).to(next(opened.model.parameters()).device)
    return _labelled(opened, inputs)


def typical_subject(name: str, *, trust_remote_code: bool = False) -> Subject:
    """The model called ``name`` with an input of the shape it takes and random contents: enough to
    see what it is made of, not to explain."""
    device = processes.current().device
    if name in (DIGITS, REVIEWS):
        model = open_named_model(name, device).model
    else:
        model = load(name, torch.zeros(1), None, trust_remote_code)[0].to(device)
    torch.manual_seed(0)
    config = getattr(model, "config", None)
    if hasattr(config, "to_dict"):
        from relprop.commands.typical_inputs import typical_call

        try:
            inputs: Any = {k: v.to(device) for k, v in typical_call(model).items()}
        except Exception as error:
            raise InputError(
                message(
                    f"what the model {name!r} reads cannot be guessed: {error}",
                    then=[f"relprop check --model {name} INPUT"],
                )
            ) from error
    else:
        inputs = torch.rand(1, *_image_size(model, name), device=device)
    return _labelled(Opened(model), inputs)


def digit_scene(picture: Any) -> Tensor:
    """A picture as the shipped digit model reads it: grey, (1, 32, 32), in [0, 1]."""
    from PIL import Image

    from relprop.demo.scenes import SCENE

    grey = picture.convert("L").resize((SCENE, SCENE), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(grey, copy=True)).float().div(255)[None]


def _labelled(opened: Opened, inputs: Any) -> Subject:
    model = base_model(opened.model)
    return Subject(opened.model, inputs, opened.processor, tuple(adapter_for(model).labels(model)))


def _reads_pictures(opened: Opened) -> bool:
    image_processor = getattr(opened.processor, "image_processor", opened.processor)
    return (
        opened.processor is digit_scene
        or hasattr(image_processor, "image_mean")
        or (opened.processor is None and bool(getattr(opened.model, "pretrained_cfg", None)))
    )


def _image_size(model: Any, name: str) -> tuple[int, int, int]:
    """(C, H, W) of a timm model's input: as it was built, or as its weights' configuration has
    it."""
    config = getattr(model, "pretrained_cfg", None)
    config = {} if config is None else dict(config) if hasattr(config, "keys") else vars(config)
    channels, *size = config.get("input_size") or (3, 224, 224)
    built = getattr(model, "patch_embed", None)
    size = list(getattr(built, "img_size", None) or size)
    convolution = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    channels = channels if convolution is None else convolution.in_channels
    if len(size) != 2:
        raise InputError(
            message(
                f"the size of the images that {name!r} reads is not known",
                then=[f"relprop check --model {name} INPUT"],
            )
        )
    return channels, size[0], size[1]
