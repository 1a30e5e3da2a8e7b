"""Models by id or folder: which library, which class, and what reads their inputs. The libraries
are imported when they are first asked for.

What a folder's settings may ask for is bounded, before anything is made: a model of a billion
layers is refused by its settings, and one that is larger than the machine while it is being made.
"""

from __future__ import annotations

import difflib
import importlib
import json
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import psutil
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)

from relprop.adapters.given import ready
from relprop.errors import InputError
from relprop.opening.rows import Foreign, refusing

ELSEWHERE = (
    "give a folder that save_pretrained wrote, an id that can be reached from "
    "here, or the model itself, loaded by you"
)
#: How files of weights alone are called.
WEIGHTS = (".pth", ".pt", ".bin", ".safetensors", ".ckpt")
Loaded = tuple[nn.Module, object, Foreign]  # the model, its inputs, and what reads them


def load(name: str, inputs: object, processor: Foreign, trust_remote_code: bool) -> Loaded:
    """The model called ``name`` in ``eval`` mode; its inputs; and the processor that was saved with
    it, unless one is given."""
    _refuse_path(name)
    for prefix, source in (("timm:", ""), ("timm/", "hf-hub:timm/"), ("hf-hub:", "hf-hub:")):
        if name.startswith(prefix):
            return _timm(source + name.removeprefix(prefix), name), inputs, processor
    folder = Path(name).expanduser()
    if folder.is_dir():
        config = folder / "config.json"
        if not config.exists():
            holds, then = "no config.json", "give a folder that save_pretrained wrote"
            if (folder / "adapter_config.json").exists():
                holds = "an adapter without its model"
                then = "load it with peft.AutoPeftModel and give the model"
            raise InputError(f"the folder {name!r} holds {holds}", then=[then])
        with refusing(f"config.json in {name!r} cannot be read", "save the model anew"):
            written = json.loads(config.read_text(encoding="utf-8"))
            if not isinstance(written, dict):
                raise TypeError(f"it holds {type(written).__name__}, not settings by name")
        refuse_counts(written, name)
        if "architecture" in written and "model_type" not in written:  # as timm writes it
            return _timm(f"local-dir:{folder}", name), inputs, processor
        name = str(folder)
    elif "_" in name:  # as timm's names are written, and ids that are nobody's are not
        _refuse_near_timm(name)
    return _transformers(name, inputs, processor, trust_remote_code)


def _library(library: str, name: str) -> Foreign:
    try:
        return importlib.import_module(library)
    except ImportError:
        raise InputError(f"the model {name!r} needs {library}: pip install {library}") from None


def _timm(source: str, name: str) -> nn.Module:
    timm = _library("timm", name)
    own, there = source.removeprefix("hf-hub:timm/"), timm.list_models()
    if ":" not in own and own.split(".")[0] not in there:
        then = [f"timm:{n}" for n in _alike(own, there)]
        if then or own == source:
            raise InputError(
                f"timm {timm.__version__} has no model {own!r}",
                then=then or ["timm.list_models() lists them"],
            )
    with refusing(f"{name!r} could not be loaded", ELSEWHERE), bounded(name):
        model: nn.Module = timm.create_model(source, pretrained=True).eval()
        return model


def _transformers(name: str, inputs: object, processor: Foreign, trust_remote_code: bool) -> Loaded:
    """A model of ``transformers``, its inputs, and the processor that was saved with it."""
    transformers = _library("transformers", name)
    try:
        with refusing(f"{name!r} could not be loaded", ELSEWHERE), bounded(name):
            config = _config(transformers, name, trust_remote_code)
            named = _class(config, name, trust_remote_code)
            model = named.from_pretrained(name, config=config).eval()
    except InputError:
        _refuse_misspelt(name)
        raise
    if processor is not None or ready(inputs):
        return model, inputs, processor
    with refusing(
        f"{name!r} has no tokenizer or processor that can be loaded",
        "give one: processor=..., or prepare the inputs yourself and give tensors",
    ):
        found = transformers.AutoProcessor.from_pretrained(
            name, trust_remote_code=trust_remote_code
        )
    tokenizer = getattr(found, "tokenizer", found)
    if not hasattr(tokenizer, "convert_ids_to_tokens"):
        return model, inputs, found
    if len(tokenizer) <= len(tokenizer.all_special_ids):  # made up from the config
        raise InputError(
            f"{name!r} comes without the vocabulary of its tokenizer",
            then=[
                "tokenizer.save_pretrained into the same folder",
                "or give it: processor=tokenizer",
            ],
        )
    return model, inputs, found


def _refuse_misspelt(name: str) -> None:
    """Refuse what is spelt like a folder that is there, or like a model of timm."""
    folder, then = Path(name).expanduser(), []
    if folder.parent.is_dir() and not folder.exists():
        beside = [p.name for p in folder.parent.iterdir() if (p / "config.json").exists()]
        then = [str(folder.parent / n) for n in _alike(folder.name, beside)]
    if then:
        raise InputError(f"there is no folder {name!r} and no such id was found", then=then)
    _refuse_near_timm(name)


def _refuse_near_timm(name: str) -> None:
    """Refuse a name of timm, or what is spelt much like one, without its prefix."""
    if "/" in name or not find_spec("timm"):
        return
    there = importlib.import_module("timm").list_models()
    then = [f"timm:{n}" for n in ([name] if name in there else _alike(name, there))]
    if then:
        raise InputError(f"there is no folder {name!r} and no such id was found", then=then)


