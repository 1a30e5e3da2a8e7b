"""From text, pictures and sound to what a model reads, by Hugging Face processors."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn

from relprop.adapters.given import Prepared, cannot_prepare
from relprop.adapters.masks import positions_of
from relprop.adapters.pictures import found_originals, patches, whole_originals
from relprop.adapters.rgb import as_rgb, is_picture
from relprop.errors import AmbiguityWarning, InputError, RelpropError, warn
from relprop.tracer.binding import wrapped
from relprop.tracer.modules import safe_getattr
from relprop.tracer.offloaded import home_of

READY = "inputs = processor({}images=picture, do_rescale=False, return_tensors='pt')   # of 0 … 1"


def tokenizer_of(processor: Any) -> Any:
    """The tokenizer that ``processor`` is or holds."""
    return _part(processor, "tokenizer", "convert_ids_to_tokens")


def image_processor_of(processor: Any) -> Any:
    """The image processor that ``processor`` is or holds."""
    return _part(processor, "image_processor", "image_mean")


def feature_extractor_of(processor: Any) -> Any:
    """The extractor of features of sound that ``processor`` is or holds."""
    return _part(processor, "feature_extractor", "sampling_rate")


def is_function_of_pictures(processor: Any) -> bool:
    """Whether ``processor`` is none of the library's, but a function: a torchvision transform."""
    known = (tokenizer_of, image_processor_of, feature_extractor_of)
    return callable(processor) and all(part(processor) is None for part in known)


def _part(processor: Any, name: str, has: str) -> Any:
    """A part of a processor, known by what it can do."""
    inner = getattr(processor, name, None)
    if inner is not None and hasattr(inner, has):
        return inner
    return processor if hasattr(processor, has) else None


def kind_of(thing: Any) -> str:
    """What kind of thing that no model reads this is (the first of a list), or ``""``."""
    first = thing[0] if isinstance(thing, (list, tuple)) and thing else thing
    nested = kind_of(first) if isinstance(first, (list, tuple)) and first else ""
    if is_picture(first) or nested == "a picture":
        return "a picture"
    if isinstance(first, str) or nested == "text":
        return "text"
    return "sound" if isinstance(first, np.ndarray) and first.ndim == 1 else ""


def processed(model: nn.Module, inputs: Any, processor: Any) -> Prepared:
    """What the model reads, from text, pictures, sound, or a dict of the processor's own arguments;
    and where the pictures' parts are in it."""
    images = image_processor_of(processor)
    try:
        if images is not None:
            inputs = _with_pictures(model, inputs, images, files=tokenizer_of(processor) is None)
        made = _made(model, inputs, processor)
    except RelpropError:
        raise
    except (TypeError, ValueError, LookupError, RuntimeError, OSError) as error:
        raise cannot_prepare(inputs, processor, error) from error
    pictures = _pictures_in(inputs)
    _refuse_flattened(pictures, made)
    known = {} if pictures is None or images is None else _pictured(pictures, images, made)
    mask = made.get("attention_mask")
    found = _accepted(model, made, processor)
    untold = isinstance(mask, Tensor) and not (mask.all() or "attention_mask" in found)
    if isinstance(found, Tensor):
        known = {k: dict.fromkeys(["input_0"], *v.values()) for k, v in known.items() if v}
    seen, records = mask != 0 if untold else None, tuple(getattr(found, "encodings", None) or ())
    return Prepared(found, processor, records, seen=seen, **known)


def _with_pictures(model: nn.Module, inputs: Any, images: Any, *, files: bool) -> Any:
    """The same with the pictures in RGB, or in grey where the processor's mean is of one level and
    so is the model. ``files``: texts are names of them."""
    mean = getattr(images, "image_mean", None)
    channels = len(mean) if isinstance(mean, (list, tuple)) else 3
    if safe_getattr(getattr(model, "config", None), "num_channels") == 3:
        channels = 3
    named = isinstance(inputs, Mapping)
    beside = [f"{name}=inputs[{name!r}], " for name in inputs if name != "images"] if named else []
    beside += ["padding=True, "] if named and _several(inputs.get("text")) else []
    ready = READY.format("".join(beside))

    def read(thing: Any, name: str = "") -> Any:
        if isinstance(thing, (list, tuple)):
            some = (read(one, f"picture {i} of {len(thing)}") for i, one in enumerate(thing, 1))
            return type(thing)(some)
        if isinstance(thing, np.ndarray) and thing.ndim == 4:
            return read(list(thing))
        known = is_picture(thing) or isinstance(thing, (str, Tensor)[not (files or named) :])
        return as_rgb(thing, name, channels=channels, ready=ready) if known else thing

    if channels not in (1, 3) or (named and "images" not in inputs):
        return inputs
    return {**inputs, "images": read(inputs["images"])} if named else read(inputs)


