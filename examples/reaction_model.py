"""A real model of chemical reactions without a download by hand: the ALBERT of RXNMapper (Schwaller
et al., Science Advances 2021), a masked language model of reactions written as SMILES.

Its weights and vocabulary are files in the PyPI package ``rxnmapper``; none of its code is run. 12
layers that share their weights, 8 heads, width 256. Nobody told it where a product's atoms come
from; one of its heads shows it all the same (``MAPPING_HEAD``).
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from examples.wheels import wheel
from relprop.errors import InputError

if TYPE_CHECKING:
    from transformers import AlbertForMaskedLM

FOLDER = "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k"
MAPPING_HEAD = (10, 5)
"""Layer and head whose attention, from a product's atom to the reactants, is the atom mapping (its
authors')."""
EXTRA = ("albert.pooler.weight", "albert.pooler.bias")
"""Weights in the file that a masked language model has no use for."""

# Atoms first, since a bracketed one has signs and numbers in it; then rings, bonds and branches.
ATOM = re.compile(r"\[[^\]]+\]|Br|Cl|[BCNOPSFI]|[bcnops]|\*")
_TOKEN = re.compile(rf"{ATOM.pattern}|>>|%\d\d|[0-9()=#$:/\\.+~?>-]")


def _read(name: str) -> bytes:
    with zipfile.ZipFile(wheel("rxnmapper")) as files:
        return files.read(f"{FOLDER}/{name}")


def reaction_model() -> AlbertForMaskedLM:
    """The model, in eval mode. Every weight it has is in the file; the file's ``EXTRA`` are left
    out."""
    from transformers import AlbertConfig, AlbertForMaskedLM

    config = json.loads(_read("config.json"))
    model: AlbertForMaskedLM = AlbertForMaskedLM(AlbertConfig.from_dict(config))
    file = io.BytesIO(_read("pytorch_model.bin"))
    weights = torch.load(file, map_location="cpu", weights_only=True)
    model.load_state_dict({name: w for name, w in weights.items() if name not in EXTRA})
    model.eval()
    return model


def reaction_tokens(reaction: str) -> list[str]:
    """A reaction as tokens, one per atom, bond, bracket and ring number: ``"CO>>C"`` is ``["C",
    "O", ">>", "C"]``. Raises ``InputError``."""
    tokens = [found[0] for found in _TOKEN.finditer(reaction)]
    if "".join(tokens) != reaction:
        raise InputError(f"{reaction!r} is not written as SMILES")
    return tokens


def reaction_vocabulary() -> dict[str, int]:
    """The ids of the model's tokens; of special ones it has ``[PAD]``, ``[UNK]``, ``[CLS]``,
    ``[SEP]`` and ``[MASK]``."""
    return {token: i for i, token in enumerate(_read("vocab.txt").decode().splitlines())}


def reaction_ids(tokens: Sequence[str], vocabulary: Mapping[str, int]) -> Tensor:
    """Ids of ``[CLS] tokens [SEP]``, so that token i stands at i + 1. Raises ``InputError``."""
    unknown = [token for token in tokens if token not in vocabulary]
    if unknown:
        raise InputError(f"the model knows no token {unknown[0]!r}")
    return torch.tensor([vocabulary[token] for token in ["[CLS]", *tokens, "[SEP]"]])
