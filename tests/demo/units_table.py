"""Every method on every unit model: what it says is held against algebra. ``python -m
tests.demo.units_table`` writes docs/units.md."""

import sys
import warnings
from pathlib import Path

import relprop
from relprop.errors import RelpropError
from tools.units import units

PATH = Path(__file__).parents[2] / "docs" / "units.md"
UNITS = {unit.name: unit for unit in units()}
ALL = tuple(UNITS)
UNIFORM = ("mean", "signed mean", "and", "two classes")

#: Why methods fail on units: a sentence, and for which methods on which units. Every failure that
#: is found must be here once, and nothing else.
WHY = (
    (
        "The gradients ∇A and the relevances R are each in proportion to a token's part "
        "of y, so that their product is its square (9 : 1 : 4 where the parts are 3 : 1 : 2), "
        "and a token that lowers y has both below 0 and a product above.",
        {"transformer_attribution": ("mean", "signed mean")},
    ),
    (
        (
            "It reads attention alone, which is uniform here (or goes to a token whose value "
            "is taken away again), whatever the values, the head and the target are."
        ),
        {"rollout raw_attention": tuple(u for u in ALL if u != "copy")},
    ),
    (
        (
            "It reads attention alone; a token's own skip connection is an edge like any "
            "other, and scores hold what flows through it."
        ),
        {"attention_flow": ALL},
    ),
    (
        "Where one token is enough, ∂y/∂A and ∂y/∂x are 0, and every product with them.",
        {
            (
                "transformer_attribution attention_grad attention_times_grad gae cat attcat "
                "gradcam_features input_gradient gradient_x_input smoothgrad"
            ): ("or",)
        },
    ),
    (
        (
            "LRP-ε sends 2 back through s⁺ and −2 through (s − 1)⁺, whose bias absorbs the "
            "rest: they cancel where the branches meet, as the gradients do."
        ),
        {"attnlrp cp_lrp epsilon_lrp": ("or",)},
    ),
    ("One window hides one token, and the other is enough.", {"occlusion": ("or",)}),
    (
        (
            "Uniform attention times one weight per head is the same for every token, which "
            "min–max turns to 0."
        ),
        {"gradcam": (*UNIFORM, "or")},
    ),
    (
        "∇A says what y would gain by attention to a token, not how much of it there is.",
        {"attention_grad": ("copy",)},
    ),
    (
        (
            "It reads the last attention alone, which has no part in class 0, or only one of "
            "the two branches."
        ),
        {"attention_grad": ("two classes", "cancelling branches"), "partial_lrp": ("two classes",)},
    ),
    (
        (
            "The branch that takes away counts as 0, since it is clamped or has no positive "
            "term in Eq. 4; the one that adds counts in full."
        ),
        {"transformer_attribution attention_times_grad gae": ("cancelling branches",)},
    ),
    (
        (
            "It reads what a layer's output holds at a token, where attention has mixed the "
            "tokens already: all hold the same, and nothing tells from which it came."
        ),
        {"cat": (*UNIFORM, "copy"), "attcat": UNIFORM},
    ),
    (
        (
            "It counts each layer's output by itself, the first as it was before the second "
            "took it away."
        ),
        {"cat attcat": ("cancelling branches",)},
    ),
    (
        "Its feature map is what the last attention reads, weighed by gradients meaned "
        "over all tokens: it does not say which of them are attended to, and the first block "
        "has mixed them already.",
        {"gradcam_features": ("copy", "two classes", "cancelling branches")},
    ),
    (
        (
            "A norm has no sign, knows neither head nor class, and is above 0 for both of "
            "two branches that cancel."
        ),
        {"attention_norm": ("signed mean", "two classes", "cancelling branches", "constant")},
    ),
    (
        (
            "A cosine says how far a layer's output turns, which is not linear in what is "
            "taken away, and knows no sign, no head, no class and nothing of later layers."
        ),
        {
            "value_zeroing": (
                "mean",
                "signed mean",
                "two classes",
                "cancelling branches",
                "constant",
            )
        },
    ),
    (
        "Eq. 6 splits a sum of 8 and −8 by size: the branch that adds gets +3; the one "
        "that takes away gets −3, which Eq. 4 loses for want of a positive term "
        "(the ledger says so).",
        {"lrp": ("cancelling branches",)},
    ),
    (
        (
            "The gradient says how y changes with a feature, not how much of it a token "
            "holds; it has a part for features that are 0 (those that blocks write to)."
        ),
        {"input_gradient smoothgrad": (*UNIFORM, "copy", "cancelling branches")},
    ),
    (
        (
            "Between a baseline of zeros and the input attention is not yet on the marked "
            "token, and the values of the others count for a while."
        ),
        {"integrated_gradients gradient_shap deeplift": ("copy",)},
    ),
    ("Noise.", {"random": ALL}),
)


