"""A model's own ``generate``: the prompt as the model took it, the tokens after it, and the logits
of each step. Nothing here chooses a token. And the inputs of one pass over prompt and output:
everything that has an entry per position of the prompt, continued as the model does when it
generates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from relprop.adapters.masks import positions_of
from relprop.errors import InputError, OptionError, first_line
from relprop.opening import base_model
from relprop.progress import SHOWN, counting
from relprop.tracer.surroundings import undisturbed

OURS = (
    "max_new_tokens",
    "max_length",
    "return_dict_in_generate",
    "output_logits",
    "inputs",
    "generation_config",
)
SINGLE = ("num_beams", "num_return_sequences", "num_beam_groups")
GIVE = "give what was generated: output_ids="
#: Inputs whose last entry holds on, and those that say 0 of what is text.
REPEATED, TEXT = ("token_type_ids", "decoder_token_type_ids"), ("mm_token_type_ids",)


@dataclass(frozen=True)
class GenConfig:
    """How much to generate, by which options of ``generate``, from which random state."""

    count: int
    options: Mapping[str, Any]
    seed: int


def generated(
    model: Any, named: Mapping[str, Any], stream: str, how: GenConfig
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """What ``model.generate`` gives for the inputs: the prompt (batch, positions) as it took it,
    the ids (batch, steps) after it, and the logits of every step, (batch, vocabulary). Raises
    ``OptionError`` for options that are set here, ``InputError`` where it fails or does not return
    the prompt."""
    _refuse_options(how.options)
    found = _called(model, named, how)
    logits, sequences = getattr(found, "logits", None), getattr(found, "sequences", None)
    steps, prompt = len(logits or ()), named.get(stream)
    if not steps or sequences is None or not _begins_with(sequences[:, :-steps], prompt):
        raise InputError(
            "the model's own generate() does not return the prompt, the output and its logits",
            then=[GIVE],
        )
    return sequences[:, :-steps], sequences[:, -steps:], list(logits or ())


def _begins_with(taken: Tensor, prompt: Tensor | None) -> bool:
    """Whether the model took the prompt as it was given, be it behind tokens of its own."""
    return prompt is None or torch.equal(taken[:, -prompt.shape[1] :], prompt)


def _refuse_options(options: Mapping[str, Any]) -> None:
    if ours := [name for name in OURS if name in options]:
        raise OptionError(
            f"generate={{{ours[0]!r}: ...}}: it is set here",
            then=["max_new_tokens= says how many"],
        )
    if several := [name for name in SINGLE if options.get(name, 1) != 1]:
        raise OptionError(
            f"generate={{{several[0]!r}: ...}}: the steps of one sequence per sample are "
            "explained, sampled or the likeliest",
            then=["call model.generate yourself and give output_ids="],
        )


class _Counted:
    """A streamer, which transformers hands the prompt and then the new tokens: says which one is
    being made, and hands all on to the user's own streamer, if there is one."""

    def __init__(self, begin: Callable[[str], None], own: Any) -> None:
        self.begin, self.own = begin, own
        self.puts = 0

    def put(self, ids: Tensor) -> None:
        """The prompt (batch, positions), a token per sample (batch,), or several of one (1, n)."""
        made = ids.shape[1] if self.puts and ids.dim() == 2 else 1
        for _ in range(made - (self.puts == 1)):  # the first token began with the prompt
            self.begin("")
        self.puts += 1
        if self.own is not None:
            self.own.put(ids)

    def end(self) -> None:
        """No more tokens follow."""
        if self.own is not None:
            self.own.end()


def _called(model: Any, named: Mapping[str, Any], how: GenConfig) -> Any:
    """What ``generate`` returns, greedy unless told otherwise."""
    options = {"do_sample": False, "num_beams": 1, **how.options}
    with undisturbed(model), torch.no_grad(), counting("token", how.count) as begin:
        if SHOWN.get() is not None:
            options["streamer"] = _Counted(begin, options.get("streamer"))
        torch.manual_seed(how.seed)
        try:
            return model.generate(
                **named,
                **options,
                max_new_tokens=how.count,
                return_dict_in_generate=True,
                output_logits=True,
            )
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            fact = f"the model's own generate() fails: {type(error).__name__}: {first_line(error)}"
            raise InputError(fact, then=[GIVE]) from error


def prolonged(
    named: Mapping[str, Any], stream: str, model: Any, ids: Tensor, pad: int = 0
) -> dict[str, Any]:
    """The inputs with ``ids`` after the prompt, which is ``named[stream]``. Raises ``InputError``
    for an input of which it is not known how it goes on."""
    prefix, prompt = stream.removesuffix("input_ids"), named[stream]
    found = dict(named)
    for name, value in named.items():
        if name == stream:
            found[name] = torch.cat([prompt, torch.where(ids < 0, pad, ids).to(prompt.dtype)], 1)
        elif _is_alongside(value, prompt) and name.startswith(prefix):
            found[name] = torch.cat([value, _more(name, prefix, value, ids)], 1)
    if not prefix and "position_ids" not in named:
        found |= positions_of(base_model(model), found)
    return found


def _is_alongside(value: Any, prompt: Tensor) -> bool:
    """Whether an input has an integer for every position of the prompt."""
    integers = isinstance(value, Tensor) and not value.is_floating_point() and value.dim() == 2
    return integers and value.shape[1] == prompt.shape[1]


def _more(name: str, prefix: str, value: Tensor, ids: Tensor) -> Tensor:
    """What an input says of the positions of ``ids``."""
    last, steps = value[:, -1:], ids.shape[1]
    if name == f"{prefix}attention_mask":
        return (ids >= 0).to(value.dtype)
    if name == f"{prefix}position_ids":
        return last + torch.arange(1, steps + 1, device=value.device)
    if name in REPEATED or name in TEXT:
        return (last if name in REPEATED else torch.zeros_like(last)).expand(-1, steps)
    raise InputError(
        f"input {name!r} has an entry for every position of the prompt, and how it goes on is not "
        "known",
        then=["explain each step alone: relprop.explain(model, {... first tokens ...}, token)"],
    )
