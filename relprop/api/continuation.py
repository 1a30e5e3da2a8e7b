"""What a model generates after a prompt, and the inputs of the one pass that sees prompt and output
together.

Generating is the model's own ``generate``; nothing here chooses a token. The last token is
predicted but read by no step, so it is no input.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from relprop.errors import InputError, OptionError, message
from relprop.opening.wrapped import base_model
from relprop.targets.outputs import CLASSES
from relprop.tracer.binding import Inputs, bind, flatten_output
from relprop.tracer.surroundings import undisturbed

NEW_TOKENS = 20
OURS = (
    "max_new_tokens",
    "max_length",
    "return_dict_in_generate",
    "output_logits",
    "inputs",
    "generation_config",
)
SINGLE = ("num_beams", "num_return_sequences", "num_beam_groups")
REPEATED, TEXT = ("token_type_ids", "decoder_token_type_ids"), ("mm_token_type_ids",)


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
    max_new_tokens: int | None,
    output_ids: Any,
    options: Mapping[str, Any] | None,
    seed: int,
) -> Continuation:
    """The output of ``model`` after ``inputs``, generated now or given. Raises ``InputError`` or
    ``OptionError``."""
    if output_ids is not None and (options is not None or max_new_tokens is not None):
        raise OptionError("output_ids is what was generated: leave max_new_tokens and generate out")
    if callable(getattr(model, "generate", None)) and hasattr(model, "config"):
        return _by_its_own(
            model,
            inputs,
            NEW_TOKENS if max_new_tokens is None else max_new_tokens,
            output_ids,
            dict(options or {}),
            seed,
        )
    return _plain(model, inputs, output_ids)


def _plain(model: nn.Module, inputs: Any, output_ids: Any) -> Continuation:
    """A model without ``generate``: its one tensor of ids, (batch, positions), is continued by
    ``output_ids``."""
    if output_ids is None:
        raise OptionError(
            message(
                f"{type(model).__name__} has no generate()",
                then=[
                    (
                        "give what it generated: output_ids=, (batch, new tokens), −1 where "
                        "a sample has ended"
                    )
                ],
            )
        )
    bound = bind(inputs)
    prompts = [
        n
        for n, t, b in zip(bound.names, bound.tensors, bound.batched, strict=True)
        if b and t.dim() == 2 and not t.is_floating_point()
    ]
    if len(prompts) != 1:
        raise InputError(
            f"{len(prompts)} inputs are (batch, positions) of integers "
            f"({', '.join(prompts) or 'none'}); the prompt of a model without "
            "generate() is the only one"
        )
    (name,) = prompts
    tensors = dict(zip(bound.names, bound.tensors, strict=True))
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
    model: Any, inputs: Any, count: int, output_ids: Any, options: dict[str, Any], seed: int
) -> Continuation:
    """A model that generates: alone after its ``input_ids``, or by a decoder."""
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise OptionError(f"max_new_tokens={count!r}: a positive integer")
    bound = bind(inputs)
    args, named = bound.rebuild(bound.tensors)
    named = {
        **dict(zip([str(getattr(model, "main_input_name", "input_ids"))], args, strict=False)),
        **named,
    }
    named.pop("labels", None)
    decoder = bool(getattr(model.config, "is_encoder_decoder", False))
    stream = "decoder_input_ids" if decoder else "input_ids"
    if not decoder:
        _check_prompt(named, "input_ids", "attention_mask")
    elif stream in named:
        _check_prompt(named, stream, "decoder_attention_mask")
    if output_ids is None:
        prompt, ids, logits = _generate(model, named, stream, count, options, seed)
        mask = named.get("decoder_attention_mask")
        if (
            mask is not None and mask.shape[1] < prompt.shape[1]
        ):  # generate put the decoder's start token before what was given
            named["decoder_attention_mask"] = torch.cat(
                [torch.ones_like(mask[:, : prompt.shape[1] - mask.shape[1]]), mask], 1
            )
    else:
        prompt = named[stream] if stream in named else _decoder_start(model, bound)
        ids, logits = _given(output_ids, prompt), None
        if (
            ids.shape[1] > prompt.shape[1]
            and stream in named
            and bool((ids[:, : prompt.shape[1]] == prompt).all())
        ):
            raise InputError(
                f"output_ids {list(ids.shape)} repeats the prompt: give what comes after "
                f"its {prompt.shape[1]} tokens"
            )
        if stream not in named and ids.shape[1] > 1 and bool((ids[:, :1] == prompt).all()):
            raise InputError(
                "output_ids begins with the decoder's start token: give what comes after "
                "it, output_ids[:, 1:]"
            )
    ids = _ended_at(_end_ids(model, options), ids)
    pad = getattr(model.config, "pad_token_id", None)
    start = _inputs_for({**named, stream: prompt}, stream, model, ids[:, :0])
    if logits is None:
        logits = [_first_logits(model, (), start)]
    whole = _inputs_for(
        {**named, stream: prompt},
        stream,
        model,
        ids[:, :-1],
        int(pad) if isinstance(pad, int) else 0,
    )
    tokens = {n: whole[n] for n in ("input_ids", stream) if n in whole and whole[n].dim() == 2}
    return Continuation(whole, tokens, stream, prompt.shape[1], ids, *_checked_against(logits, ids))


def _check_prompt(named: Mapping[str, Any], ids: str, mask: str) -> None:
    if ids not in named:
        raise InputError(
            f"there is no {ids!r} among the inputs ({', '.join(named)}): it is the "
            "prompt that the model continues"
        )
    given = named.get(mask)
    if given is None:
        return
    if given.dim() != 2:
        raise InputError(
            f"{mask!r} is {list(given.shape)}; one that can be continued is (batch, positions)"
        )
    bad = (given[:, -1] == 0).nonzero().flatten().tolist()
    if bad:
        raise InputError(
            message(
                (
                    f"the prompt of sample {bad[0]} ends in padding, and a model continues "
                    "after the last position"
                ),
                then=["pad on the left: tokenizer.padding_side = 'left'"],
            )
        )


def _generate(
    model: Any, named: dict[str, Any], stream: str, count: int, options: dict[str, Any], seed: int
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The prompt as the model took it, the tokens after it, and each step's logits."""
    ours = [name for name in OURS if name in options]
    several = [name for name in SINGLE if options.get(name, 1) != 1]
    if ours or several:
        raise OptionError(
            message(
                f"generate={{{(ours + several)[0]!r}: ...}}: "
                + (
                    "it is set here"
                    if ours
                    else (
                        "the steps of one sequence per sample are explained, sampled or "
                        "the likeliest"
                    )
                ),
                then=[
                    "max_new_tokens= says how many"
                    if ours
                    else "call model.generate yourself and give output_ids="
                ],
            )
        )
    with undisturbed(model), torch.no_grad():
        torch.manual_seed(seed)
        try:
            found = model.generate(
                **named,
                **{"do_sample": False, "num_beams": 1, **options},
                max_new_tokens=count,
                return_dict_in_generate=True,
                output_logits=True,
            )
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            said = next((line for line in str(error).splitlines() if line.strip()), "")
            raise InputError(
                message(
                    f"the model's own generate() fails: {type(error).__name__}: {said}",
                    then=["give what was generated: output_ids="],
                )
            ) from error
    logits = getattr(found, "logits", None)
    sequences = getattr(found, "sequences", None)
    steps = len(logits or ())
    given = named.get(stream)
    if (
        logits is None
        or sequences is None
        or not steps
        or (
            given is not None
            and not torch.equal(sequences[:, :-steps][:, -given.shape[1] :], given)
        )
    ):
        raise InputError(
            message(
                "the model's own generate() does not return the prompt, the output and its logits",
                then=["give what was generated: output_ids="],
            )
        )
    return sequences[:, :-steps], sequences[:, -steps:], list(logits)


