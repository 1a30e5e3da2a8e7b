"""The methods in three tiers, by what was measured (docs/methods.md, which has the numbers)."""

from __future__ import annotations

#: What each is to be taken for, the default first.
RECOMMENDED = {
    "transformer_attribution": "answers of language models; with gradient='balanced' words in "
    "speech and atoms",
    "lrp_gamma": "pictures",
    "cat": "texts with a class",
    "attnlrp": "what speaks for and against, at the cost of a gradient",
    "gae": "maps over attention without relevance rules",
    "integrated_gradients": "any differentiable model, with attention or without",
    "leave_one_out": "the sentences that an answer rests on",
}
#: What each is kept in spite of, since papers name it.
ARCHIVE = {
    "attention_flow": "takes minutes for a text",
    "epsilon_lrp": "not better than random on atoms, photographs and sentences",
    "smoothgrad": "not better than input_gradient on lookups, at many times its cost",
    "gradient_shap": "not better than integrated_gradients on lookups, at as many passes",
}
TIERS = ("recommended", "for comparison", "archive")


def tier(name: str) -> str:
    """Which tier a method is in; one of the user's own is for comparison."""
    return TIERS[0] if name in RECOMMENDED else TIERS[2] if name in ARCHIVE else TIERS[1]


def place(name: str) -> tuple[int, int]:
    """Where a method stands in a list by tiers; of one tier they keep their order."""
    listed = list(RECOMMENDED)
    return TIERS.index(tier(name)), listed.index(name) if name in RECOMMENDED else 0


def described(name: str, plain: str) -> str:
    """What a method says, and what to take it for."""
    if name in RECOMMENDED:
        return f"{plain}: take it for {RECOMMENDED[name]}"
    return f"{plain} ({ARCHIVE[name]})" if name in ARCHIVE else plain
