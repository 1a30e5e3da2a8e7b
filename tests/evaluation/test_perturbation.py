"""Perturbation: the authors' hits and area, cases by hand, and the same curve whatever the batch
size."""

import copy
import functools
import itertools

import pytest
import torch
from torch import nn

import relprop
from relprop.errors import InputError, OptionError, RelpropWarning
from relprop.evaluation import (
    ImagePerturbation,
    Infidelity,
    InputPerturbation,
    Metric,
    TextPerturbation,
    joined,
)
from tests.common import goldens
from tests.common.sizes import digits

EXACT = 1e-9


def halves(x):
    return (x - 0.5) / 0.5


def same(x):
    return x


@functools.cache
def the_authors():
    g = goldens.Goldens("metrics")
    return g, copy.deepcopy(goldens.vit()[1]).float()


@pytest.mark.parametrize("batch_size", [64, 5, 1])
def test_the_authors_numbers(batch_size):
    g, model = the_authors()
    curve = ImagePerturbation()(
        model,
        g["pert.images"],
        g["pert.vis"][:, 0],
        g["pert.targets"],
        normalize=halves,
        batch_size=batch_size,
    )
    assert torch.equal(curve.hits[:, 0].double(), g["pert.pos.model_hits"])
    assert torch.equal(curve.hits[:, 1:].T.double(), g["pert.pos.perturbations_hits"])
    assert curve.auc == pytest.approx(float(g["pert.pos.auc_trapz_0_to_0.9_percent"]), rel=EXACT)
    assert curve.auc == pytest.approx(
        100 * float(torch.trapezoid(curve.accuracy, dx=0.1)), rel=EXACT
    )


def test_the_papers_area_leaves_the_unperturbed_point_out():
    g, model = the_authors()
    curve = ImagePerturbation(protocol="paper")(
        model, g["pert.images"], g["pert.vis"][:, 0], g["pert.targets"], normalize=halves
    )
    hits = g["pert.pos.perturbations_hits"].mean(1)
    assert curve.auc == pytest.approx(
        100 * 0.1 * float(hits.sum() - (hits[0] + hits[-1]) / 2), rel=EXACT
    )


def pixels_left(x):
    """Class k of 11: the sum of the image is k tenths of its ten pixels of ones."""
    return -(x.flatten(1).sum(1, keepdim=True) - torch.arange(11)).abs()


def test_which_pixels_go():
    """Ten pixels, each of its own power of two: what is left spells which were removed, in both
    orders, and before normalisation."""
    image = (2.0 ** -torch.arange(1, 11)).view(1, 1, 2, 5)
    heat, left = torch.tensor([[[3.0, 1, 4, 1, 5], [9, 2, 6, 0, 7]]]), []

    def model(x):
        left.append(x.clone())
        return torch.zeros(len(x), 2)

    for order, first, last in (("positive", 5, 8), ("negative", 8, 5)):
        left.clear()
        ImagePerturbation(order=order)(model, image, heat, [0], normalize=lambda x: x - 1)
        left = [one[None] for one in torch.cat(left)]
        gone = [(x == -1).flatten() for x in left]
        assert (
            [int(g.sum()) for g in gone] == list(range(10)) and gone[1][first] and not gone[9][last]
        )
        assert torch.equal(left[0], image - 1) and all(
            (a <= b).all() for a, b in itertools.pairwise(gone)
        )
        ties = [int(gone[k][1]) - int(gone[k][3]) for k in range(10)]
        assert min(ties) == 0 and max(ties) == 1  # of the two pixels at 1 the earlier goes first


def test_a_curve_by_hand():
    """A model that says "class k" when k pixels are left is right about label 8 once only: after 20
    %."""
    curve = ImagePerturbation()(
        pixels_left, torch.ones(1, 1, 2, 5), torch.rand(1, 2, 5), [8], normalize=same
    )
    assert curve.hits.int().tolist() == [
        [0, 0, 1, 0, 0, 0, 0, 0, 0, 0]
    ] and curve.auc == pytest.approx(10, rel=EXACT)
    start = ImagePerturbation()(
        pixels_left, torch.ones(1, 1, 2, 5), torch.rand(1, 2, 5), [10], normalize=same
    )
    assert start.auc == pytest.approx(5, rel=EXACT) and joined(
        [curve, start]
    ).values.tolist() == pytest.approx([10, 5], rel=EXACT)
    paper = ImagePerturbation(protocol="paper")(
        pixels_left, torch.ones(1, 1, 2, 5), torch.rand(1, 2, 5), [10], normalize=same
    )
    assert paper.auc == 0
    with pytest.raises(InputError, match="2 curves of 2 protocols"):
        joined([curve, paper])