def _decoder_start(model: Any, bound: Inputs) -> Tensor:
    """(batch, 1): the token a decoder starts with."""
    for holder in (getattr(model, "generation_config", None), model.config):
        for name in ("decoder_start_token_id", "bos_token_id"):
            if isinstance(start := getattr(holder, name, None), int):
                return torch.full((bound.batch, 1), start, device=bound.tensors[0].device)
    raise InputError(
        "the model names no token that its decoder starts with: give decoder_input_ids "
        "among the inputs"
    )


def _given(output_ids: Any, prompt: Tensor) -> Tensor:
    ids = torch.as_tensor(output_ids)
    if (
        ids.is_floating_point()
        or ids.dtype == torch.bool
        or ids.dim() != 2
        or len(ids) != len(prompt)
        or not ids.shape[1]
    ):
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
    holders = [
        vars(h) for h in (getattr(model, "generation_config", None), model.config) if h is not None
    ]
    found = (
        options["eos_token_id"]
        if "eos_token_id" in options
        else next((k for h in holders if (k := h.get("eos_token_id")) is not None), None)
    )
    if found is None:
        return ()
    return tuple(int(k) for k in found) if isinstance(found, (list, tuple)) else (int(found),)


def _ended_at(ends: tuple[int, ...], ids: Tensor) -> Tensor:
    """``ids`` with −1 after each sample's first end or −1, without the steps that no sample has."""
    stop = (ids < 0) | torch.isin(ids, torch.tensor(ends, dtype=ids.dtype, device=ids.device))
    over = (ids < 0) | (stop.cumsum(1) - stop.to(torch.long) > 0)
    return torch.where(over, -1, ids)[:, : int((~over).any(0).sum())]


