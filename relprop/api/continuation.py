"""What a model generates after a prompt, and the inputs of the one pass that sees prompt and output
together.

Generating is the model's own ``generate``; nothing here chooses a token. The last token is
predicted but read by no step, so it is no input.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from relprop.api.generate import GenConfig, generated, prolonged
from relprop.errors import InputError, OptionError
from relprop.targets.outputs import CLASSES
from relprop.tracer.binding import Inputs, bind, flatten_output
from relprop.tracer.modules import safe_getattr
from relprop.tracer.surroundings import undisturbed

NEW_TOKENS = 20


@dataclass(frozen=True)
class Continuation:
    """A prompt with its output.

    ``inputs``: of the pass; ``tokens``: those of them that are ids. ``stream``: which holds the
    output, after ``prompt`` positions. ``ids`` (batch, steps): the tokens, −1 after a sample's end.
    ``seen`` (batch, steps): the logits of those tokens when they were generated (NaN: unknown),
    ``scale`` the largest logits beside them.
    """

    inputs: Any
    tokens: Mapping[str, Tensor]
    stream: str
    prompt: int
    ids: Tensor
    seen: Tensor
    scale: Tensor


def continued(
    model: nn.Module,
    inputs: Any,
    *,
    max_new_tokens: int | None = None,
    output_ids: Any = None,
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
    may_repeat: bool = False,
) -> Continuation:
    """The output of ``model`` after ``inputs``, generated now or given; ``may_repeat``: it may
    begin with the prompt, as the model itself wrote it. Raises ``InputError`` or ``OptionError``.
    """
    if output_ids is not None and (options is not None or max_new_tokens is not None):
        raise OptionError("output_ids is what was generated: leave max_new_tokens and generate out")
    if options is not None and not isinstance(options, Mapping):
        raise OptionError(f"generate={options!r}: a dict of options for model.generate is needed")
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise OptionError(f"seed={seed!r}: an integer")
    if callable(getattr(model, "generate", None)) and hasattr(model, "config"):
        count = NEW_TOKENS if max_new_tokens is None else max_new_tokens
        how = GenConfig(count, dict(options or {}), seed)
        return _by_its_own(model, inputs, output_ids, how, may_repeat)
    return _plain(model, inputs, output_ids)


def _plain(model: nn.Module, inputs: Any, output_ids: Any) -> Continuation:
    """A model without ``generate``: its one tensor of ids, (batch, positions), is continued by
    ``output_ids``."""
    if output_ids is None:
        how = "output_ids=, (batch, new tokens), −1 where a sample has ended"
        raise OptionError(
            f"{type(model).__name__} has no generate()", then=[f"give what it generated: {how}"]
        )
    bound = bind(inputs)
    tensors = dict(zip(bound.names, bound.tensors, strict=True))
    batched = (n for n, b in zip(bound.names, bound.batched, strict=True) if b)
    prompts = [n for n in batched if tensors[n].dim() == 2 and not tensors[n].is_floating_point()]
    if len(prompts) != 1:
        raise InputError(
            f"{len(prompts)} inputs are (batch, positions) of integers "
            f"({', '.join(prompts) or 'none'}); the prompt of a model without "
            "generate() is the only one"
        )
    (name,) = prompts
    ids = _given(output_ids, tensors[name])
    first = _first_logits(model, *bound.rebuild(bound.tensors))
    extended = torch.cat([tensors[name], ids[:, :-1].clamp(min=0).to(tensors[name].dtype)], 1)
    args, kwargs = bound.rebuild(tuple(extended if n == name else t for n, t in tensors.items()))
    return Continuation(
        args or kwargs,
        {name: extended},
        name,
        tensors[name].shape[1],
        ids,
        *_checked_against([first], ids),
    )


def _by_its_own(
    model: Any, inputs: Any, output_ids: Any, how: GenConfig, may_repeat: bool
) -> Continuation:
    """A model that generates: alone after its ``input_ids``, or by a decoder."""
    if not isinstance(how.count, int) or isinstance(how.count, bool) or how.count < 1:
        raise OptionError(f"max_new_tokens={how.count!r}: a positive integer")
    bound = bind(inputs)
    named = _named(model, bound)
    stream = _stream(model, named)
    if output_ids is None:
        prompt, ids, logits = generated(model, named, stream, how)
        named = _with_start(named, prompt)
    else:
        prompt = named[stream] if stream in named else _decoder_start(model, bound)
        ids, logits = _given(output_ids, prompt), []
        if not may_repeat:
            _refuse_repeated(ids, prompt, stream in named)
    ids = _ended_at(_end_ids(model, how.options), ids)
    named[stream] = prompt
    start = prolonged(named, stream, model, ids[:, :0])
    logits = logits or [_first_logits(model, (), start)]
    pad = safe_getattr(model.config, "pad_token_id")
    whole = prolonged(named, stream, model, ids[:, :-1], int(pad) if isinstance(pad, int) else 0)
    tokens = {n: whole[n] for n in ("input_ids", stream) if n in whole and whole[n].dim() == 2}
    return Continuation(whole, tokens, stream, prompt.shape[1], ids, *_checked_against(logits, ids))


def _named(model: Any, bound: Inputs) -> dict[str, Any]:
    """The inputs by the names that ``generate`` takes, without labels."""
    args, named = bound.rebuild(bound.tensors)
    main = str(getattr(model, "main_input_name", "input_ids"))
    named = {**dict(zip([main], args, strict=False)), **named}
    named.pop("labels", None)
    return named


def _stream(model: Any, named: Mapping[str, Any]) -> str:
    """Which input holds the output; the prompt in it is checked."""
    prefix = "decoder_" if safe_getattr(model.config, "is_encoder_decoder") else ""
    stream, mask = f"{prefix}input_ids", f"{prefix}attention_mask"
    if stream not in named and not prefix:
        raise InputError(
            f"there is no {stream!r} among the inputs ({', '.join(named)}): it is the "
            "prompt that the model continues"
        )
    given = named.get(mask) if stream in named else None
    if given is not None and given.dim() != 2:
        raise InputError(
            f"{mask!r} is {list(given.shape)}; one that can be continued is (batch, positions)"
        )
    bad = [] if given is None else (given[:, -1] == 0).nonzero().flatten().tolist()
    if bad:
        raise InputError(
            f"the prompt of sample {bad[0]} ends in padding, and a model continues after the last "
            "position",
            then=["pad on the left: tokenizer.padding_side = 'left'"],
        )
    return stream


def _with_start(named: Mapping[str, Any], prompt: Tensor) -> dict[str, Any]:
    """The inputs with a decoder's mask as long as its prompt, before which ``generate`` may have
    put the decoder's start token."""
    mask: Tensor | None = named.get("decoder_attention_mask")
    if mask is None or mask.shape[1] >= prompt.shape[1]:
        return dict(named)
    missing = prompt.shape[1] - mask.shape[1]
    longer = torch.cat([torch.ones_like(mask[:, :missing]), mask], 1)
    return {**named, "decoder_attention_mask": longer}


