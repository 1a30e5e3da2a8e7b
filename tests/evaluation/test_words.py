"""Token-F1 and Precision@K: the authors' numbers over k, cases by hand, refusals; and words as the
best of their pieces."""

import pytest
import torch

import relprop
from relprop.errors import InputError, OptionError, UndefinedValueWarning
from relprop.evaluation import ImagePerturbation, Metric, PrecisionAtK, TokenF1, word_scores
from tests.common import goldens

EXACT = 1e-9
ROWS = (
    "eraser.rows(k,micro_p,micro_r,micro_f1,macro_p,macro_r,macro_f1,iou05_micro_f1,iou05_macro_f1)"
)


def test_the_authors_numbers():
    g = goldens.Goldens("metrics")
    scores, rationales = (
        [g[f"eraser.scores{i}"] for i in range(3)],
        [torch.zeros(n, dtype=torch.bool) for n in g["eraser.doc_len"].tolist()],
    )
    for i, rationale in enumerate(rationales):
        for start, end in g[f"eraser.spans{i}"].tolist():
            rationale[start:end] = True
    found = TokenF1(k=tuple(g[ROWS][:, 0].int().tolist()))(scores, rationales)
    torch.testing.assert_close(found.mean(0), g[ROWS][:, 6], rtol=EXACT, atol=0)
    alone = torch.cat(
        [
            TokenF1(k=tuple(g[ROWS][:, 0].int().tolist()))([s], [r])
            for s, r in zip(scores, rationales, strict=True)
        ]
    )
    assert torch.equal(alone, found)


def test_token_f1_is_scikit_learns():
    from sklearn.metrics import f1_score

    generator = torch.Generator().manual_seed(0)
    for n in (1, 4, 9):
        scores, truth = (
            torch.rand(n, generator=generator),
            torch.rand(n + 2, generator=generator) > 0.6,
        )
        found = TokenF1(k=(1, 3, 20))([scores], [truth])[0]
        for k, value in zip((1, 3, 20), found.tolist(), strict=True):
            marked = torch.zeros(n + 2, dtype=torch.bool)
            marked[scores.argsort(descending=True)[:k]] = True
            assert value == pytest.approx(
                f1_score(truth.numpy(), marked.numpy(), zero_division=0), abs=1e-12
            )


def test_token_f1_by_hand():
    """Top 2 are words 1 and 3; of the rationale {1, 2, 5} the last is beyond the cut: precision
    1/2, recall 1/3. The second document has only 2 words to mark."""
    found = TokenF1(k=(2, 4))(
        [torch.tensor([0.1, 0.9, -0.2, 0.4]), torch.tensor([0.5, 0.4])],
        [[0, 1, 1, 0, 0, 1], [1, 0]],
    )
    torch.testing.assert_close(
        found,
        torch.tensor([[2 / 5, 4 / 7], [2 / 3, 2 / 3]], dtype=torch.float64),
        rtol=EXACT,
        atol=0,
    )
    assert (
        TokenF1(k=(1,))([torch.tensor([0.5, 0.5, 0.1])], [[1, 0, 0]]).item() == 1
    )  # of equal scores the earlier
    assert TokenF1().k == (10, 20, 30, 40, 50, 60, 70, 80) and TokenF1()(
        [torch.rand(3)], [[0, 0, 0]]
    ).tolist() == [[0] * 8]


@pytest.mark.parametrize("value", [0.0, 0.3])
def test_a_map_without_differences_is_no_ranking(value):
    """Its ties would all go to the first words."""
    flat, other = torch.full((4,), value), torch.tensor([0.1, 0.9, 0.2, 0.3])
    with pytest.warns(UndefinedValueWarning, match="token-F1 is not defined for 1 of 2 samples"):
        found = TokenF1(k=(1,))([flat, other], [[1, 0, 0, 0], [0, 1, 0, 0]])
    assert found[0].isnan().all() and found[1].item() == 1
    special = torch.stack([torch.cat([flat[:3], other[1:2]]), other])
    with pytest.warns(UndefinedValueWarning, match="Precision@1 is not defined for 1 of 2"):
        counts = PrecisionAtK(k=1)(
            special, [[1, 0, 0, 0], [0, 1, 0, 0]], content=[[1, 1, 1, 0]] * 2
        )
    assert counts[0].isnan() and counts[1] == 1
    with pytest.warns(UndefinedValueWarning, match="perturbation AUC of images, .* 1 of 2 samples"):
        curve = ImagePerturbation()(
            lambda x: x.flatten(1)[:, :2],
            torch.rand(2, 1, 2, 2),
            torch.stack([flat, other]).view(2, 2, 2),
            [0, 1],
            normalize=lambda x: x,
        )
    assert curve.values[0].isnan() and curve.auc == curve.values[1]
    assert torch.equal(curve.accuracy, curve.hits[1])