def _made(model: nn.Module, inputs: Any, processor: Any) -> Any:
    """What the part of the processor makes of ``inputs`` that is for their kind."""
    tokenizer, images = tokenizer_of(processor), image_processor_of(processor)
    if isinstance(inputs, Mapping):
        pads = tokenizer is not None and _several(inputs.get("text"))
        padding = {"padding": True} if pads else {}
        return processor(**padding | dict(inputs), return_tensors="pt")
    kind, extractor = kind_of(inputs), feature_extractor_of(processor)
    if kind == "text" and tokenizer is not None:
        if isinstance(inputs, tuple) and len(texts_in(inputs)) == 2:
            fact = "a tuple of two texts is read as two samples, not as a pair"
            then = ["a list of two texts, or inputs={'text': FIRST, 'text_pair': SECOND}"]
            warn(AmbiguityWarning(fact, then=then))
        return tokenizer(inputs, return_tensors="pt", padding=_several(inputs))
    if kind == "a picture" and images is not None:
        return images(images=inputs, return_tensors="pt")
    if kind == "a picture" and extractor is not None:
        shape = list(np.shape(inputs[0] if isinstance(inputs, (list, tuple)) else inputs))
        mean = f"sound = sound.mean({int(shape[0] > shape[-1])})   # of the channels"
        raise InputError(
            f"sound of the shape {shape}: one channel, (samples,), is read", then=[mean]
        )
    if kind == "sound" and extractor is not None:
        inputs, rate = waves(inputs), extractor.sampling_rate
        padding = _sound_padding(inputs, extractor)
        made = extractor(inputs, sampling_rate=rate, return_tensors="pt", **padding)
        if padding and "attention_mask" not in inspect.signature(model.forward).parameters:
            lengths = ", ".join(map(str, sorted({len(one) for one in inputs})))
            fact = f"recordings of {lengths} samples are padded, and the model takes no mask"
            raise InputError(fact, then=["explain those of each length alone"])
        return made
    raise TypeError(
        "it is neither a tokenizer, an image processor nor a feature extractor "
        f"that takes {kind or type(inputs).__name__}"
    )


def waves(sound: Any) -> Any:
    """Recordings of whole numbers, which are levels (8 bits and others without a sign around their
    middle), as numbers from -1 to 1, and all in single precision; what is none as it is."""
    if isinstance(sound, (list, tuple)):
        return [waves(one) for one in sound]
    if not isinstance(sound, np.ndarray) or sound.ndim != 1 or sound.dtype.kind not in "iuf":
        return sound
    half = 1.0 if sound.dtype.kind == "f" else 2.0 ** (8 * sound.itemsize - 1)
    return (sound / half - (sound.dtype.kind == "u")).astype(np.float32)


def _several(things: Any) -> bool:
    return isinstance(things, (list, tuple)) and len(things) > 1


def _sound_padding(inputs: Any, extractor: Any) -> dict[str, bool]:
    """Recordings of several lengths are padded with a mask, unless the extractor always pads."""
    padding = inspect.signature(extractor.__call__).parameters.get("padding")
    several = isinstance(inputs, (list, tuple)) and len({len(one) for one in inputs}) > 1
    pads = several and padding is not None and not padding.default
    return {"padding": True, "return_attention_mask": True} if pads else {}


def _refuse_flattened(pictures: Any, made: Any) -> None:
    """Raise ``InputError`` for several pictures of a sample that became samples of their own."""
    nested = isinstance(pictures, (list, tuple)) and any(
        isinstance(one, (list, tuple)) and len(one) > 1 for one in pictures
    )
    if nested and "input_ids" not in made and any(_is_image(v, (4,)) for v in made.values()):
        fact = "a list of lists of pictures: the processor makes a sample of each picture"
        then = ["one list: [picture for pictures in inputs for picture in pictures]"]
        raise InputError(fact, then=then)


