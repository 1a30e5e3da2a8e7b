"""A model's folder whose config.json is none."""

import pytest
import torch

import relprop
from relprop.errors import InputError


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"3", b"null", b'"a"', b"\xff", b"[" * 10_000])
def test_a_config_that_is_none_is_an_error_of_its_own(tmp_path, text):
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(InputError, match=r"config\.json in .* cannot be read: \w+Error: ."):
        relprop.explain(str(tmp_path), {"input_ids": torch.tensor([[1, 2]])}, 0)
