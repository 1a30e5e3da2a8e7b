"""What a subject's entry says otherwise than the reference: a sentence for each difference.

Scores are compared as parts of the sample's largest: by 1e-9, or by 30 times as far as they move
where the weights are rounded otherwise, whichever is more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from tools.reference.measure import read

EXACT, MOVES = 1e-9, 30.0
#: What is compared as it is written.
WORDS = ("said", "warned", "model", "streams", "labels", "facts", "whole maps", "identity")
Entry = Mapping[str, Any]


def differences(now: Entry, then: Entry) -> Iterator[str]:
    """All that is otherwise."""
    for key in WORDS:
        yield from _words(key, now.get(key), then.get(key))
    moved = then.get("moved", {})
    worst = max([EXACT, *(MOVES * m for m in moved.values())])
    yield from _scores("", now.get("scores", {}), then.get("scores", {}), moved)
    for way, scores in then.get("ways", {}).items():
        yield from _scores(f"{way}: ", now.get("ways", {}).get(way, {}), scores, moved)
    for way, most in now.get("largest differences", {}).items():
        if most > worst:
            yield f"{way}: differs from the whole batch by {most:.1e}, at most {worst:.1e}"
    for key in ("output", "blocks", "books", "compiled"):
        yield from _numbers(key, now.get(key), then.get(key), worst)


def _words(key: str, now: Any, then: Any) -> Iterator[str]:
    if isinstance(now, dict) and isinstance(then, dict):
        for name in {**then, **now}:
            yield from _words(f"{key}: {name}", now.get(name), then.get(name))
    elif isinstance(now, float) and isinstance(then, float):
        if abs(now - then) > EXACT * max(1.0, abs(then)):
            yield f"{key}: {now}, was {then}"
    elif isinstance(now, list) and isinstance(then, list) and len(now) == len(then):
        for i, (mine, old) in enumerate(zip(now, then, strict=True)):
            yield from _words(f"{key}[{i}]", mine, old)
    elif now != then:
        yield f"{key}: {now!r}, was {then!r}"


def _scores(way: str, now: Entry, then: Entry, moved: Mapping[str, float]) -> Iterator[str]:
    if now.keys() != then.keys():
        yield f"{way}scores of {sorted(now)}, were of {sorted(then)}"
    for key in now.keys() & then.keys():
        mine, old = now[key], then[key]
        if mine["shape"] != old["shape"]:
            yield f"{way}{key}: {mine['shape']} scores, were {old['shape']}"
            continue
        most = max(EXACT, MOVES * moved.get(key, 0.0))
        far = _gap(mine, old)
        if not far <= most:
            yield f"{way}{key}: differs by {far:.1e} of the largest score, at most {most:.1e}"


def _gap(now: Entry, then: Entry) -> float:
    """The largest difference of a score, or of a sum with random signs, which adds up as many, and
    of the largest score itself."""
    if "numbers" in now:
        mine, old = (read(e["numbers"]).reshape(e["shape"]).flatten(1) for e in (now, then))
        largest = old.abs().amax(1).clamp(min=1e-20)
        return _worst((mine - old).abs().amax(1) / largest)
    count = float(torch.tensor(now["shape"][1:]).prod())
    sums = (read(now["sums"]) - read(then["sums"])).abs() / count**0.5
    mine, old = (read(e["largest"]) for e in (now, then))
    return max(_worst(sums), _worst((mine / old - 1).abs()))


def _worst(gaps: Tensor) -> float:
    return float(gaps.nan_to_num(float("inf")).max()) if gaps.numel() else 0.0


def _numbers(key: str, now: Any, then: Any, most: float, scale: float = 0.0) -> Iterator[str]:
    """Numbers anywhere in what is kept under ``key``; books are measured by the sum of all."""
    if isinstance(now, Mapping) and isinstance(then, Mapping):
        if now.keys() != then.keys():
            yield f"{key}: {sorted(now)}, were {sorted(then)}"
        scale = max(map(abs, then["all"])) if "all" in then else scale
        for name in now.keys() & then.keys():
            yield from _numbers(f"{key}: {name}", now[name], then[name], most, scale)
    elif isinstance(now, list) and isinstance(then, list) and len(now) == len(then):
        for i, (mine, old) in enumerate(zip(now, then, strict=True)):
            yield from _numbers(f"{key}[{i}]", mine, old, most, scale)
    elif isinstance(now, float) and isinstance(then, float):
        if not abs(now - then) <= most * max(scale, abs(then), 1e-12):
            yield f"{key}: {now:.6g}, was {then:.6g}"
    elif now != then:
        yield f"{key}: {now!r}, was {then!r}"
