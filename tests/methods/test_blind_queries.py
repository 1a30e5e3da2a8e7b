"""Queries that see no key (padding before a text, with attention that is told by large numbers):
each key has the same share, and gradients are those of that, whichever kernel of PyTorch's a model
calls, in one piece or in chunks."""

import pytest
import torch
import transformers

import relprop
from tests.common.models import closeness
from tests.common.rows import diagonal
from tests.methods.test_chunks import in_chunks

IDS = torch.randint(3, 40, (2, 7), generator=torch.Generator().manual_seed(0))
LEFT = (torch.arange(7) >= torch.tensor([[2], [4]])).long()


class Written(torch.nn.Module):
    """Attention that hides keys by a number, written out or called; the mean is read."""

    def __init__(self, called, low):
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.head = torch.nn.Linear(4, 12), torch.nn.Linear(4, 3)
        self.called, self.low = called, low

    def forward(self, x, mask):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 2)).permute(2, 0, 3, 1, 4)
        seen = (mask[:, None, :, None] * mask[:, None, None]).bool() & torch.ones(
            7, 7
        ).bool().tril()
        hidden = torch.where(seen, 0.0, self.low).to(x.dtype)
        if self.called:
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v, hidden)
        else:
            y = (q @ k.mT / 2**0.5 + hidden).softmax(-1) @ v
        return self.head(y.transpose(1, 2).flatten(2).mean(1))


@pytest.mark.parametrize(
    ("method", "low", "chunks"),
    diagonal(
        ["gradient_x_input", "transformer_attribution", "attnlrp"],
        [-1e9, torch.finfo(torch.float32).min],
        [True, False],
    ),
)
def test_a_query_that_sees_no_key_has_the_gradient_of_its_mean(chunks, low, method, monkeypatch):
    x = torch.randn(2, 7, 4, generator=torch.Generator().manual_seed(1)).double()
    written, called = (
        relprop.explain(Written(way, low).double(), (x, LEFT), 1, method=method) for way in (0, 1)
    )
    assert closeness(called.scores, written.scores) <= 1e-9
    if chunks:
        in_chunks(monkeypatch)
        parts = relprop.explain(Written(1, low).double(), (x, LEFT), 1, method=method)
        assert closeness(parts.scores, written.scores) <= 1e-9


@pytest.mark.parametrize(
    ("side", "new", "attention"), diagonal(["left", "right"], [False, True], ["sdpa", "eager"])
)
def test_falcon_with_alibi_and_padding(side, new, attention):
    torch.manual_seed(0)
    config = transformers.FalconConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        alibi=True,
        new_decoder_architecture=new,
        attn_implementation=attention,
    )
    model = transformers.FalconForCausalLM(config).double().eval()
    mask, at = (LEFT, -1) if side == "left" else (LEFT.flip(1), 2)
    inputs = {"input_ids": IDS * mask, "attention_mask": mask}
    e = relprop.explain(model, inputs, (at, 5))
    for i in range(2):
        one = relprop.explain(model, {n: t[i : i + 1] for n, t in inputs.items()}, (at, 5))
        assert closeness(e.scores[i : i + 1], one.scores) <= 1e-9
