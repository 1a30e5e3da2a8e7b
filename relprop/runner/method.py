"""A Method: a named way to turn one run into scores. Over attention it gives Eq. 13's matrices,
which the roll-up multiplies, or scores per token that it reads off the run itself; at the input it
gives one number per element of every explained input, and there is nothing to roll up."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from torch import Tensor, fx

from relprop.errors import OptionError, nearest
from relprop.rules import RuleSet
from relprop.runner.conditions import Conditions
from relprop.runner.fusion import check_ratio, fusion_named

if TYPE_CHECKING:
    from relprop.runner.session import Session
    from relprop.tracer.program import Site

Level = Literal["attention", "input"]
Layers = slice | Sequence[int] | None
Options = Mapping[str, Any]
Found = TypeVar("Found")
#: Which other nodes of the graph a method reads at the chosen sites, by its options.
Reads = Callable[["Session", "tuple[Site, ...]", Options], set[fx.Node]]

#: Options that are the same wherever a method has them: which sites (in forward order, −1 nearest
#: the output), rows of Ā divided by their sums,
#: how heads become one map, and which part of each map, its smallest entries, is set to 0 before
#: the roll-up; at the input, whether what position terms receive is their tokens'; of which model
#: gradients are: of the user's own, or of one with the gradient forms of a rule set; and which part
#: of the scores is given, ``"positive"``, max(s, 0), or ``"negative"``, max(−s, 0).
SHARED: dict[str, object] = {
    "layers": None,
    "normalize_rows": False,
    "head_fusion": "mean",
    "discard_ratio": 0.0,
    "positions": False,
    "gradient": "model",
    "part": None,
}
#: What speaks for the target, and what speaks against it: both as numbers that are not negative.
PARTS = (None, "positive", "negative")

#: What processors are told, and beside which of their inputs.
OF_PROCESSORS = {
    **dict.fromkeys(("truncation", "max_length", "padding", "add_special_tokens"), "text"),
    **dict.fromkeys(("do_rescale", "do_resize", "do_normalize", "size"), "images"),
    "sampling_rate": "raw_speech",
}
#: What every call takes beside its method's options, whose misspelt names arrive among these.
OF_EVERY_CALL = (*Conditions.__dataclass_fields__, "method", "rules", "keep", "ledger", "target")

#: Options of every method: the points at which its scores are averaged.
OF_EVERY_METHOD: dict[str, object] = {"average": None}

#: What a method may ask to be computed for it.
NEEDS = frozenset({"gradient", "relevance", "start", "hidden", "features", "values", "inputs"})


@dataclass(frozen=True)
class Method:
    """``function(at, **options)``, with ``at`` an ``AttentionStudy`` or, at the input level, an
    ``InputStudy``.

    Over attention it returns a matrix per contraction node, which is rolled up, or a ``TokenMap``
    per explained input; at the input an attribution per input. ``needs`` says what must be computed
    for it: ``"gradient"``, ``"relevance"``, ``"start"`` (where that starts, without relevance),
    ``"hidden"``, ``"features"``, ``"values"``, ``"inputs"``; ``reads`` which other nodes of the
    graph it looks at. ``rules`` is the rule set it takes by default, or a function of its options
    that makes it. ``shared``: the options that are the same for many methods and are applied for
    it. ``cost``: in forward passes, for one target. Its relevance ``starts_with`` 1 at the target,
    or with y_t, the target's own value, so that signed scores are contributions to y_t. ``whole``
    are its options whose tensors have no entry per sample along their first axis: they are handed
    on as tuples, and never cut with the batch. ``texts``: it is of texts alone.
    """

    name: str
    function: Callable[..., Mapping[Any, Any]]
    needs: frozenset[str] = frozenset()
    class_specific: bool = True
    level: Level = "attention"
    rules: str | Callable[[Options], RuleSet] = "paper"
    shared: tuple[str, ...] = ()
    signed: bool = False
    cost: str = ""
    source: str = ""
    starts_with: Literal["one", "output"] = "one"
    whole: frozenset[str] = frozenset()
    reads: Reads | None = None
    plain: str = ""
    texts: bool = False

    @property
    def description(self) -> str:
        """What its function's docstring begins with, up to the source in parentheses: those
        with a year in them, or at the end."""
        first = (inspect.getdoc(self.function) or "").split("\n\n")[0].replace("\n", " ")
        sources = (m.start() for m in re.finditer(r" \([^()]*\b(19|20)\d\d\b", first))
        whole = first[: next(sources, len(first))].removesuffix(".")
        return re.sub(r" \([^()]*\)$", "", whole)

    @property
    def cheap(self) -> bool:
        """Whether its cost is a number of passes, which does not grow with the input."""
        return self.cost.replace(".", "").isdigit()

    def own_options(self) -> dict[str, object]:
        """The options its function takes, with their defaults."""
        return dict(_defaults(self.function))

    def options(self) -> dict[str, object]:
        """The options it takes, with their defaults."""
        own = self.own_options()
        shared = (*self.shared, *(["gradient"] if "gradient" in self.needs else []))
        return own | {name: SHARED[name] for name in shared if name not in own}

    def checked(self, given: Options) -> Options:
        """All options with their values; an unknown one is refused, with the list."""
        known = self.options() | OF_EVERY_METHOD
        for name in given:
            if name not in known:
                has = ", ".join(sorted(known))
                fact = f"method {self.name!r} has no option {name!r}; it has {has}"
                then = nearest(name, [*known, *OF_EVERY_CALL])
                if kind := OF_PROCESSORS.get(name):
                    then = [f"inputs = {{{kind!r}: inputs, {name!r}: {given[name]!r}}}"]
                raise OptionError(fact, then=then)
        for name, value in given.items():
            if isinstance(known[name], bool) and not isinstance(value, bool):
                raise OptionError(f"{name}={value!r}: True or False")
        found = known | {n: _entries(v) if n in self.whole else v for n, v in given.items()}
        if "head_fusion" in self.shared:
            fusion_named(found["head_fusion"])
        if "part" in self.shared and found["part"] not in PARTS:
            raise OptionError(f"part={found['part']!r}: 'positive', 'negative' or None (both)")
        if "discard_ratio" in self.shared:
            check_ratio(found["discard_ratio"])
        return found

    def rule_set(self, options: Options) -> RuleSet | str:
        """The rules it takes with these options."""
        return self.rules if isinstance(self.rules, str) else self.rules(options)

    def needing(self, options: Options) -> frozenset[str]:
        """What must be computed for it with these options."""
        gradient = frozenset({"gradient"})
        needs = self.needs - gradient if options.get("use_gradient") is False else self.needs
        return needs | gradient if options.get("head_fusion") == "gradient" else needs

    def __str__(self) -> str:
        return f"{self.name}: {self.description}"


@lru_cache(256)
def _defaults(function: Callable[..., object]) -> tuple[tuple[str, object], ...]:
    """The parameters of a method's function but the first, with their defaults."""
    parameters = list(inspect.signature(function).parameters.values())[1:]
    return tuple((p.name, p.default) for p in parameters)