def column(unit):
    """By method: what it says wrong of the unit (empty: nothing), or its refusal's first line as a
    string."""
    found = {}
    for method in relprop.methods.METHODS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found[method] = unit.answer.failures(
                    relprop.explain(unit.model, unit.inputs, unit.target, method=method).scores[0]
                )
            except RelpropError as refusal:
                found[method] = str(refusal).splitlines()[0]
    return found


def reasons(method, unit):
    """The numbers of the sentences that say why ``method`` fails on ``unit``."""
    return [
        i + 1
        for i, (_, where) in enumerate(WHY)
        if any(method in names.split() and unit in found for names, found in where.items())
    ]


def cell(method, unit, said):
    """A cell of the table."""
    if isinstance(said, str):
        return "–"
    return ", ".join(map(str, reasons(method, unit))) if said else "yes"


def written(columns):
    """The page."""
    lines = [
        "# Unit models: which method gives the right attribution, by algebra",
        "",
        (
            "<!-- Written by `python -m tests.demo.units_table`; a test compares it with "
            "what holds. -->"
        ),
        "",
        (
            "Eight transformers of one or two blocks with weights set by hand (`tools.units`), "
            "so that the right attribution of each token follows from algebra:"
        ),
        "",
    ]
    lines += [
        f"- **{unit.name}**. {unit.why} Asked: {asked(unit.answer)}." for unit in UNITS.values()
    ]
    lines += [
        "",
        (
            "*yes*: the scores say so, to 1e-5 of the largest. A number: they do not, for "
            "the reason below. –: not defined on it. All methods with their default options."
        ),
        "",
        "| method | " + " | ".join(columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    lines += [
        f"| `{method}` | "
        + " | ".join(cell(method, unit, said[method]) for unit, said in columns.items())
        + " |"
        for method in relprop.methods.METHODS
    ]
    lines += ["", *(f"{i + 1}. {sentence}" for i, (sentence, _) in enumerate(WHY)), ""]
    lines += [
        "Read the table as what each method is for: a method that fails *or* measures "
        "what changes y locally, one that fails *constant* describes the attention and "
        "not the answer. "
        "A method that passes all of them is not thereby right on a trained model, whose "
        "answer is not known: [trained-models.md](trained-models.md) has the next step.",
        "",
    ]
    return "\n".join(lines)


def asked(answer):
    """An ``Answer`` in words."""

    def tokens(numbers):
        return ("tokens " if len(numbers) > 1 else "token ") + ", ".join(map(str, numbers))

    parts = [
        f"{tokens(numbers)} {what}"
        for numbers, what in (
            (answer.zero, "0"),
            (answer.positive, "above 0"),
            (answer.negative, "not above 0"),
        )
        if numbers
    ]
    parts += [f"{tokens(answer.equal)} the same"] if answer.equal else []
    if answer.ratio:
        parts.append(
            f"{tokens([i for i, _ in answer.ratio])} as "
            f"{' : '.join(f'{n:g}' for _, n in answer.ratio)}"
        )
    return "; ".join(parts)


if __name__ == "__main__":
    columns = {}
    for name, unit in UNITS.items():
        columns[name] = column(unit)
        print(
            name,
            {
                m: (said, reasons(m, name))
                for m, said in columns[name].items()
                if said and not isinstance(said, str) and len(reasons(m, name)) != 1
            },
            file=sys.stderr,
        )
    PATH.write_text(written(columns))
