"""AOPC and LOdds: every shortened or masked text made by hand and given to the model alone."""

import pytest
import torch
from torch import nn

import relprop
from relprop.errors import InputError, OptionError, RelpropWarning
from relprop.evaluation import AOPC, LOdds, Metric
from tests.common import goldens
from tests.evaluation.test_words import tokenizer

EXACT = 1e-9
PAD, MASK = 0, 3


def texts(count=3, tokens=14):
    """Random texts for the small BERT: [CLS] words [SEP] padding."""
    g, model = goldens.bert()
    ids, mask = (
        torch.randint(5, g.meta["vocab_size"], (count, tokens)),
        torch.ones(count, tokens, dtype=torch.long),
    )
    content = torch.ones(count, tokens, dtype=torch.bool)
    for i in range(count):
        end = tokens - 2 * i
        ids[i, end:], mask[i, end:], content[i, end - 1 :], content[i, 0] = PAD, 0, False, False
    return (
        model,
        {"input_ids": ids, "attention_mask": mask},
        torch.rand(count, tokens, dtype=torch.float64),
        content,
    )


def probability(model, ids, label=None):
    with torch.no_grad():
        p = model(
            input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long)
        ).logits.softmax(1)[0]
    label = int(p.argmax()) if label is None else label
    return p[label], label