def _inputs_for(
    named: Mapping[str, Any], stream: str, model: Any, ids: Tensor, pad: int = 0
) -> dict[str, Any]:
    """The inputs with ``ids`` after the prompt, everything that has an entry per position of it
    continued as the model does when it generates."""
    prefix = stream.removesuffix("input_ids")
    prompt, steps = named[stream], ids.shape[1]
    found = dict(named)
    for name, value in named.items():
        alongside = (
            isinstance(value, Tensor)
            and not value.is_floating_point()
            and value.dim() == 2
            and value.shape[1] == prompt.shape[1]
        )
        if name == stream:
            found[name] = torch.cat([prompt, torch.where(ids < 0, pad, ids).to(prompt.dtype)], 1)
        elif not alongside or (prefix and not name.startswith(prefix)):
            continue
        elif name == f"{prefix}attention_mask":
            found[name] = torch.cat([value, (ids >= 0).to(value.dtype)], 1)
        elif name == f"{prefix}position_ids":
            found[name] = torch.cat(
                [value, value[:, -1:] + torch.arange(1, steps + 1, device=value.device)], 1
            )
        elif name in REPEATED or name in TEXT:
            found[name] = torch.cat(
                [
                    value,
                    (value[:, -1:] if name in REPEATED else torch.zeros_like(value[:, -1:])).expand(
                        -1, steps
                    ),
                ],
                1,
            )
        else:
            raise InputError(
                message(
                    (
                        f"input {name!r} has an entry for every position of the prompt, and "
                        "how it goes on is not known"
                    ),
                    then=[
                        (
                            "explain each step alone: relprop.explain(model, {... first "
                            "tokens ...}, token)"
                        )
                    ],
                )
            )
    mask = named.get("attention_mask")
    takes_positions = (
        not prefix
        and "position_ids" not in named
        and "position_ids" in inspect.signature(base_model(model).forward).parameters
    )
    if takes_positions and mask is not None and bool((mask == 0).any()):
        seen = torch.cat([mask, torch.ones_like(mask[:, :1]).expand(-1, steps)], 1)
        found["position_ids"] = (seen.long().cumsum(1) - 1).masked_fill(seen == 0, 0)
    return found


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