def _refuse_repeated(ids: Tensor, prompt: Tensor, given: bool) -> None:
    """Output that begins with the prompt, or with the token that a decoder starts with."""
    count = prompt.shape[1]
    if given and ids.shape[1] > count and bool((ids[:, :count] == prompt).all()):
        raise InputError(
            f"output_ids {list(ids.shape)} repeats the prompt: give what comes after "
            f"its {count} tokens"
        )
    if not given and ids.shape[1] > 1 and bool((ids[:, :1] == prompt).all()):
        raise InputError(
            "output_ids begins with the decoder's start token: give what comes after "
            "it, output_ids[:, 1:]"
        )


def _decoder_start(model: Any, bound: Inputs) -> Tensor:
    """(batch, 1): the token a decoder starts with."""
    for holder in (getattr(model, "generation_config", None), model.config):
        for name in ("decoder_start_token_id", "bos_token_id"):
            if isinstance(start := safe_getattr(holder, name), int):
                return torch.full((bound.batch, 1), start, device=bound.tensors[0].device)
    raise InputError(
        "the model names no token that its decoder starts with: give decoder_input_ids "
        "among the inputs"
    )


def _given(output_ids: Any, prompt: Tensor) -> Tensor:
    try:
        ids = torch.as_tensor(output_ids)
    except (TypeError, ValueError, RuntimeError) as error:
        fact = f"output_ids is {type(output_ids).__name__}: ids, (batch, steps), are needed"
        raise InputError(fact) from error
    whole = not ids.is_floating_point() and ids.dtype != torch.bool
    if not whole or ids.dim() != 2 or len(ids) != len(prompt) or not ids.shape[1]:
        raise InputError(
            f"output_ids is a {str(ids.dtype).removeprefix('torch.')} tensor "
            f"{list(ids.shape)}; it is integers, (batch, new tokens), for a batch of "
            f"{len(prompt)}"
        )
    if bool((ids[:, 0] < 0).any()):
        raise InputError(
            f"output_ids of sample {int((ids[:, 0] < 0).nonzero()[0])} holds no token: "
            "−1 says that a sample has ended"
        )
    return _ended_at((), ids.to(prompt.device))


