"""Promise 1: the numbers of the authors' own code, for every stored quantity that relprop computes,
in float64.

``reference`` follows their code; ``paper`` differs from it by their stabiliser only;
``reference_lrp`` is their LRP baseline. Both inputs are explained together and one by one. What is
not compared, and why, is in ``tests/goldens/README.md``.
"""

import functools
from dataclasses import dataclass

import pytest
import torch
from torch.nn import functional as F

import relprop
from tests.common import goldens

FAMILY = {"reference": "ours", "paper": "ours", "reference_lrp": "orig"}
TOLERANCE = {"reference": 1e-4, "paper": 1e-3, "reference_lrp": 1e-4}
EXACT = 1e-9

TOGETHER = pytest.mark.parametrize("together", [True, False], ids=["batch", "one by one"])
INPUT_AND_TARGET = pytest.mark.parametrize(("i", "k"), [(0, 0), (0, 1), (1, 0), (1, 1)])
MODEL = pytest.mark.parametrize("name", ["vit", "bert"])
RULES = pytest.mark.parametrize("rules", sorted(FAMILY))


@dataclass(frozen=True)
class Found:
    """One sample of an explanation beside its goldens: ``of_input`` and ``of_target`` begin the
    goldens' names."""

    goldens: goldens.Goldens
    explanation: relprop.Explanation
    at: int
    of_input: str
    of_target: str

    def golden(self, quantity, rules=None):
        return self.goldens[
            f"{self.of_target}.{FAMILY[rules]}.{quantity}"
            if rules
            else f"{self.of_target}.{quantity}"
        ]

    def blocks(self, quantity, size):
        """(blocks, heads, tokens, tokens), without the padding that a batch added."""
        return torch.stack(
            [
                getattr(block, quantity)[self.at, :, :size, :size]
                for block in self.explanation.blocks
            ]
        )


def explained(name, i, k, together, **options):
    """Input ``i`` with the ``k``-th of its targets, in a batch of both inputs or alone."""
    g, _ = getattr(goldens, name)()
    inputs = (0, 1) if together else (i,)
    targets = [
        g.meta["targets"][k] if name == "bert" else g.meta["targets"][str(j)][k] for j in inputs
    ]
    e = _explain(name, inputs, tuple(targets), tuple(sorted(options.items())))
    at = inputs.index(i)
    return Found(g, e, at, f"x{i}", f"x{i}.t{targets[at]}")


@functools.cache
def _explain(name, which, targets, options):
    g, model = getattr(goldens, name)()
    if name == "vit":
        inputs = torch.cat([g[f"x{j}"] for j in which]).double()
    else:  # the batch pads the shorter text to the longer
        longest = max(g[f"x{j}.input_ids"].shape[1] for j in which)
        inputs = {
            n: torch.cat(
                [F.pad(g[f"x{j}.{n}"], (0, longest - g[f"x{j}.{n}"].shape[1])) for j in which]
            )
            for n in ("input_ids", "attention_mask")
        }
    return relprop.explain(model, inputs, list(targets), **dict(options))


def met(found, golden, tolerance):
    off = goldens.off(found, golden)
    assert off <= tolerance, (
        f"off by {off:.1e} of the largest magnitude, {tolerance:.0e} is allowed"
    )


@TOGETHER
@MODEL
@INPUT_AND_TARGET
def test_logits(name, i, k, together):
    f = explained(name, i, k, together, keep="blocks")
    met(f.explanation.output[f.at], f.goldens["logits"][i][f.explanation.target[f.at]], EXACT)


@pytest.mark.parametrize("i", [0, 1])
def test_the_default_target_is_the_predicted_class(i):
    g, model = goldens.vit()
    assert relprop.explain(model, g[f"x{i}"].double(), method="rollout").target == (
        g.meta["targets"][str(i)][0],
    )


@TOGETHER
@MODEL
@INPUT_AND_TARGET
def test_attention_and_its_gradient(name, i, k, together):
    f = explained(name, i, k, together, keep="blocks")
    attention, gradient = f.goldens[f"{f.of_input}.attn"], f.golden("attn_grad")
    met(f.blocks("attention", attention.shape[-1]), attention, EXACT)
    met(f.blocks("gradient", attention.shape[-1]), gradient, EXACT)


@TOGETHER
@MODEL
@INPUT_AND_TARGET
@RULES
def test_relevance_at_every_attention_map(name, i, k, together, rules):
    f = explained(name, i, k, together, rules=rules, keep="blocks")
    golden = f.golden("attn_cam", rules)
    met(f.blocks("relevance", golden.shape[-1]), golden, TOLERANCE[rules])


