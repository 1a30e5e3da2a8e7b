"""Rows of one table for words and places, however their codes are laid side by side or added."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import relprop
from tests.rollup.test_sums_written_otherwise import METHODS, TOKENS, WIDTH, Half

WORDS = 10


def code(ids, count):
    return F.one_hot(ids, count).double()


def places(ids):
    return torch.arange(TOKENS).expand_as(ids)


def looked_up(ids, table):
    return F.embedding(ids, table[:WORDS]) + table[WORDS:]


def side_by_side(ids, table):
    return torch.cat([code(ids, WORDS), code(places(ids), TOKENS)], -1) @ table


def whole_numbers(ids, table):
    both = [F.one_hot(ids, WORDS), F.one_hot(places(ids), TOKENS)]
    return torch.cat(both, -1).to(table.dtype) @ table


def places_first(ids, table):
    here = torch.eye(TOKENS, dtype=table.dtype).expand(len(ids), -1, -1)
    turned = torch.cat([table[WORDS:], table[:WORDS]])
    return F.linear(torch.cat([here, code(ids, WORDS)], -1), turned.mT)


def added(ids, table):
    count = len(table)
    return (F.one_hot(ids, count) + F.one_hot(places(ids) + WORDS, count)).double() @ table


def stacked(ids, table):
    both = torch.stack([ids, places(ids) + WORDS], -1)
    return F.one_hot(both, len(table)).sum(-2).double() @ table


class Model(nn.Module):
    def __init__(self, way):
        super().__init__()
        self.way, self.table = way, nn.Parameter(torch.randn(WORDS + TOKENS, WIDTH))
        self.block, self.head = Half(), nn.Linear(WIDTH, 3)

    def forward(self, ids, kinds=None):
        given = (ids,) if kinds is None else (ids, kinds)
        return self.head(self.block(self.way(*given, self.table)).mean(1))


def explained(way, *inputs):
    torch.manual_seed(0)
    comparison = relprop.compare(Model(way).double().eval(), inputs, METHODS, target=1)
    return {m: comparison[m].scores for m in METHODS}


def alike(found, usual):
    for method, scores in usual.items():
        far = float((found[method] - scores).abs().max())
        assert far <= 1e-9 * float(scores.abs().max()), method


IDS = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]])
WAYS = (side_by_side, whole_numbers, places_first, added, stacked)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_codes_of_words_and_places_are_rows_of_the_table(way):
    alike(explained(way, IDS), explained(looked_up, IDS))


def test_codes_of_two_inputs_are_rows_of_the_table():
    def rows(ids, kinds, table):
        return F.embedding(ids, table[:WORDS]) + F.embedding(kinds, table[WORDS:])

    def codes(ids, kinds, table):
        return torch.cat([code(ids, WORDS), code(kinds, TOKENS)], -1) @ table

    kinds = torch.tensor([[0, 0, 1, 1, 5, 5], [1, 1, 1, 0, 0, 0]])
    alike(explained(codes, IDS, kinds), explained(rows, IDS, kinds))
