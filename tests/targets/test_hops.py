"""What lies on generated tokens, sent on to what these rest on."""

import pytest
import torch

import relprop
from relprop.errors import OptionError
from tests.targets.models import llama

PROMPT = torch.tensor([[5, 9, 3, 7], [8, 2, 6, 4]])


def generated(**options):
    return relprop.explain_generation(
        llama(), {"input_ids": PROMPT}, max_new_tokens=4, generate={"eos_token_id": None}, **options
    )


def by_hand(rows, prompt, hops):
    """One sample's rows, step by step, with loops alone."""
    rows = [[float(x) for x in row] for row in rows]
    shares = [[x / sum(map(abs, row)) for x in row] for row in rows]
    for _ in range(hops):
        after = []
        for row in rows:
            new = row[:prompt] + [0.0] * (len(row) - prompt)
            for j, amount in enumerate(row[prompt:]):
                new = [n + amount * share for n, share in zip(new, shares[j], strict=True)]
            after.append(new)
        rows = after
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("method", ["transformer_attribution", "gradient_x_input"])
@pytest.mark.parametrize("hops", [1, 2, 5])
def test_each_hop_lays_it_where_the_tokens_own_rows_lie(method, hops):
    g = generated(method=method)
    found = g.sent_on(hops)
    for sample in (0, 1):
        expected = by_hand(g.scores[sample], g.prompt, hops)
        assert torch.allclose(
            found.scores[sample].double(), expected, atol=1e-6 * expected.abs().max()
        )
    if hops == 2:
        assert torch.equal(generated(method=method, hops=2).scores, found.scores)
    assert found.steps[0].facts["hops"] == hops and torch.equal(found.scores[:, 0], g.scores[:, 0])
    assert torch.allclose(found.row - found.scores, g.row - g.scores, atol=1e-6)
    if method == "transformer_attribution":
        assert torch.allclose(found.scores.sum(2), g.scores.sum(2), rtol=1e-5)


def test_after_as_many_hops_as_tokens_all_of_it_lies_on_the_prompt():
    found = generated().sent_on(4)
    assert (
        float(found.scores[:, :, 4:].abs().max()) == 0 and float(found.scores[:, 3, :4].sum()) > 0
    )


@pytest.mark.parametrize("hops", [0, -1, True, 1.5])
def test_what_is_no_number_of_hops_is_refused(hops):
    with pytest.raises(OptionError, match="positive number"):
        generated().sent_on(hops)