def test_a_word_scores_as_its_best_piece():
    scores = torch.tensor([[9, 0.1, 0.7, -0.5, 9], [9, 0.2, 9, 9, 9]])
    found = word_scores(scores, [[[1, 2], [3]], [[1]]])
    assert [f.tolist() for f in found] == [pytest.approx([0.7, -0.5]), pytest.approx([0.2])]


def tokenizer():
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    vocabulary = {
        "[PAD]": 0,
        "[CLS]": 1,
        "[SEP]": 2,
        "[UNK]": 3,
        "good": 4,
        "film": 5,
        "##ing": 6,
        "a": 7,
    }
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        unk_token="[UNK]",
    )


def test_of_an_explanation():
    _, model = goldens.bert()
    inputs = tokenizer()(["a good filming", "film"], padding=True, return_tensors="pt")
    e = relprop.explain(model, inputs, method="rollout")
    assert e.scores.shape == (2, 6) and [len(w) for w in word_scores(e)] == [3, 1]
    assert word_scores(e)[0].tolist() == [*e.scores[0, 1:3].tolist(), e.scores[0, 3:5].max().item()]
    assert torch.equal(
        TokenF1(k=(1,))(e, [[0, 0, 1], [1]]), TokenF1(k=(1,))(word_scores(e), [[0, 0, 1], [1]])
    )
    assert PrecisionAtK(2)(e, torch.ones(2, 6)).tolist() == [2, 1]


def test_precision_at_k_by_hand():
    scores, content = (
        torch.tensor([[9, 0.5, 0.4, 0.3, 9], [9, 0.1, 0.2, 9, 9]]),
        [[0, 1, 1, 1, 0], [0, 1, 1, 0, 0]],
    )
    answer = [[0, 1, 0, 1, 0], [1, 0, 1, 0, 0]]
    assert [PrecisionAtK(k)(scores, answer, content=content).tolist() for k in (1, 2, 3, 20)] == [
        [1, 1],
        [1, 1],
        [2, 1],
        [2, 1],
    ]
    assert PrecisionAtK().name == "Precision@20" and PrecisionAtK().higher_is_better


WRONG = {
    "short rationale": (
        lambda: TokenF1()([torch.rand(3)], [[0, 1]]),
        "rationale of document 0: 2 words, scores of 3",
    ),
    "counts": (lambda: TokenF1()([torch.rand(3)], []), "scores of 1 documents, rationales of 0"),
    "NaN": (
        lambda: TokenF1()([torch.tensor([1, torch.nan])], [[0, 1]]),
        "scores of document 0: 1 values are NaN",
    ),
    "not 0 or 1": (lambda: TokenF1()([torch.rand(2)], [[0, 2]]), "of 0s and 1s"),
    "no words": (lambda: TokenF1()([torch.rand(0)], [[]]), "document 0: no words"),
    "unknown words": (lambda: word_scores(torch.rand(1, 3)), "the words are not known"),
    "a token twice": (lambda: word_scores(torch.rand(1, 3), [[[0], [0, 1]]]), "words of sample 0"),
    "a token too many": (lambda: word_scores(torch.rand(1, 3), [[[3]]]), "places from 0 to 2"),
    "samples": (lambda: word_scores(torch.rand(2, 3), [[[1]]]), "words of 1 samples, scores of 2"),
    "answer": (
        lambda: PrecisionAtK()(torch.rand(1, 3), [[0, 1]], content=[[1, 1, 1]]),
        r"answer: shape \[1, 2\]",
    ),
    "no content": (
        lambda: PrecisionAtK()(torch.rand(1, 3), [[0, 1, 0]]),
        "which tokens are not special",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_refused(case):
    call, text = WRONG[case]
    with pytest.raises(InputError, match=text):
        call()


def test_refused_options():
    for wrong in (lambda: TokenF1(k=()), lambda: TokenF1(k=(0,)), lambda: PrecisionAtK(0)):
        with pytest.raises(OptionError, match="at least 1"):
            wrong()


def test_what_they_say_of_themselves():
    assert (
        isinstance(TokenF1(), Metric)
        and isinstance(PrecisionAtK(), Metric)
        and TokenF1().higher_is_better
    )
