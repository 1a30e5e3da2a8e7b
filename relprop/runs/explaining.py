"""``ExplainWork``: every sample of a data set explained, for its predicted class or for its label,
by one method or several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from relprop.adapters import adapter_for
from relprop.data import Sample, Source
from relprop.error_boundary import guarded
from relprop.errors import InputError, OptionError
from relprop.methods import method_named
from relprop.opening.wrapped import base_model
from relprop.runner.ask import ask
from relprop.runner.conditions import Conditions, Memory
from relprop.runner.memory import checked_memory
from relprop.runner.question import Question
from relprop.runs import fingerprints
from relprop.runs.base import Record
from relprop.runs.preparing import Group, Images, Texts
from relprop.runs.probing import Probe, probe
from relprop.runs.stored import COLUMNS, row_of, tensors_of
from relprop.tracer.surroundings import undisturbed

MethodChoice = str | tuple[str, Mapping[str, Any]]


@guarded
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

    columns: Mapping[str, str] = COLUMNS

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
        memory: Memory = "auto",
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
            precision, on_unknown, memory: as ``explain`` has them.

        Raises:
            OptionError: a method, option or target that does not exist, or that the data set does
                not go with.
        """
        if target not in ("predicted", "label"):
            raise OptionError(f"target={target!r}: 'predicted' or 'label'")
        if limit is not None and (not isinstance(limit, int) or limit < 1):
            raise OptionError(f"limit={limit!r}: a positive number of samples")
        if not isinstance(model, nn.Module):
            raise OptionError(f"model is {type(model).__name__}: an nn.Module is needed")
        if not isinstance(source, Source):
            then = ["relprop.data.open_data(...) opens one"]
            raise OptionError(f"source is {type(source).__name__}, no data set", then=then)
        self.model, self.source, self.target = model, source, target
        self.calls = _calls(methods)
        self.precision, self.on_unknown = precision, on_unknown
        self.memory = checked_memory(memory)
        self.samples = len(source) if limit is None else min(limit, len(source))
        texts = source.kind == "text"
        if texts and normalize is not None:
            raise OptionError("normalize is for images; texts go through processor=tokenizer")
        if not texts and processor is not None:
            raise OptionError("processor is for texts; images go through normalize=")
        self.preparation: Images | Texts
        self.preparation = Texts(processor, max_length) if texts else Images(normalize)
        self.classes = model_classes(model, source) if target == "label" else None

    def __len__(self) -> int:
        return self.samples

    def key(self, index: int) -> str:
        """A sample's key; its number if it cannot even be read."""
        try:
            return self.source[index].key
        except Exception:
            return str(index)

    def identity(self) -> dict[str, Any]:
        """The model's class, weights and settings by hash, the data set, target, methods with their
        options, transform or tokenizer, precision."""
        of, rules = fingerprints.of_value, fingerprints.of_registered_rules()
        found = {
            "work": "explain",
            "model": fingerprints.of_model(self.model),
            "data": self.source.identity(),
            "samples": self.samples,
            "target": self.target,
            "classes": self.classes,
            "methods": [[n, c.method, of(c.options), of(c.rules)] for n, c in self.calls.items()],
            "precision": self.precision,
            "on_unknown": self.on_unknown,
            **self.preparation.identity(),
        }
        return found | ({"registered_rules": rules} if rules else {})

    def probe(self) -> Probe | None:
        """What the model computes of fixed numbers, and how it is explained: more than weights and
        settings decide it."""

        def inputs(sample: Sample) -> Any:
            return next(self.preparation.groups([sample], self.model)).inputs

        source, how = self.source.__getitem__, self._how
        return probe(self.model, len(self), source, inputs, self.calls, how)

    @property
    def _how(self) -> Conditions:
        return Conditions(
            precision=self.precision,
            on_unknown=self.on_unknown,
            processor=self.preparation.processor,
            memory=self.memory,
        )

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
    ) -> Iterator[tuple[list[dict[str, Any]], dict[str, Tensor]]]:
        target = None if self.target == "predicted" else [self._label(s) for s in samples]
        questions = list(self.calls.values())
        (explanations,) = ask(self.model, group.inputs, [target], questions, self._how)
        found = zip(self.calls, explanations, strict=True)
        named = {label: explanation for label, explanation in found if explanation is not None}
        classes = class_probabilities(self.model, group.inputs, len(samples))
        for k, sample in enumerate(samples):
            shares = None if classes is None else classes[k]
            rows = [
                {"method": label, "label": sample.label, **row_of(explanation, group, k, shares)}
                for label, explanation in named.items()
            ]
            yield rows, tensors_of(named, group, k)

    def _label(self, sample: Sample) -> int:
        if sample.label is None:
            then = "target='predicted' explains what the model says"
            raise InputError(f"sample {sample.key!r} has no label", then=[then])
        return sample.label if self.classes is None else self.classes[sample.label]


def class_probabilities(model: nn.Module, inputs: Any, batch: int) -> Tensor | None:
    """The softmax of the model's class scores, (batch, classes), in double on the CPU; of a single
    one the sigmoid. ``None`` if its output, or the ``logits`` of it, has another shape."""
    with undisturbed(model), torch.no_grad():
        output = model(**inputs) if hasattr(inputs, "keys") else model(inputs)
    scores = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if not isinstance(scores, Tensor) or not scores.is_floating_point():
        return None
    if scores.dim() != 2 or len(scores) != batch:
        return None
    scores = scores.double().cpu()
    return scores.softmax(1) if scores.shape[1] > 1 else scores.sigmoid()


def _calls(methods: Sequence[MethodChoice] | str) -> dict[str, Question]:
    """The calls by label: the method's name, with its options if it is there more than once."""
    given = [methods] if isinstance(methods, str) else methods
    if not isinstance(given, (list, tuple)):
        raise OptionError(f"methods={methods!r}: a name, or a list of names, is needed")
    for m in given:
        pair = isinstance(m, (list, tuple)) and len(m) == 2 and isinstance(m[1], Mapping)
        if not isinstance(m, str) and not pair:
            raise OptionError(f"methods: {m!r} is neither a name nor a pair of a name and options")
    chosen = [(m, {}) if isinstance(m, str) else (m[0], dict(m[1])) for m in given]
    calls: dict[str, Question] = {}
    for name, options in chosen:
        rules = options.pop("rules", None)
        call = Question(name, options, rules)
        method_named(name, level=None).checked(options)
        several = sum(n == name for n, _ in chosen) > 1
        label = _label_of(call) if several else name
        if label in calls:
            raise OptionError(f"methods has {label} twice")
        calls[label] = call
    if not calls:
        raise OptionError("methods is empty: give names, or pairs of a name and its options")
    return calls


def _label_of(call: Question) -> str:
    shown = dict(call.options)
    if call.rules is not None:
        shown["rules"] = getattr(call.rules, "name", call.rules)
    options = ", ".join(f"{k}={v!r}" for k, v in shown.items())
    return f"{call.method}({options})" if shown else call.method


def model_classes(model: nn.Module, source: Source) -> list[int] | None:
    """The model's class of each of the data set's labels, if both know the names and the model has
    them all."""
    if source.labels is None:
        return None
    adapter = adapter_for(base_model(model))
    found = [adapter.label_index(base_model(model), name) for name in source.labels]
    return [i for i in found if i is not None] if all(i is not None for i in found) else None
