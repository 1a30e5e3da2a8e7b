"""relprop: explain what a transformer looked at. Any unmodified PyTorch transformer, for a whole
batch, with the books balanced.

>>> import torch, relprop
>>> from relprop.demo.model import digit_scene_model
>>> relprop.explain(digit_scene_model(), torch.rand(1, 1, 32, 32)).scores.shape
torch.Size([1, 65])

Names are imported when they are first asked for (PEP 562), so that ``relprop --help`` does not wait
for PyTorch.
"""
# ruff: noqa: F401 (what type checkers see)

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relprop import (
        adapters,
        data,
        demo,
        errors,
        evaluation,
        interop,
        methods,
        rules,
        runs,
        targets,
        testing,
    )
    from relprop.api.check import check
    from relprop.api.cite import cite
    from relprop.api.compare import compare
    from relprop.api.comparison import Comparison
    from relprop.api.compile import compile, load_explainer
    from relprop.api.explain import explain, explain_many, trace
    from relprop.api.generation import Generation, explain_generation
    from relprop.api.instrument import instrument
    from relprop.api.maximization import Maximization, activation_maximization
    from relprop.api.rounding import rounding_stability
    from relprop.cards.base import Card
    from relprop.cards.card import card
    from relprop.cards.heads import head_view
    from relprop.compiled import Explainer
    from relprop.errors import RelpropError, RelpropWarning
    from relprop.explanation import Citations, Explanation
    from relprop.opening import open_model
    from relprop.reporting import report
    from relprop.rules import Rule, RuleSet, register_rule
    from relprop.storage import load
    from relprop.views import plot

__version__ = "0.1.0"

__all__ = [
    "Explanation",
    "RelpropError",
    "RelpropWarning",
    "Rule",
    "RuleSet",
    "activation_maximization",
    "card",
    "check",
    "cite",
    "compare",
    "compile",
    "explain",
    "explain_generation",
    "explain_many",
    "head_view",
    "instrument",
    "load",
    "load_explainer",
    "open_model",
    "register_rule",
    "report",
    "rounding_stability",
    "trace",
]

#: The module in which each public name is defined; a name that is missing here is a module itself.
_HOMES = {
    "api.check": ("check",),
    "api.cite": ("cite",),
    "api.compare": ("compare",),
    "api.comparison": ("Comparison",),
    "api.compile": ("compile", "load_explainer"),
    "api.explain": ("explain", "explain_many", "trace"),
    "api.generation": ("Generation", "explain_generation"),
    "api.instrument": ("instrument",),
    "api.maximization": ("Maximization", "activation_maximization"),
    "opening": ("open_model",),
    "api.rounding": ("rounding_stability",),
    "cards.base": ("Card",),
    "cards.card": ("card",),
    "cards.heads": ("head_view",),
    "compiled": ("Explainer",),
    "errors": ("RelpropError", "RelpropWarning"),
    "explanation": ("Citations", "Explanation"),
    "reporting": ("report",),
    "rules": ("Rule", "RuleSet", "register_rule"),
    "storage": ("load",),
}
#: Public modules, which ``dir(relprop)`` completes beside ``__all__``.
_MODULES = (
    *("adapters", "data", "demo", "errors", "evaluation", "interop", "methods", "plot", "rules"),
    *("runs", "targets", "testing"),
)
#: Classes of what functions return, to annotate with.
_RESULTS = ("Card", "Citations", "Comparison", "Explainer", "Generation", "Maximization")
#: Modules that have a shorter public name than their own.
_SHORT_NAMES = {"plot": "views.plot"}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


if not TYPE_CHECKING:  # for a type checker, a name that is not above is an error

    def __getattr__(name: str) -> Any:
        """A public name or a module of the package, imported now and kept."""
        if name in _HOME_OF:
            found = getattr(importlib.import_module(f"relprop.{_HOME_OF[name]}"), name)
        elif name in _SHORT_NAMES or _is_module(name):
            found = importlib.import_module(f"relprop.{_SHORT_NAMES.get(name, name)}")
        else:
            raise AttributeError(f"module 'relprop' has no attribute {name!r}")
        globals()[name] = found
        return found


def _is_module(name: str) -> bool:
    known = name.isidentifier() and not name.startswith("_")
    return known and importlib.util.find_spec(f"relprop.{name}") is not None


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES, "__version__"})
