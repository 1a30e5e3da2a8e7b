"""Plan: Program × RuleSet, matched and checked before anything runs. The one place where the two
meet."""

from relprop.plan.planning import Plan, flowing, make_field_plan, make_plan
from relprop.plan.positions import POSITIONS, factors_of_scores
from relprop.plan.steps import Edge, Finding, Step

__all__ = [
    "POSITIONS",
    "Edge",
    "Finding",
    "Plan",
    "Step",
    "factors_of_scores",
    "flowing",
    "make_field_plan",
    "make_plan",
]