def _pictures_in(inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return inputs.get("images")
    return inputs if kind_of(inputs) == "a picture" else None


def texts_in(inputs: Any) -> tuple[str, ...]:
    """The texts that ``inputs`` are, or name as such; none of what is pairs of texts or tensors, or
    beside pictures, for which processors write more into them."""
    named, others = isinstance(inputs, Mapping), ("text_pair", "images")
    texts = inputs.get("text") if named and not any(n in inputs for n in others) else inputs
    some = (texts,) if isinstance(texts, str) else texts
    are = isinstance(some, (list, tuple)) and all(isinstance(text, str) for text in some)
    return tuple(some) if are else ()


def _pictured(pictures: Any, processor: Any, made: Any) -> dict[str, Any]:
    """``Prepared``'s fields of pictures: where in each the model's image lies, if processing made
    one image of each, or which patches the rows are that it cut them into."""
    name = next((name for name in made if _is_image(made[name])), None)
    if name is None:
        return {}
    samples = _by_sample(pictures, len(made["input_ids"]) if "input_ids" in made else None)
    some, value = [picture for sample in samples for picture in sample], made[name]

    def process(picture: Any) -> Tensor:
        tensor: Tensor = processor(images=picture, return_tensors="pt")[name]
        return tensor if tensor.dim() == 2 else tensor.flatten(0, -4).squeeze(0)

    if value.dim() == 2:
        side = getattr(processor, "patch_size", 1)
        rows = patches(some, process, len(value), side if isinstance(side, int) else 1)
        found = whole_originals(some, rows) if rows else []
    else:
        rows, fits = None, len(some) == len(value) or value.dim() == 5
        found = found_originals(some, process, tuple(value.shape[-2:])) if fits else []
    each = iter(found)
    known = {name: tuple(tuple(next(each) for _ in sample) for sample in samples)} if found else {}
    return {"originals": known, "patches": {name: rows} if rows else {}}


def _by_sample(pictures: Any, batch: int | None) -> list[list[Any]]:
    """The pictures of each sample: as they are nested, else one for each, else all for one."""
    some = list(pictures) if isinstance(pictures, (list, tuple)) else [pictures]
    if any(isinstance(one, (list, tuple)) for one in some):
        return [list(one) if isinstance(one, (list, tuple)) else [one] for one in some]
    return [some] if batch == 1 else [[one] for one in some]


def _is_image(value: Any, axes: tuple[int, ...] = (2, 4, 5)) -> bool:
    return isinstance(value, Tensor) and value.dim() in axes and value.is_floating_point()


def _accepted(model: nn.Module, made: Any, processor: Any) -> Any:
    """What the model's ``forward`` takes of it, on the model's device and in its floating type; a
    tensor of its own as its first argument, whatever that is called. Raises ``InputError`` where
    ``forward`` has other names for what a tokenizer makes."""
    takes, (device, dtype) = inspect.signature(model.forward).parameters, home_of(model)
    given = [n for n in made if isinstance(made[n], Tensor)]
    for name in given:
        made[name] = made[name].to(device, dtype if made[name].is_floating_point() else None)
    named = [n for n in given if n in takes]
    if not named and not any(p.kind is p.VAR_KEYWORD for p in takes.values()):
        if len(given) == 1:
            return made[given[0]]
        raise _named_otherwise(given, [*takes], processor)
    for name in [n for n in made if named and n not in takes]:
        del made[name]
    made.update(positions_of(model, made))
    return made


def _named_otherwise(given: list[str], takes: list[str], processor: Any) -> InputError:
    names = ", ".join(f"made[{name!r}]" for name in given[: len(takes)])
    names = f"({names})" if len(takes) > 1 else names
    then = [
        f"made = processor(inputs, padding=True, return_tensors='pt')   # {', '.join(given)}",
        f"relprop.explain(model, {names}, processor=processor)   # in the order of {takes}",
    ]
    if len(takes) == 1:
        first, *lines = wrapped("**tensors", "tensors", "inputs, processor=processor")
        then += [f"or, if it takes a dict, {first}", *lines]
    fact = f"{type(processor).__name__} makes {', '.join(given)}, and forward takes {takes}"
    return InputError(fact, then=then)
