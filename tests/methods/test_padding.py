"""A text's scores are the same however far its batch is padded, and padding scores 0: by every
method but those that say otherwise."""

import pytest
import torch
import transformers

import relprop

LEFT_OUT = {
    "vit_cx": "for images",
    "deeplift": "refused here",
    **dict.fromkeys(
        ("random", "smoothgrad", "gradient_shap"), "draws as many numbers as the padded input has"
    ),
}
SCORES_PADDING = {"attention_grad"}  # the gradient at masked keys, as in the authors' code


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "vocab_size": 40,
        "num_labels": 3,
        "initializer_range": 0.4,
    }
    return (
        transformers.BertForSequenceClassification(transformers.BertConfig(**sizes)).double().eval()
    )


@pytest.mark.parametrize(
    "method", [m.name for m in relprop.methods.available() if m.name not in LEFT_OUT]
)
@pytest.mark.filterwarnings("ignore::relprop.errors.RelpropWarning")
def test_padding_changes_nothing(model, method):
    ids = torch.randint(5, 40, (2, 7))
    mask = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
    short, long = (
        relprop.explain(
            model,
            {
                "input_ids": torch.nn.functional.pad(ids, (0, n)),
                "attention_mask": torch.nn.functional.pad(mask, (0, n)),
            },
            1,
            method=method,
        ).scores
        for n in (0, 4)
    )
    assert short.abs().max() > 0
    torch.testing.assert_close(long[:, :7], short, rtol=1e-9, atol=1e-9 * float(short.abs().max()))
    padding = torch.nn.functional.pad(mask, (0, 4)) == 0
    if method not in SCORES_PADDING:
        assert long[padding].abs().max() <= 1e-9 * short.abs().max()
