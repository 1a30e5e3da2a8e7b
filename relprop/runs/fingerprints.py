"""What tells one model, tokenizer, transform or option from another, as plain JSON: the parts of a
run's identity."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from relprop.data.functions import ADDRESS, of_callable
from relprop.errors import InputError
from relprop.rules import PRESETS, RuleSet
from relprop.rules.ruleset import registered
from relprop.tracer.modules import safe_getattr
from relprop.tracer.offloaded import tensor_of

NO_SETTINGS = ("_name_or_path", "transformers_version", "dtype")  # of a config
PER_CALL = ("truncation", "padding")  # of a tokenizer: these change from call to call
#: What a tokenizer does beside its vocabulary and its backend.
HABITS = ("truncation_side", "model_input_names", "split_special_tokens", "do_lower_case")
PLACES = ("name_or_path", "_name_or_path", "vocab_file", "merges_file", "tokenizer_file")


def of_model(model: nn.Module) -> dict[str, Any]:
    """Its class, the SHA-256 of its state dict, and that of its settings (the modules as they print
    themselves, a config if it has one).

    Raises ``InputError`` for weights that are nowhere.
    """
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        offloaded = isinstance(value, Tensor) and value.is_meta
        _hash(digest, tensor_of(model, name) if offloaded else value, name)
    settings = [ADDRESS.sub("", repr(model))]
    config: Any = getattr(model, "config", None)
    if callable(safe_getattr(config, "to_dict")):
        known = {k: v for k, v in config.to_dict().items() if k not in NO_SETTINGS}
        settings.append(json.dumps(known, sort_keys=True, default=str))
    weights, own = digest.hexdigest(), _sha("\n".join(settings))
    return {"class": _name(type(model)), "weights": weights, "settings": own}


def of_tokenizer(tokenizer: Any) -> dict[str, Any]:
    """Its class, and the SHA-256 of its vocabulary and of everything it does to a text: of one
    written in Python, what it was made with."""
    facts: list[Any] = [
        sorted(tokenizer.get_vocab().items()),
        {k: str(v) for k, v in sorted(tokenizer.special_tokens_map.items())},
        {k: getattr(tokenizer, k, None) for k in HABITS},
    ]
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        does = json.loads(backend.to_str())
        facts.append({k: v for k, v in does.items() if k not in PER_CALL})
    else:
        made = getattr(tokenizer, "init_kwargs", {}).items()
        facts.append({k: ADDRESS.sub("", str(v)) for k, v in made if k not in PLACES})
    sha256 = _sha(json.dumps(facts, sort_keys=True, default=str))
    return {"class": _name(type(tokenizer)), "sha256": sha256}


def of_value(value: Any) -> Any:
    """An option's value as plain JSON: tensors and rule sets by their hash, functions as
    ``of_callable`` has them."""
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, Mapping):
        return {str(k): of_value(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [of_value(v) for v in value]
    if isinstance(value, Tensor):
        digest = hashlib.sha256()
        _hash(digest, value, "an option")
        return f"tensor {tuple(value.shape)} {digest.hexdigest()}"
    if isinstance(value, RuleSet):
        if PRESETS.get(value.name) == value:
            return value.name
        return f"{value.name} {_sha(ADDRESS.sub('', repr(value)))}"
    return of_callable(value) if callable(value) else ADDRESS.sub("", repr(value))


def of_registered_rules() -> list[str]:
    """The rules that ``register_rule`` put before every rule set."""
    return [ADDRESS.sub("", repr(entry)) for entry in registered()]


def _hash(digest: Any, value: Any, name: str) -> None:
    if not isinstance(value, Tensor):
        digest.update(ADDRESS.sub("", repr(value)).encode())
        return
    if value.is_meta:
        fact = f"the weight {name!r} is on the meta device: it is not loaded"
        raise InputError(fact, then=["load the model whole"])
    digest.update(f"{tuple(value.shape)}{value.dtype}".encode())
    if hasattr(value, "__tensor_flatten__"):  # a quantised weight, made of others
        for inner in value.__tensor_flatten__()[0]:
            _hash(digest, getattr(value, inner), name)
        return
    if value.is_quantized:
        value = value.int_repr()
    plain = value.detach().cpu().contiguous().reshape(-1)
    if plain.numel():
        digest.update(plain.view(torch.uint8).numpy().data)


def _name(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
