"""What a subject's entry says otherwise than the reference: a sentence for each difference.

Scores are compared as parts of the sample's largest: by 1e-9, or by 30 times as far as they move
where the weights are rounded otherwise, whichever is more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from tools.reference.numbers import gap, read

EXACT, MOVES = 1e-9, 30.0
#: Ways that should be equal differ by rounding: so many times as much is more.
MORE = 10.0
#: Less than such a part of what Σ|R| was, or as much more, is another one.
MUCH = 0.5
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
    for way, far in now.get("largest differences", {}).items():
        most = max(worst, MORE * then.get("largest differences", {}).get(way, 0.0))
        if far > most:
            yield f"{way}: differs from the whole batch by {far:.1e}, at most {most:.1e}"
    yield from _compiled(now.get("compiled"), then.get("compiled"), worst)
    for key in ("output", "blocks", "books"):
        yield from _numbers(key, now.get(key), then.get(key), worst)


def _compiled(now: Any, then: Any, most: float) -> Iterator[str]:
    """How far a program is from the method is rounding; whether there is one is not."""
    if type(now) is not type(then) or (isinstance(now, str) and now != then):
        yield f"compiled: {now!r}, was {then!r}"
    elif isinstance(now, float) and now > most:
        yield f"compiled: differs from the method by {now:.1e}, at most {most:.1e}"


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
    """The largest difference of a number, or of a sum with random signs, which adds up as many, and
    of the largest number itself."""
    if "numbers" in then:
        samples = now["shape"][0] if len(now["shape"]) > 1 else 1
        mine, old = (read(e["numbers"]).reshape(samples, -1) for e in (now, then))
        return gap(mine, old)
    count = float(torch.tensor(now["shape"][1:] or now["shape"]).prod())
    sums = _gap_of_sums(read(now["sums"]), read(then["sums"])) / count**0.5
    return max(sums, gap(read(now["largest"])[:, None], read(then["largest"])[:, None]))


def _gap_of_sums(now: Tensor, then: Tensor) -> float:
    """The largest difference of sums of parts of the largest number."""
    both = now.isnan() & then.isnan()
    return float(torch.where(both, 0.0, (now - then).abs()).nan_to_num(float("inf")).max())


def _numbers(key: str, now: Any, then: Any, most: float, scale: float = 0.0) -> Iterator[str]:
    """Numbers anywhere in what is kept under ``key``; books are measured by the sum of all."""
    if isinstance(now, Mapping) and isinstance(then, Mapping):
        if "all" in then:  # books, in which what is not there is 0
            scale = max(map(abs, then["all"]))
            sizes = zip(now.get("all", ()), then["all"], strict=True)
            if key.startswith("books") and all(MUCH * b < a < b / MUCH for a, b in sizes):
                now = {**now, "all": then["all"]}  # sizes are what others are measured by
            zero = [0.0] * len(then["all"])
            now, then = ({n: b.get(n, zero) for n in {**then, **now}} for b in (now, then))
        if now.keys() != then.keys():
            yield f"{key}: {sorted(now)}, were {sorted(then)}"
        for name in now.keys() & then.keys():
            yield from _numbers(f"{key}: {name}", now[name], then[name], most, scale)
    elif isinstance(now, list) and isinstance(then, list) and len(now) == len(then):
        for i, (mine, old) in enumerate(zip(now, then, strict=True)):
            yield from _numbers(f"{key}[{i}]", mine, old, most, scale)
    elif isinstance(now, float) and isinstance(then, float):
        both = math.isnan(now) and math.isnan(then)
        if not (both or abs(now - then) <= most * max(scale, abs(then), 1e-12)):
            yield f"{key}: {now:.6g}, was {then:.6g}"
    elif now != then:
        yield f"{key}: {now!r}, was {then!r}"
