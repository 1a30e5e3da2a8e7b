"""What a method returned, checked before anything is made of it: a user's may return anything."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from torch import Tensor, fx

from relprop.errors import OptionError
from relprop.runner.matrix_rows import MatrixRows
from relprop.runner.values import Found, TokenMap
from relprop.tracer.editing import val

if TYPE_CHECKING:
    from relprop.runner.attention_study import AttentionStudy
    from relprop.runner.input_study import InputStudy

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
