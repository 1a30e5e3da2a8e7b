"""What a method finds of a target, before anybody says what the tokens are: over attention, rolled
up if it gives matrices, and at the input; and what it returned, checked before anything is made of
it: a user's may return anything."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor, fx

from relprop.errors import OptionError
from relprop.explanation import Block
from relprop.interpreter.ledger import Ledger
from relprop.rollup import Stream
from relprop.runner.attention_study import AttentionStudy
from relprop.runner.input_study import InputStudy
from relprop.runner.positions import apart
from relprop.runner.rollup import Pairs
from relprop.runner.values import Found, MatrixRows, SiteValues, TokenMap
from relprop.tracer.editing import val

Key = TypeVar("Key")


@dataclass(frozen=True)
class Numbers:
    """What a method finds of a target, before anybody says what the tokens are: by explained input
    the scores and what skip connections alone leave, (batch, tokens) both; ``inputs``, the
    relevance at the input, and ``layers``; ``matrix`` and ``blocks``; all if ``keep=`` named
    them."""

    pairs: Pairs
    inputs: Mapping[str, Tensor] = field(default_factory=dict)
    layers: Mapping[str, Tensor] = field(default_factory=dict)
    matrix: Tensor | None = None
    blocks: tuple[Block, ...] | None = None
    ledger: Ledger | None = None

    def plus(self, other: Numbers, weight: float) -> Numbers:
        """What there is by name, with ``weight`` times another's added."""

        def added(mine: Mapping[Key, Tensor], its: Mapping[Key, Tensor]) -> dict[Key, Tensor]:
            return {n: weight * v + mine[n] if n in mine else weight * v for n, v in its.items()}

        mine, its = (
            {(n, k): t for n, pair in of.pairs.items() for k, t in enumerate(pair)}
            for of in (self, other)
        )
        found = added(mine, its)
        pairs = {n: (found[n, 0], found[n, 1]) for n in other.pairs}
        inputs, layers = added(self.inputs, other.inputs), added(self.layers, other.layers)
        return Numbers(pairs, inputs, layers)


# -- over attention


def over_attention(study: AttentionStudy) -> Numbers:
    """What a method over attention finds, rolled up if it gives matrices."""
    method, keep = study.needs.question.by, study.needs.question.keep
    own = {k: v for k, v in study.settings.items() if k in method.own_options()}
    found = checked_found(study, method.function(study, **own))
    scores = study.rolled_up(found) if is_matrices(found) else _token_maps(found)  # type: ignore[arg-type]
    if not is_matrices(found) or study.mixes_unattended or not study.needs.backward.in_chunks:
        scores = {
            name: (torch.where(study.connected[name].to(part.device), part, 0), identity)
            for name, (part, identity) in scores.items()
        }
    scores = _part_of(scores, study.needs.question.part)
    at_inputs = [(s.name, study.sweep.found(s.leaf)) for s in study.streams if "input" in keep]
    return Numbers(
        {s.name: scores[s.name] for s in study.streams if s.name in scores},
        {name: found[:, 0] for name, found in at_inputs if found is not None},
        _layers(study, found) if "layers" in keep else {},
        _matrix(study, found) if "matrix" in keep else None,
        tuple(map(_block, study.whole)) if "blocks" in keep else None,
        study.sweep.ledger,
    )


def _part_of(pairs: Pairs, part: str | None) -> Pairs:
    """The scores, or what of them speaks for the target, or against it."""
    if part is None:
        return pairs
    sign = 1 if part == "positive" else -1
    return {name: ((sign * s).clamp(min=0), identity) for name, (s, identity) in pairs.items()}


def _token_maps(found: Mapping[str, TokenMap]) -> Pairs:
    return {
        name: (m.scores, torch.zeros_like(m.scores) if m.identity is None else m.identity)
        for name, m in found.items()
    }


def _matrix(study: AttentionStudy, found: Found) -> Tensor:
    """C of Eq. 14. Raises ``OptionError`` for a method that multiplies no matrices."""
    if not is_matrices(found):
        name = study.needs.question.method
        raise OptionError(f"keep='matrix': method {name!r} multiplies no matrices")
    return study.matrix(found)  # type: ignore[arg-type]


def _layers(study: AttentionStudy, found: Found) -> dict[str, Tensor]:
    """The parts of the scores by layer. Raises ``OptionError`` for a method that has none."""
    maps: Mapping[str, TokenMap] = {} if is_matrices(found) else found  # type: ignore[assignment]
    layers = {name: m.layers for name, m in maps.items() if m.layers is not None}
    if not layers:
        name = study.needs.question.method
        raise OptionError(f"keep='layers': method {name!r} has no scores by layer")
    return {
        n: torch.where(study.connected[n][:, None].to(part.device), part, 0)
        for n, part in layers.items()
    }


def _block(values: SiteValues) -> Block:
    """A site as users see it: one sample's leading 1 dropped, rows are queries."""

    def tidy(t: Tensor | None) -> Tensor | None:
        if t is None:
            return None
        t = t.mT if values.site.transposed else t
        return t[:, 0] if t.dim() > 4 and t.shape[1] == 1 else t

    attention = tidy(values.attention)
    assert attention is not None
    return Block(values.site.path, attention, tidy(values.slope), tidy(values.arrived))