def test_the_model_runs_as_in_eval_and_stays_as_it_was():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(4, 3)).double().train()
    images = torch.rand(3, 1, 2, 2)
    curves = [
        ImagePerturbation()(model, images, images[:, 0], [0, 1, 2], normalize=same)
        for _ in range(2)
    ]
    assert (
        model.training
        and all(m.training for m in model)
        and torch.equal(curves[0].hits, curves[1].hits)
        and (images > 0).all()
    )


def test_the_explained_class_is_checked():
    model, images = digits(), torch.rand(2, 1, 32, 32)
    predicted = model(images).argmax(1)
    e = relprop.explain(model, images)
    curve = ImagePerturbation()(model, images, e, predicted, normalize=same)
    assert (
        torch.equal(
            curve.hits,
            ImagePerturbation()(model, images, e.heatmap(), predicted, normalize=same).hits,
        )
        and curve.hits[:, 0].all()
    )
    other = relprop.explain(model, images, target=int(predicted[0] + 1) % 10)
    with pytest.warns(RelpropWarning, match="not of the class the model predicts"):
        ImagePerturbation()(model, images, other, predicted, normalize=same)
    with pytest.raises(InputError, match="sample 0 is of class"):
        ImagePerturbation(explained="target")(model, images, other, predicted, normalize=same)


IMAGES, MAPS = torch.rand(2, 1, 2, 5), torch.rand(2, 2, 5)
WRONG = {
    "sizes": (IMAGES, torch.rand(2, 2, 4), [0, 0], r"maps are \[2, 2, 4\], images \[2, 1, 2, 5\]"),
    "NaN": (
        IMAGES,
        MAPS * torch.nan,
        [0, 0],
        "maps: 20 values are NaN or infinite, the first of them in sample 0",
    ),
    "label": (
        IMAGES,
        MAPS,
        [0, 11],
        "labels: 11 of sample 1 is out of range, the model has 11 classes",
    ),
    "negative label": (IMAGES, MAPS, [-1, 0], "labels: -1 of sample 0 is out of range"),
    "labels": (IMAGES, MAPS, [0], "2 class numbers are needed"),
    "normalised": (
        IMAGES - 1,
        MAPS,
        [0, 0],
        r"images: values from .* \[0, 1\] is needed, before normalisation",
    ),
    "axes": (IMAGES[0], MAPS, [0, 0], r"images: shape \[1, 2, 5\]"),
}


@pytest.mark.parametrize("case", WRONG)
def test_refused(case):
    images, maps, labels, text = WRONG[case]
    with pytest.raises(InputError, match=text):
        ImagePerturbation()(pixels_left, images, maps, labels, normalize=same)


def test_a_model_without_logits():
    with pytest.raises(InputError, match=r"logits \(batch, classes\) are needed"):
        ImagePerturbation()(same, IMAGES, MAPS, [0, 0], normalize=same)


@pytest.mark.parametrize("options", [{"order": "up"}, {"explained": "top"}, {"protocol": "code"}])
def test_unknown_options(options):
    with pytest.raises(OptionError, match="one of"):
        ImagePerturbation(**options)


def test_what_they_say_of_themselves():
    for kind in (ImagePerturbation, TextPerturbation):
        assert (
            isinstance(kind(), Metric)
            and not kind().higher_is_better
            and kind(order="negative").higher_is_better
        )
    assert (
        ImagePerturbation(explained="target").name
        == "positive perturbation AUC of images, target class"
    )


# Texts: [CLS] a b c d e [SEP] (padding)
IDS = torch.tensor([[1, 10, 11, 12, 13, 14, 2, 0], [1, 15, 16, 2, 0, 0, 0, 0]])
ATTENDED = (IDS != 0).long()
CONTENT = IDS >= 10
SCORES = torch.tensor([[9, 0.3, 0.1, 0.5, 0.2, 0.4, 9, 9], [9, 0.1, 0.2, 9, 9, 9, 9, 9.0]])