def by_hand(model, inputs, scores, content, shares, variant):
    """(texts, shares): p(ŷ|x) and p(ŷ|x̃) one text at a time, without padding. ``variant``: a text
    from its tokens and the places to remove."""
    rows = []
    for ids, mask, score, kept in zip(*inputs.values(), scores, content, strict=True):
        ids = ids[: int(mask.sum())].tolist()
        p, label = probability(model, ids)
        order = sorted((i for i in range(len(ids)) if kept[i]), key=lambda i: -score[i])
        rows.append(
            [
                (p, probability(model, variant(ids, order[: len(order) * a // b]), label)[0])
                for a, b in shares
            ]
        )
    return torch.tensor(rows, dtype=torch.float64).unbind(-1)


def deleted(ids, places):
    return [t for i, t in enumerate(ids) if i not in places]


def replaced(token):
    return lambda ids, places: [token if i in places else t for i, t in enumerate(ids)]


TENTHS, NINTHS = [(i, 10) for i in range(11)], [(i, 9) for i in range(1, 10)]


@pytest.mark.parametrize("batch_size", [64, 3, 1])
def test_aopc(batch_size):
    model, inputs, scores, content = texts()
    before, after = by_hand(model, inputs, scores, content, TENTHS, deleted)
    found = AOPC()(model, inputs, scores, content=content, pad_id=PAD, batch_size=batch_size)
    torch.testing.assert_close(found.changes, before - after, rtol=EXACT, atol=1e-12)
    assert (
        found.shares[0] == 0 and found.shares[-1] == 1 and (found.changes[:, 0].abs() < 1e-12).all()
    )
    assert (
        found.mean == pytest.approx(float((before - after).mean()), rel=EXACT)
        and found.at.shape == (11,)
        and found.values.shape == (3,)
    )
    before, after = by_hand(model, inputs, scores, content, NINTHS, deleted)
    found = AOPC("paper-code")(
        model, inputs, scores, content=content, pad_id=PAD, batch_size=batch_size
    )
    torch.testing.assert_close(found.changes, (before - after).abs(), rtol=EXACT, atol=1e-12)


@pytest.mark.parametrize("batch_size", [64, 5])
def test_lodds(batch_size):
    model, inputs, scores, content = texts()
    before, after = by_hand(model, inputs, scores, content, TENTHS, replaced(PAD))
    found = LOdds()(model, inputs, scores, content=content, replace_with=PAD, batch_size=batch_size)
    torch.testing.assert_close(found.changes, (after / before).log(), rtol=EXACT, atol=1e-12)
    before, after = by_hand(model, inputs, scores, content, NINTHS, replaced(MASK))
    found = LOdds("paper-code")(
        model, inputs, scores, content=content, replace_with=MASK, batch_size=batch_size
    )
    torch.testing.assert_close(found.changes, (after / before).log(), rtol=EXACT, atol=1e-12)


class Bag(nn.Module):
    """Two classes; the first one's logit is the sum of the attended ids, in tens, the other's is
    0."""

    def forward(self, input_ids, attention_mask=None):
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        return torch.stack(
            [(input_ids * mask).sum(1).double() / 10, torch.zeros(len(input_ids)).double()], 1
        )


def test_words_go_as_a_whole():
    """[CLS] ab c [SEP]: the word of two pieces scores 0.9 and goes first; two words: one at 50 %,
    both at 100 %."""
    ids, scores, words = (
        torch.tensor([[1, 10, 20, 30, 2]]),
        torch.tensor([[0, 0.1, 0.9, 0.5, 0]]),
        [[[1, 2], [3]]],
    )
    sums = torch.tensor([63.0] * 5 + [33.0] * 5 + [3.0], dtype=torch.float64)
    p = (sums / 10).sigmoid()
    found = AOPC()(
        Bag(),
        {"input_ids": ids, "attention_mask": torch.ones_like(ids)},
        scores,
        words=words,
        pad_id=0,
    )
    torch.testing.assert_close(found.changes[0], p[0] - p, rtol=EXACT, atol=1e-15)
    found = LOdds()(Bag(), {"input_ids": ids}, scores, words=words, replace_with=0)
    torch.testing.assert_close(found.changes[0], p.log() - p[0].log(), rtol=EXACT, atol=1e-15)


def test_of_an_explanation():
    _, model = goldens.bert()
    inputs = dict(tokenizer()(["a good filming", "film"], padding=True, return_tensors="pt"))
    known = relprop.explain(
        model,
        tokenizer()(["a good filming", "film"], padding=True, return_tensors="pt"),
        method="rollout",
    )
    inputs.setdefault("token_type_ids", torch.zeros_like(inputs["input_ids"]))
    words = [[[1], [2], [3, 4]], [[1]]]
    for metric, token in ((AOPC(), {"pad_id": 0}), (LOdds(), {"replace_with": 0})):
        given = metric(model, inputs, known.scores, words=words, **token)
        assert torch.equal(metric(model, inputs, known, **token).changes, given.changes)
        tokens = metric(model, inputs, known, content=known.content, **token)
        assert torch.equal(
            tokens.changes,
            metric(model, inputs, known.scores, content=known.content, **token).changes,
        )
        assert not torch.equal(tokens.changes[0], given.changes[0]) and torch.equal(
            tokens.changes[1], given.changes[1]
        )


def test_short_texts_are_skipped_by_the_notebook():
    model, inputs, scores, content = texts(4)  # 14, 12, 10 and 8 tokens
    with pytest.warns(RelpropWarning, match="1 of 4 texts have fewer than 10 tokens"):
        found = LOdds("paper-code")(model, inputs, scores, content=content, replace_with=MASK)
    first = {name: value[:3] for name, value in inputs.items()}
    alone = LOdds("paper-code")(model, first, scores[:3], content=content[:3], replace_with=MASK)
    assert found.values.isnan().tolist() == [False] * 3 + [True] and found.mean == pytest.approx(
        alone.mean, rel=EXACT
    )
    with pytest.warns(RelpropWarning, match="1 of 1 texts"):
        assert (
            LOdds("paper-code")(
                model,
                {k: v[3:] for k, v in inputs.items()},
                scores[3:],
                content=content[3:],
                replace_with=MASK,
            )
            .values.isnan()
            .all()
        )


IDS = torch.tensor([[1, 10, 20, 2]])
INPUTS, SCORES, CONTENT = (
    {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)},
    torch.rand(1, 4),
    torch.tensor([[0, 1, 1, 0]]),
)
WRONG = {
    "no mask": ({"input_ids": IDS}, SCORES, {"content": CONTENT}, "an attention_mask is needed"),
    "positions": (
        {**INPUTS, "position_ids": IDS},
        SCORES,
        {"content": CONTENT},
        "position_ids would have gaps",
    ),
    "other shapes": (
        {**INPUTS, "pixels": torch.rand(1, 3)},
        SCORES,
        {"content": CONTENT},
        r"pixels \[1, 3\]: AOPC deletes tokens",
    ),
    "scores": (
        INPUTS,
        SCORES[:, 1:],
        {"content": CONTENT[:, 1:]},
        r"scores are \[1, 3\], input_ids \[1, 4\]",
    ),
    "NaN": (INPUTS, SCORES * torch.nan, {"content": CONTENT}, "scores: 4 values are NaN"),
    "no words": (INPUTS, SCORES, {"content": CONTENT * 0}, "text 0 has no words"),
    "both": (INPUTS, SCORES, {"content": CONTENT, "words": [[[1]]]}, "both given"),
    "nothing left": (INPUTS, SCORES, {"content": torch.ones(1, 4)}, "no token left"),
}


@pytest.mark.parametrize("case", WRONG)
def test_refused(case):
    inputs, scores, which, text = WRONG[case]
    with pytest.raises(InputError, match=text):
        AOPC()(Bag(), inputs, scores, pad_id=0, **which)


def test_refused_options():
    with pytest.raises(OptionError, match="protocol='code'"):
        AOPC("code")
    with pytest.raises(OptionError, match="batch_size=0"):
        AOPC()(Bag(), INPUTS, SCORES, pad_id=0, content=CONTENT, batch_size=0)


def test_what_they_say_of_themselves():
    assert (
        isinstance(AOPC(), Metric)
        and isinstance(LOdds(), Metric)
        and AOPC().higher_is_better
        and not LOdds().higher_is_better
    )
