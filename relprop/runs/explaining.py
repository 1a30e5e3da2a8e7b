"""``ExplainWork``: every sample of a data set explained, for its predicted class or for its label,
by one method or several."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from relprop.adapters import adapter_for
from relprop.data import Sample, Source
from relprop.errors import InputError, OptionError, message
from relprop.explanation import Explanation, TokenScores
from relprop.methods import method_named
from relprop.opening.wrapped import base_model
from relprop.runner.ask import ask
from relprop.runner.question import Conditions, Question
from relprop.runs import fingerprints
from relprop.runs.base import Record
from relprop.runs.preparing import Group, Images, Preparation, Texts
from relprop.runs.reading import RunResults
from relprop.tracer.surroundings import undisturbed

TARGETS = ("predicted", "label")
MethodChoice = str | tuple[str, Mapping[str, Any]]
PER_TOKEN = ("scores", "row", "content")
LAYOUT = ("source", "spans")


class ExplainWork:
    """Explains every sample of ``source``.

    Rows: one per sample and method, with ``method``; ``target``, what was explained, as JSON;
    ``output``, its value y_t; ``probability``, the softmax of the model's class scores at the
    target, and ``predicted``, their largest (both null for a model without class scores, (batch,
    classes)); ``label`` of the sample; ``rules``; ``layout``, for each explained input its
    ``grid``, ``image`` and ``extent`` as JSON; ``tokens``, for texts, as JSON (a list, or lists by
    input's name); ``truncated``, for texts, 1 if tokens were cut off.

    Tensors: ``scores``, ``row`` and ``content`` (tokens,), see ``Explanation``, without padding;
    for images also ``source`` (tokens,) and ``spans`` (tokens, 2, 2), int32, from which heat maps
    are made. With several methods their names begin with ``<method>.``, with several explained
    inputs ``<input>.`` comes next. ``explanation_of`` puts an ``Explanation`` together again.
    """

    columns: Mapping[str, str] = {
        "method": "string",
        "target": "string",
        "output": "float64",
        "probability": "float64",
        "predicted": "int64",
        "label": "int64",
        "rules": "string",
        "layout": "string",
        "tokens": "string",
        "truncated": "int64",
    }

    def __init__(
        self,
        model: nn.Module,
        source: Source,
        *,
        methods: Sequence[MethodChoice] | str = "transformer_attribution",
        target: str = "predicted",
        normalize: Callable[[Tensor], Tensor] | None = None,
        processor: Any = None,
        max_length: int | None = None,
        limit: int | None = None,
        precision: str | None = None,
        on_unknown: str = "generic",
    ) -> None:
        """See docs/whole-data-sets.md.

        Args:
            model: an ``nn.Module``, where it should run; explained as in ``eval()``, left as it
                was.
            source: the data set.
            methods: names, or pairs of a name and its options (``rules=`` among them), as
                ``compare`` has them.
            target: ``"predicted"`` or ``"label"``. Labels count the classes as the model does,
                unless the data set and the model both know their classes' names, and the model
                knows all of the data set's: then a label is the model's class of that name.
            normalize: from an image (C, H, W) in [0, 1] to what the model takes. It is told apart
                by what it prints.
            processor: the tokenizer, for texts.
            max_length: texts of more tokens are cut; ``None``: where the tokenizer says.
            limit: only the first so many samples.
            precision, on_unknown: as ``explain`` has them.

        Raises:
            OptionError: a method, option or target that does not exist, or that the data set does
                not go with.
        """
        if target not in TARGETS:
            raise OptionError(f"target={target!r}: {' or '.join(map(repr, TARGETS))}")
        if limit is not None and limit < 1:
            raise OptionError(f"limit={limit}: a positive number of samples")
        self.model, self.source, self.target = model, source, target
        self.calls = _calls(methods)
        self.precision, self.on_unknown = precision, on_unknown
        self.samples = len(source) if limit is None else min(limit, len(source))
        if source.kind == "text" and normalize is not None:
            raise OptionError("normalize is for images; texts go through processor=tokenizer")
        self.preparation: Preparation = (
            Texts(processor, max_length) if source.kind == "text" else Images(normalize)
        )
        self.classes = model_classes(model, source) if target == "label" else None

    def __len__(self) -> int:
        return self.samples

    def key(self, index: int) -> str:
        """A sample's key; its number if it cannot even be read."""
        try:
            return self.source[index].key
        except Exception:
            return str(index)

    @cached_property
    def _identity(self) -> dict[str, Any]:
        methods = [
            [
                label,
                call.method,
                fingerprints.of_value(call.options),
                fingerprints.of_value(call.rules),
            ]
            for label, call in self.calls.items()
        ]
        found = {
            "work": "explain",
            "model": fingerprints.of_model(self.model),
            "data": self.source.identity(),
            "samples": self.samples,
            "target": self.target,
            "classes": self.classes,
            "methods": methods,
            "precision": self.precision,
            "on_unknown": self.on_unknown,
            **self.preparation.identity(),
        }
        rules = fingerprints.of_registered_rules()
        return found | ({"registered_rules": rules} if rules else {})

    def identity(self) -> dict[str, Any]:
        """The model's class, weights and settings by hash, the data set, target, methods with their
        options, transform or tokenizer, precision."""
        return self._identity

    def __call__(self, indices: Sequence[int]) -> list[Record]:
        """The records of these samples."""
        samples = [self.source[i] for i in indices]
        found: dict[int, Record] = {}
        for group in self.preparation.groups(samples, self.model):
            mine = [samples[place] for place in group.places]
            for k, (rows, tensors) in enumerate(self._explained(mine, group)):
                place = group.places[k]
                found[place] = Record(indices[place], mine[k].key, tuple(rows), tensors)
        return [found[place] for place in range(len(indices))]

    def _explained(
        self, samples: Sequence[Sample], group: Group
    ) -> list[tuple[list[dict[str, Any]], dict[str, Tensor]]]:
        target = None if self.target == "predicted" else [self._label(s) for s in samples]
        how = Conditions(
            precision=self.precision,
            on_unknown=self.on_unknown,
            processor=self.preparation.processor,
        )
        questions = list(self.calls.values())
        (explanations,) = ask(self.model, group.inputs, [target], questions, how)
        named = {k: e for k, e in zip(self.calls, explanations, strict=True) if e is not None}
        shares = class_probabilities(self.model, group.inputs, len(samples))
        done = []
        for k, sample in enumerate(samples):
            tensors: dict[str, Tensor] = {}
            rows = []
            for label, explanation in named.items():
                rows.append(
                    {
                        "method": label,
                        "label": sample.label,
                        **self._facts(explanation, group, k, None if shares is None else shares[k]),
                    }
                )
                for name, stream in explanation.streams.items():
                    prefix = (f"{label}." if len(named) > 1 else "") + (
                        f"{name}." if len(explanation.streams) > 1 else ""
                    )
                    tensors |= {
                        prefix + n: t
                        for n, t in _tensors(stream, k, _kept(stream, group, k)).items()
                    }
            done.append((rows, tensors))
        return done

    def _facts(
        self, explanation: Explanation, group: Group, k: int, shares: Tensor | None
    ) -> dict[str, Any]:
        target = explanation.target[k]
        of_class = shares is not None and isinstance(target, int)
        tokens = {}
        for name, stream in explanation.streams.items():
            if stream.tokens is not None:
                kept = _kept(stream, group, k)
                tokens[name] = (
                    stream.tokens[k]
                    if kept is None
                    else [
                        t for t, keep in zip(stream.tokens[k], kept.tolist(), strict=True) if keep
                    ]
                )
        layout = {}
        for name, s in explanation.streams.items():
            padded = group.lengths is not None and _kept(s, group, k) is not None
            layout[name] = {
                "grid": s.grid,
                "image": s.image,
                "extent": (group.lengths[k],) if padded and group.lengths is not None else s.extent,
            }
        return {
            "target": json.dumps(target, default=str),
            "output": float(explanation.output[k]),
            "rules": explanation.rules,
            "layout": json.dumps(layout),
            "probability": float(shares[target]) if of_class and shares is not None else None,
            "predicted": None if shares is None else int(shares.argmax()),
            "tokens": json.dumps(
                next(iter(tokens.values())) if len(tokens) == 1 else tokens, ensure_ascii=False
            )
            if tokens
            else None,
            "truncated": None if group.truncated is None else int(group.truncated[k]),
        }

    def _label(self, sample: Sample) -> int:
        if sample.label is None:
            raise InputError(
                message(
                    f"sample {sample.key!r} has no label",
                    then=["target='predicted' explains what the model says"],
                )
            )
        return sample.label if self.classes is None else self.classes[sample.label]


def class_probabilities(model: nn.Module, inputs: Any, batch: int) -> Tensor | None:
    """The softmax of the model's class scores, (batch, classes), in double; ``None`` if its output,
    or the ``logits`` of it, has another shape."""
    with undisturbed(model), torch.no_grad():
        output = model(**inputs) if hasattr(inputs, "keys") else model(inputs)
    scores = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if (
        not isinstance(scores, Tensor)
        or scores.dim() != 2
        or len(scores) != batch
        or not scores.is_floating_point()
    ):
        return None
    return scores.double().softmax(1).cpu()


def explanation_of(results: RunResults, index: int, method: str | None = None) -> Explanation:
    """One sample's explanation, a batch of 1, from a run of ``ExplainWork``: scores, tokens,
    ``heatmap()``; without ledger and blocks.

    ``method``: which one, if there are several. Raises ``OptionError`` for a sample that is not
    done, or without a choice among several methods.
    """
    tensors = results.tensors(index)
    rows = {row["method"]: row for row in results.rows_of(index)}
    if method is None and len(rows) == 1:
        method = next(iter(rows))
    if method is None or method not in rows:
        raise OptionError(f"explanation_of(method={method!r}): there are {', '.join(rows)}")
    row = rows[method]
    layouts = json.loads(row["layout"])
    tokens = json.loads(row["tokens"]) if row["tokens"] else {}
    tokens = (
        {next(iter(layouts)): tokens} if isinstance(tokens, list) and len(layouts) == 1 else tokens
    )
    streams = {}
    for name, layout in layouts.items():
        prefix = (f"{method}." if len(rows) > 1 else "") + (f"{name}." if len(layouts) > 1 else "")
        scores, flow, content = (tensors[prefix + n][None] for n in PER_TOKEN)
        source, spans = (tensors.get(prefix + n) for n in LAYOUT)
        streams[name] = TokenScores(
            name,
            scores,
            flow,
            flow - scores,
            content,
            torch.arange(scores.shape[1]) if source is None else source.long(),
            tokens=[tokens[name]] if name in tokens else None,
            grid=_tuple(layout["grid"]),
            image=_tuple(layout["image"]),
            extent=tuple(layout["extent"]),
            spans=None if spans is None else spans.long(),
        )
    target = json.loads(row["target"])
    target = tuple(target) if isinstance(target, list) else target
    return Explanation(
        streams, (target,), torch.tensor([row["output"]], dtype=torch.float64), method, row["rules"]
    )


def _tensors(stream: TokenScores, k: int, kept: Tensor | None) -> dict[str, Tensor]:
    found = {name: getattr(stream, name)[k].detach().cpu() for name in PER_TOKEN}
    if stream.grid is not None:
        found |= {
            name: t.cpu().int() for name in LAYOUT if (t := getattr(stream, name)) is not None
        }
    return found if kept is None else {name: t[kept] for name, t in found.items()}


def _kept(stream: TokenScores, group: Group, k: int) -> Tensor | None:
    """Which tokens of a text are not made from padding, which is on its right."""
    if group.lengths is None or stream.grid is not None:
        return None
    return stream.source.cpu() < group.lengths[k]


def _tuple(value: Sequence[int] | None) -> tuple[int, ...] | None:
    return None if value is None else tuple(value)


def _calls(methods: Sequence[MethodChoice] | str) -> dict[str, Question]:
    """The calls by label: the method's name, with its options if it is there more than once."""
    chosen = [
        (m, {}) if isinstance(m, str) else (m[0], dict(m[1]))
        for m in ([methods] if isinstance(methods, str) else methods)
    ]
    calls: dict[str, Question] = {}
    for name, options in chosen:
        rules = options.pop("rules", None)
        call = Question(name, options, rules)
        method_named(name, level=None).checked(options)
        shown = options | ({} if rules is None else {"rules": getattr(rules, "name", rules)})
        label = (
            f"{name}({', '.join(f'{k}={v!r}' for k, v in shown.items())})"
            if sum(n == name for n, _ in chosen) > 1 and shown
            else name
        )
        if label in calls:
            raise OptionError(f"methods has {label} twice")
        calls[label] = call
    if not calls:
        raise OptionError("methods is empty: give names, or pairs of a name and its options")
    return calls


def model_classes(model: nn.Module, source: Source) -> list[int] | None:
    """The model's class of each of the data set's labels, if both know the names and the model has
    them all."""
    if source.labels is None:
        return None
    adapter = adapter_for(base_model(model))
    found = [adapter.label_index(base_model(model), name) for name in source.labels]
    return [i for i in found if i is not None] if all(i is not None for i in found) else None
