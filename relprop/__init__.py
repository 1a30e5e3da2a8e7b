"""relprop: explain what a transformer looked at. Any unmodified PyTorch transformer, for a whole batch, with the books balanced.

>>> import torch, relprop
>>> from relprop.demo.model import digit_scene_model
>>> relprop.explain(digit_scene_model(), torch.rand(1, 1, 32, 32)).scores.shape
torch.Size([1, 65])
"""

from relprop import errors, rules, targets
from relprop.api.check import check
from relprop.api.compare import Comparison, compare
from relprop.api.explain import explain, explain_many, trace
from relprop.api.generation import Generation, explain_generation
from relprop.api.instrument import instrument
from relprop.api.maximization import Maximization, activation_maximization
from relprop.api.opening import open_model
from relprop.api.stability import stability
from relprop.errors import RelpropError, RelpropWarning
from relprop.explanation import Explanation
from relprop.report import report
from relprop.rules import Rule, RuleSet, register_rule
from relprop.storage import load
from relprop.views import plot

__version__ = "0.1.0"

__all__ = [
    "Comparison", "Explanation", "Generation", "Maximization", "RelpropError", "RelpropWarning", "Rule", "RuleSet", "activation_maximization", "check", "compare", "errors",
    "explain", "explain_generation", "explain_many",
    "instrument", "load", "open_model", "plot", "register_rule", "report", "rules", "stability", "targets", "trace",
]
