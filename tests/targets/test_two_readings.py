"""What can be read in two ways: which one is taken is said, and how to ask for the other; and what
is a probability, at one pixel or over a region."""

import pytest
import torch
import transformers
from torch import nn

import relprop
from relprop.errors import AmbiguityWarning, ProbabilityWarning
from tests.adapters.tokenizers_in_code import wordpiece
from tests.common.models import closeness

SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


def bert(**options):
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=90, **SIZES, intermediate_size=32, **options)
    return transformers.BertForSequenceClassification(config).eval().double()


@pytest.mark.parametrize("many", [True, False])
def test_of_several_labels_the_largest_is_explained_and_that_is_said(many):
    kind = "multi_label_classification" if many else "single_label_classification"
    model, ids = bert(num_labels=4, problem_type=kind), torch.tensor([[5, 6, 7, 8]])
    best = int(model(ids).logits.argmax())
    true = int((model(ids).logits > 0).sum())
    if not many:
        assert relprop.explain(model, ids).target == (best,)
        return
    with pytest.warns(AmbiguityWarning, match=f"up to {true} labels are true"):
        found = relprop.explain(model, ids)
    assert closeness(found.scores, relprop.explain(model, ids, best).scores) == 0


class Pixels(nn.Module):
    """A map of one class, from one attention over the pixels."""

    def __init__(self, end=None):
        super().__init__()
        torch.manual_seed(2)
        self.mix = nn.MultiheadAttention(8, 2, batch_first=True)
        self.inner, self.head, self.end = nn.Linear(3, 8), nn.Linear(8, 1), end

    def forward(self, x):
        tokens = self.inner(x.flatten(2).mT)
        tokens = tokens + self.mix(tokens, tokens, tokens, need_weights=False)[0]
        found = self.head(tokens).mT.unflatten(2, x.shape[2:])
        return found if self.end is None else self.end(found)


@pytest.mark.parametrize("target", [(0, 1, 2), relprop.targets.region(0)], ids=["pixel", "region"])
def test_a_map_of_probabilities_is_said_and_a_region_is_where_they_exceed_a_half(target):
    x = torch.randn(1, 3, 4, 4, dtype=torch.float64)
    logits, probabilities = (Pixels(s).double().eval() for s in (None, torch.sigmoid))
    with pytest.warns(ProbabilityWarning, match="ends in a sigmoid"):
        e = relprop.explain(probabilities, x, target, method="gradient_x_input")
    if target != (0, 1, 2):
        mask = logits(x)[0, 0] > 0
        assert 0 < mask.sum() < 16
        over = relprop.targets.region(0, mask)
        with pytest.warns(ProbabilityWarning, match="ends in a sigmoid"):
            same = relprop.explain(probabilities, x, over, method="gradient_x_input")
        assert closeness(e.scores, same.scores) == 0


def larger(p, mode="bilinear"):
    return nn.functional.interpolate(p, scale_factor=2, mode=mode)


ENDS = {
    "resized": (larger, True),
    "resized by cubes": (lambda p: larger(p, "bicubic"), True),
    "clamped": (lambda p: p.clamp(1e-4, 1 - 1e-4), True),
    "cut below": (lambda p: larger(p).clamp(min=0.1).clamp_max(0.9), True),
    "flipped": (lambda p: p.flip(-1).mT.contiguous(), True),
    "mean of heads": (lambda p: torch.stack([p, p.flip(-1)]).mean(0), True),
    "largest of heads": (lambda p: torch.cat([p, p.flip(-1)], 1).amax(1, keepdim=True), True),
    "padded and rolled": (lambda p: nn.functional.pad(p, (1, 1, 0, 2)).roll(1, -1), True),
    "smoothed": (lambda p: nn.functional.avg_pool2d(p, 2, 1), True),
    "one of two": (lambda p: torch.cat([1 - p, p], 1)[:, 1:], True),
    "mean of two, by hand": (lambda p: (p + p.flip(-1)) / 2, True),
    "the other": (lambda p: 1 - p, True),
    "a sigmoid by hand": (lambda p: 1 / (1 + torch.exp(-p.logit())), True),
    "both signs": (lambda p: 2 * p - 1, False),
    "levels": (lambda p: 255 * p - 127.5, False),
}


@pytest.mark.parametrize(("end", "halves"), ENDS.values(), ids=ENDS)
@pytest.mark.filterwarnings("ignore:.*ends in a (sigmoid|function)")
def test_a_map_of_probabilities_stays_one_whatever_moves_it(end, halves):
    x = torch.randn(1, 3, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    model = Pixels(lambda found: end((9 * (found - found.mean())).sigmoid())).double().eval()
    mask = model(x)[0, 0] > (0.5 if halves else 0)
    assert 0 < mask.sum() < mask.numel()
    e, over = (
        relprop.explain(model, x, relprop.targets.region(0, m), method="gradient_x_input")
        for m in (None, mask)
    )
    assert closeness(e.scores, over.scores) == 0


def test_a_tuple_of_two_texts_is_said_to_be_two_samples():
    model, tokenizer = bert(num_labels=2), wordpiece()
    two = "the cat sat", "on a mat"
    with pytest.warns(AmbiguityWarning, match="two samples, not as a pair"):
        found = relprop.explain(model, two, 1, processor=tokenizer)
    assert (
        closeness(found.scores, relprop.explain(model, [*two], 1, processor=tokenizer).scores) == 0
    )
    images = transformers.CLIPImageProcessor(size={"shortest_edge": 16})
    both = transformers.CLIPProcessor(images, tokenizer)
    with pytest.warns(AmbiguityWarning, match="two samples, not as a pair"):
        relprop.explain(model, two, 1, processor=both)
    pair = {"text": two[0], "text_pair": two[1]}
    assert len(relprop.explain(model, pair, 1, processor=tokenizer).scores) == 1