def row_wise(
    *, inputs: int | None = None
) -> Callable[[Callable[..., Found]], Callable[..., Found]]:
    """Decorate a method's function that reads maps by ``at.matrices`` alone: each row of its
    matrices is made of that row of A, ∇A and R, and where maps are large, some rows are made at a
    time. ``inputs``: if there are no more explained inputs than that."""

    def mark(function: Callable[..., Found]) -> Callable[..., Found]:
        function.row_wise = inputs or sys.maxsize  # type: ignore[attr-defined]
        return function

    return mark


def _entries(value: object) -> object:
    """A tensor as the tuple of its entries, each with a first axis of 1; so are those in a dict."""
    if isinstance(value, Mapping):
        return {name: _entries(v) for name, v in value.items()}
    return value.split(1) if isinstance(value, Tensor) and value.dim() else value


#: What ``explain`` takes for a method's name, and looks up by what it is given.
RECOMMENDED = "recommended"
#: Every method by its name. ``relprop.methods`` fills it, and users add their own there.
METHODS: dict[str, Method] = {}


def without_start() -> tuple[str, ...]:
    """The methods in which no relevance starts at the target: it may be any differentiable
    number."""
    return tuple(n for n, m in METHODS.items() if not m.needs & {"relevance", "start"})


def method_named(name: str, level: Level | None = "attention") -> Method:
    """A method by its name; an unknown one is answered with the list, and one of another level than
    ``level`` (``None``: any) is refused."""
    if not isinstance(name, str) or name not in METHODS:
        where = [
            "relprop.explain(..., method='recommended')   # what is given decides, there alone"
        ]
        raise OptionError(
            f"method={name!r} is no method; there are {', '.join(sorted(METHODS))}",
            then=where if name == RECOMMENDED else nearest(name, METHODS),
        )
    found = METHODS[name]
    if level is not None and found.level != level:
        usable = ", ".join(n for n, m in sorted(METHODS.items()) if m.level == level)
        raise OptionError(
            f"method {name!r} works at the {found.level}; here a method at the {level} is "
            f"wanted: {usable}",
            then=[f"relprop.explain(model, inputs, target, method={name!r})"],
        )
    return found


