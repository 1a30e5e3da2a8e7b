"""Several methods and several targets on one batch: one capture, one forward pass, and one gradient
per target, shared by all that can."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from relprop.api.attribution import attribute_start, draft_attribution
from relprop.api.judging import Judge, judged
from relprop.api.overattention import explain_start
from relprop.api.run import KEEP, Draft, Request, Run, draft_attention, run_drafts
from relprop.api.session import Session, chosen_inputs, open_session
from relprop.errors import (
    NoAttentionError,
    OptionError,
    RelpropError,
    RollUpError,
    RuleError,
    TargetError,
)
from relprop.explanation import Explanation, join
from relprop.methods import method_named
from relprop.opening import check_devices
from relprop.opening.opening import opened
from relprop.rules import RuleSet
from relprop.targets import Start, possible_starts
from relprop.tracer.binding import Inputs, bind
from relprop.tracer.surroundings import same_chance, undisturbed


@dataclass(frozen=True)
class MethodCall:
    """A method with its options and its rule set (``None``: the method's own)."""

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    rules: RuleSet | str | None = None

    def request(self, keep: frozenset[str], raw: Any) -> Request:
        """The checked request. Raises ``OptionError``."""
        chosen = method_named(self.method, level=None)
        if self.rules is not None and chosen.level == "input" and "relevance" not in chosen.needs:
            raise OptionError(
                f"method {self.method!r} follows gradients, not relevance rules: leave rules= out"
            )
        return Request(chosen, chosen.checked(self.options), keep, raw)


def explain_grid(
    model: nn.Module | str | Any,
    inputs: Any,
    targets: Sequence[Any],
    calls: Sequence[MethodCall],
    *,
    batch_size: int | None,
    precision: str | torch.dtype | None,
    on_unknown: str,
    keep: str | Iterable[str],
    progress: bool,
    processor: Any,
    trust_remote_code: bool,
    explain_inputs: Sequence[str | int] | str | None = None,
    verify: bool = True,
    refused: dict[int, RelpropError] | None = None,
) -> list[list[Any]]:
    """For each target, an explanation by each call. Arguments as ``explain`` has them.

    ``refused``: collects, by the call's place, why a method is not defined here, instead of raising
    it; its explanations are ``None``.
    """
    if not isinstance(targets, (list, tuple)) or not targets:
        raise OptionError("targets is a non-empty list, one entry per explanation")
    requests = [call.request(_kept(keep), None) for call in calls]
    model, prepared = opened(model, inputs, processor, trust_remote_code=trust_remote_code)
    requests = [replace(r, raw=prepared) for r in requests]
    rules = [
        r.method.rules if c.rules is None else c.rules for c, r in zip(calls, requests, strict=True)
    ]
    with undisturbed(model), torch.no_grad():
        bound = bind(prepared.inputs)
        check_devices(model, bound)
        chosen = chosen_inputs(bound, explain_inputs)
        size = _part_size(batch_size, bound)
        split = _per_sample(targets, bound.batch)

        def call(bound: Inputs, judge: Judge) -> tuple[list[list[list[Any]]], str]:
            def sessions(part: Inputs) -> list[Session]:
                with same_chance(model):
                    first = open_session(
                        model,
                        part,
                        rules=rules[0],
                        precision=precision,
                        on_unknown=on_unknown,
                        chosen=chosen,
                    )
                return [first.under(r) for r in rules]

            parts: list[list[list[Any]]] = []
            heard = bound.batch if bound.could_be_shared else size
            opened_sessions: list[Session] = []
            for first in _progress(range(0, bound.batch, size), progress):
                if first % heard == 0:
                    judge.hear(bound.select(first, min(first + heard, bound.batch)))
                opened_sessions = opened_sessions or sessions(bound)
                last = min(first + size, bound.batch)
                alone = opened_sessions[0].program.input_specialised
                for i in range(first, last, 1 if alone else size):
                    part = bound.select(i, i + 1 if alone else last)
                    if alone and i:
                        opened_sessions = sessions(part)
                    with same_chance(
                        model
                    ):  # a model that draws random numbers draws the same for every part
                        parts.append(
                            _explained(
                                opened_sessions,
                                part,
                                [cut(i, i + part.batch) for cut in split],
                                [_of_part(r, i, part.batch, bound.batch) for r in requests],
                                refused,
                                partial(judge.compare, opened_sessions[0], part, i % heard),
                            )
                        )
            return parts, judge.said

        parts, said = judged(model, bound, verify, call)
    return [
        [_joined(list(same), said) for same in zip(*rows, strict=True)]
        for rows in zip(*parts, strict=True)
    ]


def _joined(parts: list[Explanation | None], compared: str) -> Explanation | None:
    there = [p for p in parts if p is not None]
    if len(there) < len(parts):
        return None
    whole = join(there)
    return replace(whole, facts={**whole.facts, "compared": compared})


def _explained(
    sessions: list[Session],
    part: Inputs,
    targets: list[Any],
    requests: list[Request],
    refused: dict[int, RelpropError] | None,
    compare: Callable[[Mapping[fx.Node, Any], tuple[fx.Node, ...]], Callable[[], None]],
) -> list[list[Explanation | None]]:
    """One part of the batch: a draft per request, one forward pass, and one gradient per target at
    every node that any of them watches. ``compare``: refuses output values that are not the
    model's, and gives what refuses its gradients."""
    drafts: dict[int, Draft] = {}
    for i, (session, request) in enumerate(zip(sessions, requests, strict=True)):
        with _refusal(i, refused):
            drafts[i] = _draft(session, targets, request)
    if not drafts:
        return [[None] * len(requests) for _ in targets]
    numbered = dict(zip(drafts, run_drafts(list(drafts.values()), part), strict=True))
    runs = list(numbered.values())
    differentiates = compare(runs[0].forward.values, possible_starts(runs[0].program, targets))
    for run in runs:
        run.differentiates = differentiates
    watched = tuple(
        dict.fromkeys(n for r in runs if "gradient" in r.request.needs for n in r.watch)
    )
    if watched:
        differentiates()
    rows = []
    for i, target in enumerate(targets):
        starts: dict[Any, Start] = {
            r.session.rules: r.start(target)
            for r in {run.session.rules: run for run in runs}.values()
        }
        gradients = (
            runs[0].forward.gradients(
                next(iter(starts.values())).scalars, watched, again=i + 1 < len(targets)
            )
            if watched
            else {}
        )
        row: list[Explanation | None] = [None] * len(requests)
        for number, run in numbered.items():
            with _refusal(number, refused):
                row[number] = _finish(run, target, starts[run.session.rules], gradients)
        rows.append(row)
    return rows


@contextmanager
def _refusal(number: int, refused: dict[int, RelpropError] | None) -> Iterator[None]:
    """Write down what a method says of this model, if that is wanted."""
    try:
        yield
    except (OptionError, NoAttentionError, RollUpError, RuleError) as refusal:
        if refused is None:
            raise
        refused.setdefault(number, refusal)


def explain_once(session: Session, inputs: Inputs, target: Any, request: Request) -> Explanation:
    """One request for one target."""
    found = _explained([session], inputs, [target], [request], None, lambda *_: lambda: None)[0][0]
    assert found is not None
    return found


def _draft(session: Session, targets: list[Any], request: Request) -> Draft:
    return (draft_attention if request.method.level == "attention" else draft_attribution)(
        session, targets, request
    )


def _finish(
    run: Run, target: Any, start: Start, gradients: Mapping[fx.Node, Tensor]
) -> Explanation:
    mine = gradients if "gradient" in run.request.needs else {}
    return (
        explain_start(run, target, start, mine)
        if run.request.method.level == "attention"
        else attribute_start(run, target, start, mine)
    )


def _kept(keep: str | Iterable[str]) -> frozenset[str]:
    names = frozenset([keep] if isinstance(keep, str) else keep)
    if names - KEEP:
        raise OptionError(f"keep={sorted(names - KEEP)}: there are {', '.join(sorted(KEEP))}")
    return names


def _part_size(batch_size: int | None, inputs: Inputs) -> int:
    if batch_size is None:
        return inputs.batch
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
        raise OptionError(f"batch_size={batch_size!r}: a positive integer or None")
    return batch_size


def _per_sample(targets: Sequence[Any], batch: int) -> list[Any]:
    """For each target a function that cuts out the entries of some samples; a wrong length is
    refused before anything runs."""

    def cutter(target: Any) -> Any:
        if hasattr(target, "__array__") and not isinstance(target, (torch.Tensor, int, float)):
            target = torch.as_tensor(target)
        many = isinstance(target, list) or (isinstance(target, torch.Tensor) and target.dim() > 0)
        if many and len(target) != batch:
            raise TargetError(f"target has {len(target)} entries for a batch of {batch}")
        return lambda first, last: target[first:last] if many else target

    return [cutter(t) for t in targets]


def _of_part(request: Request, first: int, count: int, batch: int) -> Request:
    """The request for some samples: tensors among the options that have one entry per sample are
    cut, and so is what is known of each sample."""
    if count < batch:
        request = replace(
            request,
            options={
                name: _cut(value, first, count, batch) for name, value in request.options.items()
            },
        )
    return replace(request, raw=request.raw.part(first, count))


def _cut(value: Any, first: int, count: int, batch: int) -> Any:
    if isinstance(value, Mapping):
        return {name: _cut(v, first, count, batch) for name, v in value.items()}
    return (
        value[first : first + count]
        if isinstance(value, torch.Tensor) and value.shape[:1] == (batch,)
        else value
    )


def _progress(parts: range, wanted: bool) -> Iterator[int]:
    if not wanted:
        return iter(parts)
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise OptionError("progress=True needs tqdm: pip install tqdm") from None
    return iter(tqdm(parts, desc="explain", unit="part"))