def _end_ids(model: Any, options: Mapping[str, Any]) -> tuple[int, ...]:
    """The tokens that end a sample: by the options (``None``: none does), else by the model's own
    settings."""
    holders = (getattr(model, "generation_config", None), model.config)
    own = (safe_getattr(holder, "eos_token_id") for holder in holders)
    found = options.get("eos_token_id", next((k for k in own if k is not None), None))
    if found is None:
        return ()
    return tuple(int(k) for k in found) if isinstance(found, (list, tuple)) else (int(found),)


def _ended_at(ends: tuple[int, ...], ids: Tensor) -> Tensor:
    """``ids`` with −1 after each sample's first end or −1, without the steps that no sample has."""
    stop = (ids < 0) | torch.isin(ids, torch.tensor(ends, dtype=ids.dtype, device=ids.device))
    over = (ids < 0) | (stop.cumsum(1) - stop.to(torch.long) > 0)
    return torch.where(over, -1, ids)[:, : int((~over).any(0).sum())]


def _first_logits(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """(batch, vocabulary): what the prompt alone makes the model predict next."""
    with undisturbed(model), torch.no_grad():
        tensors, tree = flatten_output(model(*args, **kwargs))
    floating = {n: t for n, t in zip(tree.names, tensors, strict=True) if t.is_floating_point()}
    logits = floating.get(CLASSES, next(iter(floating.values())) if len(floating) == 1 else None)
    if logits is None or logits.dim() != 3:
        shapes = ", ".join(f"{n} {list(t.shape)}" for n, t in floating.items())
        raise InputError(
            "a model that generates returns logits (batch, positions, vocabulary); this "
            f"one returns {shapes or 'no floating tensor'}"
        )
    return logits[:, -1]


def _checked_against(logits: list[Tensor], ids: Tensor) -> tuple[Tensor, Tensor]:
    """The logit of each step's token and the largest finite one beside it; NaN where the step's
    logits are not known."""
    seen = torch.full(ids.shape, float("nan"), dtype=torch.float64)
    scale = torch.ones(ids.shape, dtype=torch.float64)
    for k, step in enumerate(logits[: ids.shape[1]]):
        wide = step.detach().double().cpu()
        if int(ids[:, k].max()) >= wide.shape[1]:
            raise InputError(
                f"output_ids holds token {int(ids[:, k].max())}; the model's vocabulary "
                f"has {wide.shape[1]}"
            )
        seen[:, k] = wide.gather(1, ids[:, k : k + 1].clamp(min=0).cpu())[:, 0]
        scale[:, k] = torch.where(wide.isfinite(), wide.abs(), 0.0).amax(1)
    return seen, scale
