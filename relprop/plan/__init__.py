"""Plan: Program × RuleSet, matched and checked before anything runs. The one place where the two
meet."""

from relprop.plan.planning import Plan, flowing, make_plan
from relprop.plan.steps import Finding, Step

__all__ = ["Finding", "Plan", "Step", "flowing", "make_plan"]
