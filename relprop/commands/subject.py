"""A model by name together with inputs for it: what ``explain``, ``compare`` and ``check`` work
on."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from relprop.adapters import adapter_for
from relprop.adapters.processing import image_processor_of, is_function_of_pictures
from relprop.commands.arguments import ModelArgs
from relprop.commands.one_input import OneInput
from relprop.commands.typical_inputs import typical_call
from relprop.errors import InputError, OptionError, TargetError
from relprop.opening.loading import load
from relprop.opening.opening import open_model
from relprop.opening.wrapped import base_model
from relprop.runs.command import (
    SHIPPED,
    Opened,
    device_named,
    open_named_model,
    tokenizer_of,
)
from relprop.targets import token
from relprop.tracer.binding import bind
from relprop.tracer.modules import safe_getattr
from relprop.tracer.offloaded import home_of

INDICES = re.compile(r"-?\d+(,-?\d+)*")
SAVE_PROCESSOR = (
    "save its tokenizer or image processor into the model's folder: save_pretrained(folder)"
)


@dataclass(frozen=True)
class Subject:
    """A model in eval mode, ``inputs`` and ``processor`` as ``relprop.explain`` takes them, what
    each input is called, and the labels of the model's classes."""

    model: nn.Module
    inputs: Any
    names: tuple[str, ...]
    processor: Any = None
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
            return token(text.removeprefix("token:"), tokenizer_of(self.processor))
        if INDICES.fullmatch(text):
            indices = tuple(int(part) for part in text.split(","))
            return indices if len(indices) > 1 else indices[0]
        model = base_model(self.model)
        if adapter_for(model).label_index(model, text) is not None:
            return text
        near = difflib.get_close_matches(text, self.labels, n=3, cutoff=0.5) or self.labels[:3]
        none = "" if self.labels else ", and no names of classes at all"
        raise TargetError(
            f"--target {text!r}: the model has no class of this name{none}",
            then=[f"--target {label!r}" for label in near] or ["--target 0  # an index"],
        )

    def label(self, target: Any) -> str | None:
        """What the class of an explanation's ``target`` is called, if the model says so."""
        if isinstance(target, str):
            return target
        known = type(target) is int and 0 <= target < len(self.labels)
        return self.labels[target] if known else None

    def tensors(self) -> Any:
        """The inputs as the model is called with them."""
        return open_model(self.model, self.inputs, processor=self.processor)[1]

    def words(self) -> int:
        """How many words, or parts of words, the model reads in a row; 0 if it reads none."""
        ids = [t for t in bind(self.tensors()).tensors if not t.is_floating_point() and t.dim() > 1]
        return max((t.shape[-1] for t in ids), default=0)

    def own_images(self) -> Tensor | None:
        """The model's own images, (batch, C, H, W), the values of each stretched to [0, 1], if it
        reads any."""
        images = [t for t in bind(self.tensors()).tensors if t.dim() == 4 and t.is_floating_point()]
        if not images:
            return None
        image = images[0].detach().float().cpu()
        least, most = (image.amin((1, 2, 3), True), image.amax((1, 2, 3), True))
        return (image - least) / (most - least).clamp(min=1e-12)


def open_subject(args: ModelArgs, *given: OneInput) -> Subject:
    """The model that is asked for, on the device it runs on, with ``given`` as its batch: pictures,
    texts, or a picture and a text.

    Raises ``InputError`` if the model reads something else than what is given.
    """
    opened = open_named_model(
        args.name, device_named(args.device), trust_remote_code=args.trust_remote_code
    )
    for one in given:
        _refuse_unread(args.name, one, opened)
    pictures = [one.picture for one in given if one.picture is not None]
    texts = [one.text for one in given if one.text is not None]
    inputs: Any = texts or pictures
    if texts and pictures:
        inputs = {"text": texts, "images": pictures[0]}
    elif args.max_length is not None:
        if not texts:
            raise OptionError("--max-length is for texts")
        inputs = _cut(texts, args.max_length, opened)
    elif len(given) == 1:
        inputs = inputs[0]
    return _labelled(opened, inputs, tuple(one.title for one in given))


def _refuse_unread(name: str, given: OneInput, opened: Opened) -> None:
    """Refuse a text for a model that reads none, and a picture likewise."""
    texts = hasattr(tokenizer_of(opened.processor), "convert_ids_to_tokens")
    processor, of_timm = opened.processor, getattr(opened.model, "pretrained_cfg", None)
    of_pictures = is_function_of_pictures(processor) or image_processor_of(processor) is not None
    pictures = of_pictures or (processor is None and bool(of_timm))
    if (given.text is None or texts) and (given.picture is None or pictures):
        return
    read = [what for what, known in (("texts", texts), ("pictures", pictures)) if known]
    reads = " and ".join(read) or "neither texts nor pictures by itself"
    no_file = given.picture is None and given.name == "text"
    raise InputError(
        f"{given.kind} is given, and the model {name!r} reads {reads}"
        + (f"; there is no file {given.text!r}" if no_file else ""),
        then=[] if read else [SAVE_PROCESSOR],
    )


def _cut(texts: list[str], max_length: int, opened: Opened) -> Any:
    """Texts as their first tokens."""
    tokenizer = tokenizer_of(opened.processor)
    how = {"return_tensors": "pt", "truncation": True, "max_length": max_length}
    return tokenizer(texts, padding=len(texts) > 1, **how).to(home_of(opened.model)[0])


def typical_subject(args: ModelArgs) -> Subject:
    """The model that is asked for with an input of the shape it takes and random contents: enough
    to see what it is made of, not to explain."""
    device = device_named(args.device)
    if args.name in SHIPPED:
        model = open_named_model(args.name, device).model
    else:
        model = load(args.name, torch.zeros(1), None, args.trust_remote_code)[0].to(device)
    torch.manual_seed(0)
    if callable(safe_getattr(getattr(model, "config", None), "to_dict")):
        try:
            inputs: Any = {k: v.to(device) for k, v in typical_call(model).items()}
        except Exception as error:
            fact = f"what the model {args.name!r} reads cannot be guessed: {error}"
            raise InputError(fact, then=[f"relprop check --model {args.name} INPUT"]) from error
    else:
        inputs = torch.rand(1, *_image_size(model, args.name), device=device)
    return _labelled(Opened(model), inputs, ("random",))


def _labelled(opened: Opened, inputs: Any, names: tuple[str, ...]) -> Subject:
    model = base_model(opened.model)
    labels = tuple(adapter_for(model).labels(model))
    return Subject(opened.model, inputs, names, opened.processor, labels)


def _image_size(model: Any, name: str) -> tuple[int, int, int]:
    """(C, H, W) of a timm model's input: as it was built, or as its weights' configuration has
    it."""
    config = getattr(model, "pretrained_cfg", None) or {}
    config = config if hasattr(config, "keys") else vars(config)
    channels, *size = config.get("input_size") or (3, 224, 224)
    built = getattr(model, "patch_embed", None)
    size = list(getattr(built, "img_size", None) or size)
    convolution = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    channels = channels if convolution is None else convolution.in_channels
    if len(size) != 2:
        fact = f"the size of the images that {name!r} reads is not known"
        raise InputError(fact, then=[f"relprop check --model {name} INPUT"])
    return channels, size[0], size[1]