def _refuse_path(name: str) -> None:
    """Refuse a file, which is no model by itself, and a path at which there is nothing."""
    path = Path(name).expanduser()
    if path.is_file():
        file, safe = str(path), path.suffix == ".safetensors"
        reads = f"{'safetensors.torch.load_file' if safe else 'torch.load'}({file!r})"
        then = [
            f"model = timm.create_model(NAME, checkpoint_path={file!r})   # of timm's models",
            f"model.load_state_dict({reads})   # of a model that you have made",
        ]
        if (path.parent / "config.json").exists():
            then = [f"give the folder, where its settings are: {str(path.parent)!r}"]
        elif path.suffix not in WEIGHTS:
            then = ["give a folder that save_pretrained wrote, or the model itself"]
        raise InputError(f"{name!r} is a file, which does not say what model it is of", then=then)
    written = name.startswith((".", "/", "~")) or "\\" in name or path.suffix in WEIGHTS
    if not path.exists() and (written or (":" not in name and name.count("/") > 1)):
        beside = path.parent.iterdir() if path.parent.is_dir() else ()
        near = [str(path.parent / n) for n in _alike(path.name, [p.name for p in beside])]
        then = near or ["give a path that is there, an id, or the model itself"]
        raise InputError(f"there is no file or folder {name!r}", then=then)


def _alike(name: str, known: Iterable[str]) -> list[str]:
    """Up to three of the names that are spelt, or begin, much like this one."""

    def like(other: str) -> tuple[float, float]:
        parts = (other[: len(name)], other)
        start, whole = (difflib.SequenceMatcher(None, p, name).ratio() for p in parts)
        return max(start, whole), whole

    rated = sorted(((like(n), n) for n in known), key=lambda r: (-r[0][0], -r[0][1], r[1]))
    return [n for (rate, _), n in rated[:3] if rate > 0.6]


def _config(transformers: Foreign, name: str, trust_remote_code: bool) -> Foreign:
    """The model's config. Raises ``InputError`` where it is code that may not run, and where it
    counts more parts than can be."""
    try:
        settings, _ = transformers.PreTrainedConfig.get_config_dict(name)
        refuse_counts(settings, name)
        return transformers.AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code)
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise InputError(
            f"{name!r} comes with code of its own, which is not run unasked",
            then=["read that code; trust_remote_code=True runs it"],
        ) from error


def _class(config: Foreign, name: str, trust_remote_code: bool) -> Foreign:
    """The class that the config names: one of the library's, or, if its code may run, one that
    comes with the model."""
    import transformers
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    named = (getattr(config, "architectures", None) or [""])[0]
    written = (getattr(config, "auto_map", None) or {}).values()
    own = [r for r in written if isinstance(r, str) and r.rpartition(".")[2] == named]
    if own and trust_remote_code:
        return get_class_from_dynamic_module(own[0], name)
    found = getattr(transformers, named, None) if named else None
    if found is not None:
        return found
    fact = "names no architecture"
    if named:
        version = transformers.__version__
        fact = f"names the architecture {named!r}, which transformers {version} does not have"
    raise InputError(
        f"the config of {name!r} {fact}",
        then=["load the model with the class it is of, and give the model"],
    )


#: More layers or labels than this is no model. Sizes are bounded by memory instead.
MOST_PARTS = 10**6
#: More parameters and buffers, each a tensor of its own, than any model has.
MOST_TENSORS = 100_000
_COUNTS = re.compile("layer|block|stage|expert|head|label|depth|group|codebook")
_THEN = "if this is meant, load the model yourself and give it"


def refuse_counts(settings: object, name: str, key: str = "") -> None:
    """Raise ``InputError`` where settings, or settings within them, count more than a million of
    something: libraries make a list of them before the first is built."""
    if isinstance(settings, dict):
        for k, value in settings.items():
            refuse_counts(value, name, str(k))
    elif isinstance(settings, list):
        for value in settings:
            refuse_counts(value, name, key)
    elif isinstance(settings, int) and settings > MOST_PARTS and _COUNTS.search(key):
        number = str(settings) if settings < 10**18 else f"10^{len(str(settings)) - 1}"
        fact = f"the settings of {name!r} ask for {key}={number}, more than {MOST_PARTS}"
        raise InputError(fact, then=[_THEN])


@contextmanager
def bounded(name: str) -> Iterator[None]:
    """Raise ``InputError`` as soon as modules that this thread makes have more tensors than any
    model, or more bytes than memory is free. Of a model made without values nothing has been
    allocated then; of any other, no tensor beyond the limit has been filled."""
    memory = psutil.virtual_memory().available + psutil.swap_memory().free
    thread, made, taken = threading.get_ident(), 0, 0

    def count(module: nn.Module, own: str, tensor: Tensor | None) -> None:
        nonlocal made, taken
        if (
            tensor is None
            or threading.get_ident() != thread
            or getattr(module, own, None) is not None
        ):
            return  # another's, or values for a tensor that has been counted
        made, taken = made + 1, taken + tensor.numel() * tensor.element_size()
        if made > MOST_TENSORS:
            raise InputError(f"{name!r} asks for more than {MOST_TENSORS} parameters", then=[_THEN])
        if taken > memory:
            fact = (
                f"{name!r} takes at least {taken / 1e9:.3g} GB of memory, of which "
                f"{memory / 1e9:.3g} GB are free"
            )
            raise InputError(fact, then=["free memory", _THEN])

    hooks = [
        register_module_parameter_registration_hook(count),
        register_module_buffer_registration_hook(count),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