class Bag(nn.Module):
    """Logits of 3 classes from the attended tokens' embeddings; remembers every text it was given:
    ten of the first, then ten of the second."""

    def __init__(self):
        super().__init__()
        self.embedding, self.seen = nn.Embedding(20, 3), []

    def forward(self, input_ids, attention_mask):
        self.seen += zip(input_ids, attention_mask, strict=True)
        return {"logits": (self.embedding(input_ids) * attention_mask[..., None]).sum(1)}


def test_which_tokens_go():
    model = Bag()
    TextPerturbation(removal=5)(
        model, {"input_ids": IDS, "attention_mask": ATTENDED}, SCORES, [0, 1], content=CONTENT
    )
    assert [ids.tolist() for ids, _ in model.seen[:10:2]] == [
        [1, 10, 11, 12, 13, 14, 2, 0],
        [1, 10, 11, 5, 13, 14, 2, 0],
        [1, 10, 11, 5, 13, 5, 2, 0],
        [1, 5, 11, 5, 13, 5, 2, 0],
        [1, 5, 11, 5, 5, 5, 2, 0],
    ]
    assert [ids.tolist()[:4] for ids, _ in model.seen[10:]] == [[1, 15, 16, 2]] * 5 + [
        [1, 15, 5, 2]
    ] * 5
    assert all(torch.equal(mask, ATTENDED[i // 10]) for i, (_, mask) in enumerate(model.seen))


def test_tokens_may_be_masked():
    model = Bag()
    TextPerturbation(order="negative")(
        model, {"input_ids": IDS, "attention_mask": ATTENDED}, SCORES, [0, 1], content=CONTENT
    )
    assert [mask.tolist() for _, mask in model.seen[2:6:2]] == [
        [1, 1, 0, 1, 1, 1, 1, 0],
        [1, 1, 0, 1, 0, 1, 1, 0],
    ]
    assert all(torch.equal(ids, IDS[i // 10]) for i, (ids, _) in enumerate(model.seen))


@pytest.mark.parametrize(("batch_size", "passes"), [(64, 1), (20, 1), (7, 3)])
def test_samples_and_tenths_share_forward_passes(batch_size, passes):
    sizes = []

    def model(x):
        sizes.append(len(x))
        return x.flatten(1)[:, :3]

    ImagePerturbation()(model, IMAGES, MAPS, [0, 1], normalize=same, batch_size=batch_size)
    assert len(sizes) == passes and sum(sizes) == 10 * len(IMAGES) and max(sizes) <= batch_size


@pytest.mark.parametrize("removal", ["mask", 3])
def test_texts_score_the_same_whatever_the_batch_size(removal):
    g, model = goldens.bert()
    ids = torch.randint(5, g.meta["vocab_size"], (6, 12))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    inputs["attention_mask"][3:, 8:] = 0
    scores, content = torch.rand(6, 12), inputs["attention_mask"].bool()
    content[:, 0] = False
    curves = [
        TextPerturbation(removal=removal)(
            model, inputs, scores, [0, 1] * 3, content=content, batch_size=n
        )
        for n in (6, 4, 1)
    ]
    assert torch.equal(curves[0].hits, curves[1].hits) and torch.equal(
        curves[0].hits, curves[2].hits
    )
    e = relprop.explain(model, inputs, method="rollout")
    with_content = TextPerturbation(removal=removal)(
        model, inputs, e.scores, [0, 1] * 3, content=e.content
    )
    assert torch.equal(
        TextPerturbation(removal=removal)(model, inputs, e, [0, 1] * 3).hits, with_content.hits
    )


WRONG_TEXTS = {
    "scores": ({}, SCORES[:, 1:], CONTENT, r"scores are \[2, 7\], input_ids \[2, 8\]"),
    "lists": (
        {"input_ids": [[1, 2]]},
        SCORES,
        CONTENT,
        "'input_ids' is no tensor(.|\n)*return_tensors",
    ),
    "no content": ({}, SCORES, None, "which tokens are not special"),
    "padding": ({}, SCORES, CONTENT | (IDS == 0), "their attention mask is 0"),
    "NaN": ({}, SCORES * torch.nan, CONTENT, "scores: 16 values are NaN"),
    "rows": (
        {"token_type_ids": IDS[:1]},
        SCORES,
        CONTENT,
        r"token_type_ids \[1, 8\] beside input_ids \[2, 8\]",
    ),
}


@pytest.mark.parametrize("case", WRONG_TEXTS)
def test_refused_texts(case):
    more, scores, content, text = WRONG_TEXTS[case]
    with pytest.raises(InputError, match=text):
        TextPerturbation()(
            Bag(),
            {"input_ids": IDS, "attention_mask": ATTENDED, **more},
            scores,
            [0, 1],
            content=content,
        )


def test_refused_removals():
    with pytest.raises(OptionError, match="removal='zero'"):
        TextPerturbation(removal="zero")
    with pytest.raises(InputError, match="needs an attention_mask"):
        TextPerturbation()(Bag(), {"input_ids": IDS}, SCORES, [0, 1], content=CONTENT)


class Series(nn.Module):
    """Patches of a series, (batch, channels, time), and attention over them."""

    def __init__(self):
        super().__init__()
        self.cut, self.head = nn.Conv1d(2, 8, 4, 4), nn.Linear(8, 3)
        self.mix = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        tokens = self.cut(x).mT
        return {"prediction": self.head(tokens + self.mix(tokens, tokens, tokens)[0]).mean(1)}


class TestOtherInputs:
    def test_positions_go_in_order_by_hand(self):
        """The first class wins while the sum of what is left is positive."""
        rows = torch.tensor([[5.0, -3.0, 1.0, -1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
        curve = InputPerturbation()(
            lambda x: torch.stack([x.sum(1), 0 * x.sum(1)], 1), rows, rows, [0]
        )
        left = [3.0, -2.0, -3.0, -4.0, -4.0, -4.0, -4.0, -4.0, -4.0, -1.0]
        assert curve.hits[0].tolist() == [float(s > 0) for s in left]

    def test_channels_go_together_each_to_its_own_number(self):
        seen, given = [], torch.arange(20.0).view(1, 2, 10)

        def model(x):
            seen.append(x.clone())
            return x.flatten(1)[:, :2]

        fill = torch.tensor([[-1.0], [-2.0]])
        InputPerturbation(removal=fill)(model, given, given[:, 1:], [0], batch_size=10)
        assert seen[0][3, :, 7:].tolist() == [[-1.0] * 3, [-2.0] * 3]
        assert torch.equal(seen[0][3, :, :7], given[0, :, :7])

    def test_an_explanation_of_a_series_is_spread_over_its_positions(self):
        torch.manual_seed(0)
        model, x = Series().eval(), torch.randn(2, 2, 40)
        e = relprop.explain(model, x, [0, 1])
        even = e.scores.repeat_interleave(4, 1)[:, None] / 4
        curve = InputPerturbation(explained="target")(model, x, e, [0, 1])
        assert torch.equal(
            curve.hits, InputPerturbation(explained="target")(model, x, even, [0, 1]).hits
        )
        whole = Infidelity()(model, x, (even / 2).expand(x.shape), [0, 1])
        torch.testing.assert_close(Infidelity()(model, x, e, [0, 1]), whole)

    @pytest.mark.parametrize(
        "inputs, maps, removal, says",
        [
            (torch.ones(1, 4, 4), torch.ones(1, 4), 0.0, "it fits 2 ways"),
            (torch.ones(1, 3, 4), torch.ones(1, 5), 0.0, r"maps are \[1, 5\], inputs \[1, 3, 4\]"),
            (torch.ones(1, 4).long(), torch.ones(1, 4), 0.0, "floating point is needed"),
            ({"ids": torch.ones(1, 4)}, torch.ones(1, 4), 0.0, "AOPC"),
            (torch.ones(1, 4), torch.ones(1, 4), torch.ones(3), r"removal has the shape \[3\]"),
        ],
    )
    def test_refusals(self, inputs, maps, removal, says):
        with pytest.raises((InputError, OptionError), match=says):
            InputPerturbation(removal=removal)(lambda x: x, inputs, maps, [0])

    def test_pictures_need_their_normalisation(self):
        with pytest.raises(OptionError, match="lambda images: images"):
            ImagePerturbation()(lambda x: x, torch.ones(1, 3, 2, 2), torch.ones(1, 2, 2), [0])
