"""``explain_generation``: what a model looked at for each token it generated, all from one pass
over prompt and output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from relprop.adapters import Prepared
from relprop.adapters.processing import tokenizer_of
from relprop.adapters.words import pieces_of
from relprop.api.continuation import Continuation, continued
from relprop.api.explain import conditions_of
from relprop.error_boundary import guarded
from relprop.errors import InputError
from relprop.explanation import Explanation, Generation, TokenScores
from relprop.methods.options import GenerationOptions
from relprop.opening.opening import opened
from relprop.progress import showing
from relprop.rules import RuleSet
from relprop.runner.ask import ask
from relprop.runner.conditions import Conditions, Memory
from relprop.runner.question import Question, checked_keep, move_processor_options
from relprop.targets.index import Nothing, Output


@guarded
def explain_generation(
    model: nn.Module | str | Any,
    inputs: Any,
    *,
    max_new_tokens: int | None = None,
    output_ids: Any = None,
    generate: Mapping[str, Any] | None = None,
    seed: int = 0,
    processor: Any = None,
    method: str = "transformer_attribution",
    rules: RuleSet | str | None = None,
    batch_size: int | None = None,
    precision: str | torch.dtype | None = None,
    on_unknown: str = "generic",
    keep: str | Iterable[str] = (),
    progress: bool | None = None,
    trust_remote_code: bool = False,
    memory: Memory = "auto",
    strict: bool = False,
    hops: int = 0,
    **method_options: Unpack[GenerationOptions],
) -> Generation:
    """One explanation per generated token, over the prompt and the output before it. The model is
    left exactly as it was.

    All steps are explained from one forward pass over prompt and output: step i is the target
    ``(position before token i, token i)``, and because attention is causal it equals ``explain`` on
    the input cut there. The pass is compared with the logits of generation.

    Args:
        model: a causal or an encoder–decoder model with ``generate``; any other causal model
            together with ``output_ids``. A pipeline, id or folder as for ``explain``.
        inputs: the prompt, as for ``explain``: ready, or a text for ``processor``; in a batch padded
            on the left, with its ``attention_mask``.
        max_new_tokens: how many tokens to generate at most (20). A sample ends at its
            end-of-sequence token.
        output_ids: (batch, new tokens), what was generated already, prompt and decoder start left
            out; −1 where a sample has ended.
        generate: options of ``model.generate`` (``do_sample``, ``top_k``, ``eos_token_id``, …);
            greedy by default. One sequence per sample.
        seed: for sampling; the process's own random state is put back.
        hops: how many times what lies on generated tokens is sent on to what these rest on
            (``Generation.sent_on``).

    The other arguments are those of ``explain``.

    Raises:
        InputError: prompts padded on the right, inputs that cannot be continued, a pass that does
            not reproduce what generation saw.
        OptionError: beams or several sequences per sample; and what ``explain`` raises.

    >>> import torch, relprop
    >>> class Tiny(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.embed, self.head = torch.nn.Embedding(9, 4), torch.nn.Linear(4, 9)
    ...     def forward(self, ids):
    ...         x = self.embed(ids)
    ...         later = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
    ...         return self.head(x + (x @ x.mT).masked_fill(later, float("-inf")).softmax(-1) @ x)
    >>> g = relprop.explain_generation(Tiny(), torch.tensor([[1, 2, 3]]), output_ids=torch.tensor([[4, 5]]))
    >>> g.scores.shape, bool((g.scores[0, 0, 3:] == 0).all())
    (torch.Size([1, 2, 4]), True)
    """  # noqa: E501
    question = Question(method, method_options, rules, checked_keep(keep))
    inputs, (question,) = move_processor_options(inputs, [question])
    model, prepared = opened(model, inputs, processor, trust_remote_code=trust_remote_code)
    opening = {"processor": prepared.processor, "trust_remote_code": False}
    how = conditions_of(locals() | opening)
    with showing(progress):
        whole = continued(
            model,
            prepared.inputs,
            max_new_tokens=max_new_tokens,
            output_ids=output_ids,
            options=generate,
            seed=seed,
        )
        steps = steps_of(model, prepared, whole, _targets(whole.ids), question, how)
    _refuse_other_logits(model, whole, torch.stack([e.output for e in steps], 1))
    tokenizer = tokenizer_of(prepared.processor)
    names = _labels(whole, prepared.encodings, tokenizer)
    text = [[_named(t, tokenizer) for t in row] for row in whole.ids.tolist()]
    labelled = tuple(_labelled(e, names) for e in steps)
    made = Generation(labelled, whole.ids.cpu(), text, whole.stream, whole.prompt)
    return made.sent_on(hops) if hops else made


def steps_of(
    model: nn.Module,
    prompt: Prepared,
    whole: Continuation,
    targets: Sequence[object],
    question: Question,
    how: Conditions,
) -> tuple[Explanation, ...]:
    """An explanation per target, from one pass over prompt and output."""
    rows = ask(model, replace(prompt, inputs=whole.inputs), targets, [question], how)
    return tuple(e for row in rows for e in row if e is not None)


def _targets(ids: Tensor) -> list[list[Output | Nothing]]:
    """For each step a target per sample: the token that was generated then, at the position before
    it; nothing after a sample's end."""
    count = ids.shape[1]
    return [
        [Output(None, (k - count, t)) if t >= 0 else Nothing() for t in ids[:, k].tolist()]
        for k in range(count)
    ]


def _refuse_other_logits(model: nn.Module, whole: Continuation, found: Tensor) -> None:
    """The pass must give every generated token the logit that generation saw (or, for given output,
    the first one)."""
    floating = (p for p in model.parameters() if p.is_floating_point())
    precision = max((torch.finfo(p.dtype).eps for p in floating), default=0.0)
    allowed = max(4e-4, 32 * precision) * whole.scale
    off = (found.double().cpu() - whole.seen).abs() > allowed  # a NaN is not known and not off
    off &= whole.ids.cpu() >= 0
    if bool(off.any()):
        sample, step = off.nonzero()[0].tolist()
        raise InputError(
            "one pass over prompt and output does not see what generation saw: at "
            f"step {step} of sample {sample} the token's logit is "
            f"{float(found[sample, step]):.4g}, not {float(whole.seen[sample, step]):.4g}",
            then=[
                "give the attention_mask of a padded prompt",
                "a model whose earlier positions see later ones cannot be explained in one pass:",
                "explain each step alone: relprop.explain(model, {... first tokens ...}, token)",
            ],
        )


def _labels(
    whole: Continuation, known: tuple[Any, ...], tokenizer: Any
) -> dict[str, list[list[str]]]:
    """Each text input's tokens by name: by the tokenizer, or the prompt's by what came with the
    inputs and the output's by its ids."""
    named = {
        n: [[_named(t, tokenizer) for t in row] for row in ids.tolist()]
        for n, ids in whole.tokens.items()
    }
    encodings = known if tokenizer is None else ()
    if encodings and len(encodings) == len(whole.ids) and "input_ids" in named:
        named["input_ids"] = [
            [*e.tokens, *row[len(e.tokens) :]]
            for e, row in zip(encodings, named["input_ids"], strict=True)
        ]
    return named


def _named(token: int, tokenizer: Any) -> str:
    if token < 0:
        return ""
    return str(token) if tokenizer is None else pieces_of([token], tokenizer)[0]


def _labelled(explanation: Explanation, names: Mapping[str, list[list[str]]]) -> Explanation:
    def labelled(s: TokenScores) -> TokenScores:
        rows = names.get(s.name)
        fits = rows is not None and s.source.tolist() == list(range(len(rows[0])))
        return replace(s, tokens=rows) if fits else s

    return replace(explanation, streams={n: labelled(s) for n, s in explanation.streams.items()})
