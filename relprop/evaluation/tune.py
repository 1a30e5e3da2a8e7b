"""``tune``: do other options of a method serve a metric better than its defaults? Chosen on some
samples, judged on others."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from torch import Tensor, nn

from relprop.data import Source
from relprop.error_boundary import guarded
from relprop.errors import OptionError
from relprop.evaluation.base import Interval
from relprop.evaluation.entries import Entry
from relprop.evaluation.image_task import ImageTask
from relprop.evaluation.measures import Measure
from relprop.evaluation.table import ENOUGH, Column, Numbers, interval
from relprop.evaluation.tasks import Task
from relprop.evaluation.text_task import TextTask
from relprop.evaluation.work import measured_numbers
from relprop.methods import method_named
from relprop.rules import PRESETS, epsilon, gamma
from relprop.runner.fusion import FUSIONS
from relprop.runner.question import Question

GAMMAS = (0.0, 0.05, 0.1, 0.5, 1.0, 2.0, 10.0)
EPSILONS = (1e-6, 1e-3, 1e-2, 1e-1, 1.0)
#: Rule sets whose linear layers may take another rule.
TUNED = ("attnlrp", "cp_lrp", "epsilon", "lrp")
LINEAR = ("Linear", "Conv1D")  # by name: the second is transformers', of GPT-2
FOLDS = 2
DEFAULTS = "defaults"


@guarded
@dataclass(frozen=True)
class Tuned:
    """What ``tune`` found. ``best``: the method with the options that serve the metric best on all
    samples, as ``relprop.explain(model, inputs, **best)`` takes them. ``chosen``: the name of what
    was chosen on each half of the samples. ``gain``: on the halves that did not choose, by how much
    what was chosen is better than the defaults, with its 95 % bootstrap interval over samples (of
    the two choices that were made); an interval that holds 0 is no gain. ``trials``: (name, number
    on all samples), best first."""

    method: str
    column: str
    best: Mapping[str, Any]
    chosen: tuple[str, ...]
    gain: Interval
    trials: tuple[tuple[str, float], ...]

    @property
    def helps(self) -> bool:
        """Whether tuning is better than the defaults on samples that it has not seen."""
        return self.gain.low > 0

    def __str__(self) -> str:
        tried = f"{self.method}: {len(self.trials)} settings tried by {self.column}"
        basis = f"chosen on half of the samples ({'; '.join(dict.fromkeys(self.chosen))})"
        than = f"{self.gain.mean:+.4g} [{self.gain.low:.4g}, {self.gain.high:.4g}]"
        said = "better than" if self.helps else "not shown to be better than"
        return f"{tried}; {basis}, {said} the defaults on the other half: {than}"


@guarded
def tune(
    model: nn.Module,
    data: Source,
    metric: Measure | str,
    *,
    method: str = "transformer_attribution",
    tokenizer: Any = None,
    evaluations: int = 40,
    samples: int | None = None,
    seed: int = 0,
) -> Tuned:
    """Try options of a method on a data set: which heads and layers, γ and ε, ε in the first or the
    last layers alone.

    Each half of the samples chooses the best setting, which is judged on the other half (two-fold
    cross-validation); ``best`` is chosen on all.

    Args:
        data: images or texts (``relprop.data``); ``metric``: a column of their tables by name
            (``"segmentation: mIoU"``, ``"AOPC"``), or a measure, whose first statistic counts.
        method: whose options are tried. ``tokenizer``: for texts.
        evaluations: settings at most, the defaults among them; of more, as many are drawn by
            ``seed``. ``samples``: the first so many of the data set; ``None``: all.

    Raises ``OptionError`` for a method that has none of these options, and what
    ``relprop.evaluation.evaluate`` raises.

    >>> from relprop.demo.model import digit_scene_model
    >>> from relprop.demo.scene_source import DigitScenes
    >>> from relprop.evaluation import tune
    >>> found = tune(digit_scene_model(), DigitScenes(8, seed=1), "segmentation", evaluations=3)
    >>> len(found.trials), found.chosen[0] in dict(found.trials)
    (3, True)
    """
    for name, given in (("evaluations", evaluations), ("samples", samples), ("seed", seed)):
        if not (isinstance(given, int) or (name == "samples" and given is None)):
            raise OptionError(f"{name}={given!r}: a whole number")
    count = len(data) if samples is None else min(samples, len(data))
    if evaluations < 2 or count < 2 * FOLDS:
        fact = f"evaluations={evaluations}, {count} samples: at least 2 and {2 * FOLDS}"
        raise OptionError(fact)
    if not isinstance(metric, str) and not hasattr(metric, "statistics"):
        raise OptionError(f"metric={metric!r}: a column's name, or a measure")
    named: Any = metric.partition(": ") if isinstance(metric, str) else (metric, "", "")
    measure, _, statistic = named  # of which statistic: of none, the first
    task: Task = (
        ImageTask(model, data, (measure,))
        if data.kind == "image"
        else TextTask(model, data, (measure,), tokenizer=tokenizer)
    )
    settings = dict(_settings(method, model))
    if len(settings) < 2:
        raise OptionError(f"tune(method={method!r}): it has no heads, layers, γ or ε to choose")
    drawn = random.Random(seed).sample(list(settings)[1:], min(len(settings), evaluations) - 1)
    tried = {name: settings[name] for name in (DEFAULTS, *drawn)}
    rows = [
        Entry(name, Question(method, {k: v for k, v in o.items() if k != "rules"}, o.get("rules")))
        for name, o in tried.items()
    ]
    columns = [Column(task.measures[0], s) for s in task.measures[0].statistics]
    column = next((c for c in columns if c.statistic.name == statistic), None)
    if statistic and column is None:
        fact = f"metric={metric!r}: {columns[0].measure.name} has no {statistic!r}"
        raise OptionError(fact, then=[f"metric={c.name!r}" for c in columns])
    found = measured_numbers(task, rows, samples)
    if why := found.refused.get(DEFAULTS):
        raise OptionError(f"tune(method={method!r}): {why}")
    return _cross_validated(found, method, tried, column or columns[0])


def _cross_validated(
    found: Numbers, method: str, tried: Mapping[str, Mapping[str, Any]], column: Column
) -> Tuned:
    every = {name: found.tables.get((name, column.measure.name)) for name in tried}
    plain = every[DEFAULTS]
    if plain is None:
        raise OptionError(f"{column.name} says nothing of {method!r}")
    tables = {k: t for k, t in every.items() if t is not None and len(t) == len(plain)}
    sign = 1 if column.higher_is_better else -1

    def defined(table: Tensor) -> int:
        values = column.statistic.values
        return len(table) if values is None else int((~values(table).isnan()).sum())

    def value(name: str, fold: slice) -> float:
        """NaN, or fewer samples than the defaults have, is the worst."""
        number = sign * column.statistic.of(tables[name][fold])
        whole = defined(tables[name][fold]) >= ENOUGH * defined(plain[fold])
        return number if whole and number == number else -math.inf

    def best(fold: slice) -> str:
        return max(tables, key=lambda name: value(name, fold))

    folds = [slice(k, None, FOLDS) for k in range(FOLDS)]
    chosen = [best(fold) for fold in folds]
    tuned = plain.clone()
    for own, other in zip(chosen, reversed(folds), strict=True):
        tuned[other] = tables[own][other]
    gain = interval(column.statistic, 2000, tuned, plain)
    if gain is None:
        raise OptionError(f"{column.name} is not defined on two of these samples")
    if sign < 0:
        gain = Interval(-gain.mean, -gain.high, -gain.low, gain.samples)
    whole = slice(None)
    trials = sorted(tables, key=lambda name: -value(name, whole))
    options = {"method": method, **tried[best(whole)]}
    said = tuple((name, column.statistic.of(tables[name])) for name in trials)
    return Tuned(method, column.name, options, tuple(chosen), gain, said)


def _settings(method: str, model: nn.Module) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Settings by name, the defaults first."""
    yield DEFAULTS, {}
    how = method_named(method, level=None)
    known = how.options()
    if {"head_fusion", "layers"} <= set(known):
        lasts = [None, *(k for k in (1, 2, 3, 4, 6) if k < _blocks(model))]
        for fusion, last in product(FUSIONS, lasts):
            if last is None and fusion == known["head_fusion"]:
                continue  # the defaults
            layers = {} if last is None else {"layers": slice(-last, None)}
            where = "all blocks" if last is None else f"the last {last}"
            yield f"{fusion} over heads, {where}", {"head_fusion": fusion, **layers}
    if "gamma" in known:
        for linear, conv in product(GAMMAS, (None, 0.0, 10.0)):
            said = "" if conv is None else f", {conv:g} on convolutions"
            yield f"γ = {linear:g}{said}", {"gamma": linear, "conv_gamma": conv}
    rules = how.rule_set(known)
    rules = PRESETS[rules] if isinstance(rules, str) else rules
    if rules.name not in TUNED:
        return
    ways = [(f"ε = {e:g}", epsilon(e)) for e in EPSILONS]
    ways += [(f"γ = {g:g}", gamma(g)) for g in (0.1, 0.5, 2.0)]
    for (name, rule), (where, patterns) in product(ways, _halves(model).items()):
        changed = rules
        for pattern in patterns:
            changed = changed.with_rule(pattern, rule)
        yield f"{name} {where}", {"rules": changed}


def _halves(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """Paths of linear layers: all; and, by the number of the block that is in their path, those of
    the first and of the last half."""
    linear = [name for name, m in model.named_modules() if type(m).__name__ in LINEAR]
    numbered = _numbers(linear)
    middle = _blocks(model) / 2
    first = tuple(name for name, n in numbered.items() if n < middle)
    last = tuple(name for name, n in numbered.items() if n >= middle)
    parts = {"in the first blocks": first, "in the last blocks": last}
    return {k: v for k, v in ({"everywhere": tuple(linear)} | parts).items() if v}


def _numbers(names: Sequence[str]) -> dict[str, int]:
    """Of modules in a block, its number: the first in the path."""
    return {name: int(n.group(1)) for name in names if (n := re.search(r"\.(\d+)\.", name))}


def _blocks(model: nn.Module) -> int:
    """How many blocks a model has, by the numbers in its modules' paths."""
    return max(_numbers([name for name, _ in model.named_modules()]).values(), default=0) + 1