# -- at the input


def at_input(study: InputStudy) -> Numbers:
    """``scores`` are the method's numbers summed over the axes that are no positions; nothing is
    rolled up, so ``row`` is ``scores`` and ``identity`` 0."""
    by, ledger = study.needs.question.by, study.sweep.ledger
    own = {k: v for k, v in study.settings.items() if k in by.own_options()}
    found = checked_attributions(study, by.function(study, **own))
    scores = {s.name: _summed(s, found[s.name]) for s in study.streams}
    if study.needs.positions is not None:
        scored, rest = study.needs.positions.scores(study)
        scores = {name: part + scored[name] for name, part in scores.items()}
        ledger = None if ledger is None else apart(ledger, rest)
    kept = "input" in study.needs.question.keep
    pairs = {name: (part, torch.zeros_like(part)) for name, part in scores.items()}
    return Numbers(
        _part_of(pairs, study.needs.question.part),
        {name: found[name].detach() for name in scores} if kept else {},
        ledger=ledger,
    )


def _summed(stream: Stream, attribution: Tensor) -> Tensor:
    """An attribution (batch, *one sample's shape) summed over what are no positions, (batch,
    positions)."""
    batch = len(attribution)
    whole = attribution.detach().reshape(batch, *val(stream.leaf).shape)
    features = [i + 1 for i in range(whole.dim() - 1) if i not in stream.token_axes]
    return (whole.sum(features) if features else whole).reshape(batch, -1)


GUIDE = "docs/write-a-method.md has an example of each"


def is_matrices(found: Collection[object]) -> bool:
    """Whether a method returned a matrix per attention site, not a ``TokenMap`` per input."""
    return all(isinstance(key, fx.Node) for key in found)


def checked_found(study: AttentionStudy, found: object) -> Found:
    """What a method over attention returned. Raises ``OptionError`` that says what is wrong."""
    name = study.needs.question.method
    if not isinstance(found, Mapping) or not found:
        raise _wrong(name, f"returned {_kind(found)}", "a matrix per attention site", _TOKEN_MAPS)
    if is_matrices(found):
        _check_matrices(study, name, found)
        return found
    tokens = {s.name: study.described[s.name]["source"] for s in study.streams}
    for key, value in found.items():
        if key not in tokens:
            known = ", ".join(map(repr, tokens))
            raise _wrong(name, f"returned scores of {key!r}; the inputs are {known}", _TOKEN_MAPS)
        if not isinstance(value, TokenMap):
            raise _wrong(name, f"returned {_kind(value)} for {key!r}", _TOKEN_MAPS)
        shape = len(study.start.scalars), len(tokens[key])
        if not isinstance(value.scores, Tensor) or tuple(value.scores.shape) != shape:
            fact = f"gave {key!r} scores of {_kind(value.scores)}; (batch, tokens) is {list(shape)}"
            raise _wrong(name, fact, _TOKEN_MAPS)
    return found


_TOKEN_MAPS = "{name: relprop.methods.TokenMap(scores) for name, ... }   # scores per token"


def _check_matrices(study: AttentionStudy, name: str, found: Mapping[fx.Node, object]) -> None:
    then = "{v.site.contraction: matrix for v in at.sites}   # of v.attention's shape"
    chosen = {s.contraction: s for s in study.needs.chosen}
    if missing := [site.path for node, site in chosen.items() if node not in found]:
        count = f"{len(chosen) - len(missing)} of {len(chosen)} attention sites"
        fact = f"returned matrices for {count}, none for {', '.join(map(repr, missing[:5]))}"
        raise _wrong(name, fact, then)
    for node, matrix in found.items():
        if node not in chosen:
            raise _wrong(name, f"returned a matrix for {node}, which is no attention site", then)
        if isinstance(matrix, MatrixRows):
            continue
        shape = [len(study.start.scalars), *val(chosen[node].attention).shape]
        if not isinstance(matrix, Tensor) or list(matrix.shape) != shape:
            fact = f"returned {_kind(matrix)} at {chosen[node].path}; its maps are {shape}"
            raise _wrong(name, fact, then)


def checked_attributions(study: InputStudy, found: object) -> Mapping[str, Tensor]:
    """What a method at the input returned. Raises ``OptionError`` that says what is wrong."""
    name, then = study.needs.question.method, "{name: numbers for name in at.values}"
    if not isinstance(found, Mapping):
        raise _wrong(name, f"returned {_kind(found)}", then)
    for key, value in study.values.items():
        if key not in found:
            raise _wrong(name, f"returned nothing for input {key!r}", then)
        given = found[key]
        if not isinstance(given, Tensor) or given.shape != value.shape:
            fact = f"returned {_kind(given)} for input {key!r}, which is {list(value.shape)}"
            raise _wrong(name, fact, then)
    return found


def _kind(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {list(value.shape)}"
    return "an empty mapping" if isinstance(value, Mapping) else type(value).__name__


def _wrong(name: str, fact: str, *then: str) -> OptionError:
    return OptionError(f"method {name!r} {fact}", then=[*then, GUIDE])