@TOGETHER
@INPUT_AND_TARGET
@RULES
@pytest.mark.parametrize(
    ("quantity", "layers"),
    [("transformer_attribution", (0, 1, 2)), ("transformer_attribution_start1", (1, 2))],
)
def test_vit_transformer_attribution(i, k, together, rules, quantity, layers):
    f = explained("vit", i, k, together, rules=rules, layers=layers)
    met(f.explanation.scores[f.at][None, 1:], f.golden(quantity, rules), TOLERANCE[rules])


@TOGETHER
@INPUT_AND_TARGET
@RULES
@pytest.mark.parametrize(("quantity", "layer"), [("last_layer", -1), ("second_layer", 1)])
def test_vit_single_layer_ablations(i, k, together, rules, quantity, layer):
    f = explained("vit", i, k, together, rules=rules, layers=(layer,))
    met(f.explanation.scores[f.at][1:], f.golden(f"{quantity}_ablation", rules), TOLERANCE[rules])


@TOGETHER
@INPUT_AND_TARGET
@pytest.mark.parametrize("rules", ["reference", "reference_lrp"])
def test_vit_full_lrp_down_to_the_pixels(i, k, together, rules):
    f = explained("vit", i, k, together, rules=rules, keep="input")
    met(f.explanation.input[f.at].sum(0)[None], f.golden("full", rules), TOLERANCE[rules])


@TOGETHER
@INPUT_AND_TARGET
@RULES
@pytest.mark.parametrize("start", [0, 1, 2])
def test_bert_transformer_attribution(i, k, together, rules, start):
    f = explained(
        "bert", i, k, together, rules=rules, layers=tuple(range(start, 3)), normalize_rows=True
    )
    golden = f.golden(f"transformer_attribution_start{start}", rules)
    row = f.explanation.row[f.at][None, : golden.shape[1]].clone()
    row[:, 0] = row.min()  # their script does so with the [CLS] score
    met(row, golden, TOLERANCE[rules])


@TOGETHER
@INPUT_AND_TARGET
@pytest.mark.parametrize("start", [0, 1])
def test_vit_rollout(i, k, together, start):
    f = explained(
        "vit", i, k, together, method="rollout", layers=tuple(range(start, 3)), normalize_rows=True
    )
    met(f.explanation.scores[f.at][None, 1:], f.goldens[f"x{i}.rollout_start{start}"], EXACT)


@TOGETHER
@INPUT_AND_TARGET
def test_bert_rollout(i, k, together):
    f = explained("bert", i, k, together, method="rollout", normalize_rows=True)
    golden = f.golden("rollout")
    row = f.explanation.row[f.at][None, : golden.shape[1]].clone()
    row[:, 0] = 0  # as theirs
    met(row, golden, EXACT)


def test_padding_scores_exactly_zero():
    f = explained("bert", 0, 0, True, rules="paper", keep="blocks")
    mask = F.pad(f.goldens["x0.attention_mask"], (0, 4)), f.goldens["x1.attention_mask"]
    assert (f.explanation.scores[torch.cat(mask) == 0] == 0).all()


@functools.cache
def instrumented(name, i, k, rules):
    """Relevance at the input of the first block, then at the output of every block, for one input
    alone."""
    g, model = getattr(goldens, name)()
    inputs = (
        g[f"x{i}"].double()
        if name == "vit"
        else {n: g[f"x{i}.{n}"] for n in ("input_ids", "attention_mask")}
    )
    target = g.meta["targets"][k] if name == "bert" else g.meta["targets"][str(i)][k]
    names = (
        [":add", *(f"blocks.{b}" for b in range(3))]
        if name == "vit"
        else ["bert.embeddings", *(f"bert.encoder.layer.{b}" for b in range(3))]
    )
    with relprop.instrument(model, inputs, target, rules=rules) as probe:
        return [probe.relevance(n)[n] for n in names], f"x{i}.t{target}.{FAMILY[rules]}"


@MODEL
@INPUT_AND_TARGET
@RULES
def test_relevance_between_blocks(name, i, k, rules):
    relevance, prefix = instrumented(name, i, k, rules)
    g, _ = getattr(goldens, name)()
    block = "block" if name == "vit" else "layer"
    for b in range(3):
        met(relevance[b], g[f"{prefix}.R_in_{block}{b}"], TOLERANCE[rules])
        met(relevance[b + 1], g[f"{prefix}.R_out_{block}{b}"], TOLERANCE[rules])


@INPUT_AND_TARGET
@RULES
def test_bert_full_lrp_down_to_the_embeddings(i, k, rules):
    relevance, prefix = instrumented("bert", i, k, rules)
    found = relevance[0].sum(-1)
    found[:, 0] = 0  # as theirs
    met(found, goldens.bert()[0][f"{prefix}.full_lrp"], TOLERANCE[rules])