def start_with_output(given: RuleSet | str) -> bool:
    """Whether relevance starts with y_t by these rules: where it does by the method whose own they
    are, or whose own they were before others were added."""
    name = given if isinstance(given, str) else given.name
    own = (m.rule_set(m.options()) for m in METHODS.values() if m.starts_with == "output")
    return name.partition("+")[0] in {r if isinstance(r, str) else r.name for r in own}


def input_level(*, convolutional: bool = False) -> tuple[str, ...]:
    """What to use for a model without token attention, whatever it reads; for one of convolutions
    first LRP-γ, whose maps of such a model are less noisy."""
    found = [n for n, method in METHODS.items() if method.level == "input" and not method.texts]
    first = [n for n in found if convolutional and n == "lrp_gamma"]
    return tuple(dict.fromkeys([*first, *found]))


def chosen_layers(layers: Layers, count: int) -> tuple[int, ...]:
    """The indices that ``layers`` names among ``count`` attention sites in forward order; Python
    indexing, −1 is nearest the output. Raises ``OptionError`` where that is none, or there is no
    such site."""
    if layers is None:
        return tuple(range(count))
    if isinstance(layers, slice):
        parts = [p for p in (layers.start, layers.stop, layers.step) if p is not None]
        if layers.step == 0 or not _are_integers(parts):
            fact = f"layers={layers!r}: a slice of integers, whose step is not 0, is needed"
            raise OptionError(fact)
        chosen = tuple(range(count)[layers])
    elif not _are_integers(layers):
        raise OptionError(
            f"layers={layers!r}: give a slice or a list of integers, in forward order"
        )
    else:
        if bad := [i for i in layers if not -count <= i < count]:
            fact = f"layers={list(layers)}: {bad[0]} is out of range for {count} attention sites"
            raise OptionError(fact)
        chosen = tuple(i % count for i in layers)
    if not chosen:
        raise OptionError(
            f"layers={layers!r} chooses none of the {count} attention sites",
            then=[
                f"layers=None takes all; or give indices from 0 to {count - 1}, or negative "
                "ones, of which -1 is nearest the output"
            ],
        )
    return chosen


def _are_integers(value: object) -> bool:
    """Whether it is a sequence of integers, of which bool is none."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return False
    return all(isinstance(i, int) and not isinstance(i, bool) for i in value)
