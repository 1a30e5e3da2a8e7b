"""``compare``: several methods on one batch, from one forward pass; how alike they rank tokens;
and, given a metric, which heads and layers serve it best."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from relprop.api.stability import rank_correlation
from relprop.door import guarded
from relprop.errors import OptionError, RelpropError, first_line, nearest
from relprop.explanation import Explanation
from relprop.methods import GROUPS, method_named
from relprop.runner.ask import ask
from relprop.runner.conditions import Conditions, Memory
from relprop.runner.fusion import FUSIONS
from relprop.runner.memory import checked_memory
from relprop.runner.question import Question, checked_keep
from relprop.views.html_tables import square

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Metric = Callable[[Explanation], Any]


@dataclass(frozen=True)
class Trial:
    """One choice of heads and layers, and what the metric says of it: the mean over samples."""

    method: str
    options: Mapping[str, Any]
    value: float
    explanation: Explanation = field(repr=False)


@guarded
@dataclass(frozen=True)
class Comparison:
    """What ``compare`` found: an explanation per method (by its label), why others are not defined
    for this model, and the trials of a search, best first."""

    explanations: Mapping[str, Explanation]
    refused: Mapping[str, str] = field(default_factory=dict)
    trials: tuple[Trial, ...] = ()

    def __getitem__(self, label: str) -> Explanation:
        """One method's explanation. Raises ``OptionError`` with the list, or with the reason for
        which there is none."""
        if label not in self.explanations:
            why = f" ({self.refused[label]})" if label in self.refused else ""
            raise OptionError(
                f"comparison[{label!r}]: there are {', '.join(self.explanations)}{why}",
                then=nearest(label, self.explanations),
            )
        return self.explanations[label]

    def rank_correlations(self, stream: str | None = None) -> tuple[tuple[str, ...], Tensor]:
        """The methods that score the same tokens, and Spearman's ρ of every two of them on content
        tokens, (methods, methods), meaned over the samples that have one.

        ``stream``: the explained input, where there are several. Methods at the input score pixels
        where those over attention score patches: they are compared if they score as many tokens as
        the first method does. NaN: no sample has two distinct scores by both.
        """
        chosen = {
            label: e if stream is None else e[stream]
            for label, e in self.explanations.items()
            if stream is None or stream in e.streams
        }
        if not chosen:
            there = dict.fromkeys(name for e in self.explanations.values() for name in e.streams)
            raise OptionError(
                f"stream={stream!r}: the explained inputs are {', '.join(map(repr, there))}",
                then=nearest(stream, there),
            )
        first = next(iter(chosen.values()))
        same = {label: e for label, e in chosen.items() if e.scores.shape == first.scores.shape}
        table = torch.full((len(same), len(same)), torch.nan, dtype=torch.float64)
        for i, a in enumerate(same.values()):
            for k, b in enumerate(same.values()):
                pairs = zip(
                    a.scores.double().cpu(),
                    b.scores.double().cpu(),
                    first.content.cpu(),
                    strict=True,
                )
                table[i, k] = torch.stack(
                    [rank_correlation(x[c], y[c]) for x, y, c in pairs]
                ).nanmean()
        return tuple(same), table

    def __str__(self) -> str:
        first = next(iter(self.explanations.values()))
        lines = [
            (
                f"{len(self.explanations)} methods, {len(first)} samples, target "
                f"{first.target[0]!r}{', ...' if len(first) > 1 else ''}"
            )
        ]
        for stream in first.streams:
            names, table = self.rank_correlations(stream)
            wide = max(map(len, names))
            lines += [
                "",
                f"rank correlations of the scores of {stream!r}",
                " " * (wide + 4) + "".join(f"{i + 1:>7}" for i in range(len(names))),
            ]
            lines += [
                f"{i + 1:>3} {name:<{wide}}" + "".join(f"{v:>7.2f}" for v in row)
                for i, (name, row) in enumerate(zip(names, table.tolist(), strict=True))
            ]
        lines += [
            (
                f"{trial.value:>10.4f}  "
                f"{trial.method}({', '.join(f'{k}={v!r}' for k, v in trial.options.items())})"
            )
            for trial in self.trials
        ]
        return "\n".join(
            lines + [f"not defined here: {label}: {why}" for label, why in self.refused.items()]
        )

    def _repr_html_(self) -> str:
        parts = []
        for stream in next(iter(self.explanations.values())).streams:
            parts.append(f"<p>Rank correlations of the scores of {html.escape(repr(stream))}</p>")
            parts.append(square(*self.rank_correlations(stream)))
        refused = [f"not defined here: {label}: {why}" for label, why in self.refused.items()]
        return "".join([*parts, *(f"<p>{html.escape(line)}</p>" for line in refused)])

    def plot(
        self, image: Tensor | None = None, *, sample: int = 0, stream: str | None = None
    ) -> Figure:
        """The methods side by side for one sample: heat maps over ``image``, or tokens shaded by
        score. Each has its own scale; signed ones diverge about 0."""
        from relprop.views.plot import plot_comparison

        return plot_comparison(
            {label: e if stream is None else e[stream] for label, e in self.explanations.items()},
            image,
            sample=sample,
        )


@guarded
def compare(
    model: nn.Module | str | Any,
    inputs: Any,
    methods: Iterable[str | tuple[str, Mapping[str, Any]]] | None = None,
    target: Any = None,
    *,
    metric: Metric | None = None,
    batch_size: int | None = None,
    explain_inputs: Sequence[str | int] | str | None = None,
    precision: str | torch.dtype | None = None,
    on_unknown: str = "generic",
    keep: str | Iterable[str] = (),
    progress: bool = False,
    processor: Any = None,
    trust_remote_code: bool = False,
    verify: bool = True,
    memory: Memory = "auto",
    keep_pictures: bool = True,
    ledger: bool | None = None,
) -> Comparison:
    """Explanations by several methods, from one forward pass and one gradient for all that can
    share them.

    Args:
        methods: names, or pairs of a name and its options (``rules=`` among them); a group
            (``relprop.methods.GROUPS``) stands for its methods: ``"usual"`` (six that differ),
            ``"all"`` whose cost does not grow with the input, those of them over ``"attention"``
            or at the ``"input"``. ``None``: the usual ones.
        metric: a function of an explanation, a number or one per sample; then every ``head_fusion``
            is tried with every range of layers that ends at the output, for each of ``methods``
            that has these options (survey 1.4). Higher is better, unless
            ``metric.higher_is_better`` is false.

    Other arguments as ``explain`` has them. A method that is not defined for this model is listed
    with its reason, not raised. Raises ``OptionError`` for a method that does not exist, and
    whatever ``explain`` raises if no method is defined.

    >>> import torch, relprop
    >>> from relprop.demo.model import digit_scene_model
    >>> c = relprop.compare(digit_scene_model(), torch.rand(2, 1, 32, 32), ["transformer_attribution", "rollout"], target=3)
    >>> list(c.explanations), c.rank_correlations()[1].shape
    (['transformer_attribution', 'rollout'], torch.Size([2, 2]))
    """  # noqa: E501
    questions = _questions(methods, keep, ledger)
    how = Conditions(
        batch_size,
        explain_inputs,
        precision,
        on_unknown,
        progress,
        processor,
        trust_remote_code,
        verify,
        checked_memory(memory),
        keep_pictures,
    )
    refused: dict[int, RelpropError] = {}
    (found,) = ask(model, inputs, [target], list(questions.values()), how, refused)
    explanations = {label: e for label, e in zip(questions, found, strict=True) if e is not None}
    if not explanations:
        raise next(iter(refused.values()))
    reasons = {label: first_line(refused[i]) for i, label in enumerate(questions) if i in refused}
    trials: tuple[Trial, ...] = ()
    if metric is not None:
        tried = _to_try({k: questions[k] for k in explanations}, explanations)
        silent = replace(how, progress=False)
        trials = _tried(tried, ask(model, inputs, [target], tried, silent, {})[0], metric)
    return Comparison(explanations, reasons, trials)


def _questions(
    methods: Iterable[str | tuple[str, Mapping[str, Any]]] | None,
    keep: str | Iterable[str],
    ledger: bool | None,
) -> dict[str, Question]:
    """The questions by label; a method that is there twice is told apart by its options."""
    kept = checked_keep(keep)
    wanted = _wanted(methods)
    questions: dict[str, Question] = {}
    for name, options in wanted:
        method_named(name, level=None)
        several = sum(other == name for other, _ in wanted) > 1
        written = ", ".join(f"{k}={v!r}" for k, v in options.items())
        label = f"{name}({written})" if several and options else name
        if label in questions:
            raise OptionError(f"methods has {label} twice")
        plain = {k: v for k, v in options.items() if k != "rules"}
        questions[label] = Question(name, plain, options.get("rules"), kept, ledger=ledger)
    return questions


def _wanted(
    methods: Iterable[str | tuple[str, Mapping[str, Any]]] | None,
) -> list[tuple[str, Mapping[str, Any]]]:
    """Names with their options, groups written out."""
    methods = "usual" if methods is None else methods
    given = [methods] if isinstance(methods, str) else methods
    given = list(given) if isinstance(given, Iterable) else [given]
    if not given:
        raise OptionError("methods is empty: give names, or pairs of a name and its options")
    for entry in given:
        if not isinstance(entry, str) and not _is_pair(entry):
            raise OptionError(
                f"methods: {entry!r} is neither a name nor a pair of a name and its options",
                then=['methods=["rollout", ("gae", {"layers": [-1]})]'],
            )
    named: list[tuple[str, Mapping[str, Any]]] = []
    for entry in given:
        if isinstance(entry, str):
            named += [(name, {}) for name in GROUPS[entry]()] if entry in GROUPS else [(entry, {})]
        else:
            named.append(entry)
    return named


def _is_pair(entry: object) -> bool:
    """Whether it is a name with its options."""
    return (
        isinstance(entry, (tuple, list))
        and len(entry) == 2
        and isinstance(entry[0], str)
        and isinstance(entry[1], Mapping)
    )


def _to_try(
    questions: Mapping[str, Question], explanations: Mapping[str, Explanation]
) -> list[Question]:
    """Every fusion of heads with every range of layers that ends at the output."""
    tried = [
        replace(
            question,
            options={**question.options, "head_fusion": how, "layers": slice(k, None)},
            keep=frozenset(),
            ledger=False,
        )
        for label, question in questions.items()
        if {"head_fusion", "layers"} <= set(question.by.options())
        for how in FUSIONS
        for k in range(len(explanations[label].facts["attention_sites"]))
    ]
    if not tried:
        raise OptionError(
            f"metric=: none of {', '.join(questions)} has the options head_fusion= and layers="
        )
    return tried


def _tried(
    tried: Sequence[Question], found: Sequence[Explanation | None], metric: Metric
) -> tuple[Trial, ...]:
    """What the metric says of each choice, best first."""
    if not callable(metric):
        raise OptionError(f"metric={metric!r}: a function from an explanation to numbers is needed")
    trials = [
        Trial(q.method, q.options, _mean(metric(e)), e)
        for q, e in zip(tried, found, strict=True)
        if e is not None
    ]
    highest_first = bool(getattr(metric, "higher_is_better", True))
    return tuple(sorted(trials, key=lambda t: t.value, reverse=highest_first))


def _mean(value: Any) -> float:
    try:
        return float(torch.as_tensor(value, dtype=torch.float64).mean())
    except (TypeError, ValueError, RuntimeError) as error:
        fact = f"metric returned {value!r}: a number, or one per sample, is needed"
        raise OptionError(fact) from error
