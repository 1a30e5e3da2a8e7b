"""Examinations for what you add to relprop: a rule, a method, an adapter, a measure.

Each takes the thing and something to try it on, looks at every law that the library relies on, and
returns what holds. Where a law is broken it raises ``CheckFailed``, an ``AssertionError`` that
names every fault with what to do, so that one line is a test::

    def test_my_rule():
        relprop.testing.check_rule(my_rule, torch.ops.mylib.gated_norm, x, gate)
"""

from relprop.testing.adapters import check_adapter
from relprop.testing.faults import Checked, CheckFailed, Fault
from relprop.testing.measures import check_measure
from relprop.testing.methods import check_method
from relprop.testing.rules import check_rule

__all__ = [
    "CheckFailed",
    "Checked",
    "Fault",
    "check_adapter",
    "check_measure",
    "check_method",
    "check_rule",
]


def __dir__() -> list[str]:
    return __all__
