"""What an operation can be. Everyone who treats operations differently asks for the kind, and
nobody for the name."""

from __future__ import annotations

from enum import Enum


class Kind(Enum):
    """What an operation does with the numbers that enter it."""

    # One element of the result reads one element of each tensor.
    IDENTITY = "the values themselves: a copy, a whole view, dropout in eval mode"
    DETACH = "the values themselves, where the gradient stops"
    CAST = "the values in another type"
    AFFINE = "a multiple of each value, and a number"
    FUNCTION = "a function of each value"
    SUM = "u + v and u - v"
    PRODUCT = "u * v"
    QUOTIENT = "u / v"
    CHOICE = "for each element one of several operands, by a mask"
    EXTREMUM = "the larger or the smaller of two operands"
    TEST = "comparisons, and logic of them"

    # Values change place.
    RESHAPE = "the same elements in the same order, in another shape"
    PERMUTE = "axes in another order"
    EXPAND = "an axis of length 1 repeated"
    SELECT = "one position of an axis"
    SLICE = "evenly spaced positions of an axis"
    JOIN = "tensors one after another along an axis"
    SHIFT = "the positions of an axis in another order"
    REPEAT = "a tensor laid several times beside itself"
    VIEW = "positions seen through other strides: diagonals, overlapping windows"
    WINDOWS = "overlapping windows of an image, laid out as columns"
    INDEX = "positions picked by indices"
    GATHER = "positions picked by an index, element by element"
    SHUFFLE = "features that become positions, and positions that become features"
    WRITE = "a tensor in which some places have new values"
    PAD = "a tensor with a number around it"
    FILL = "a tensor with a number in some fixed places"
    SPLIT = "one tensor as several"

    # Many elements become one.
    LINEAR = "sums with weights over the last axis"
    CONVOLUTION = "sums with weights over windows"
    MATMUL = "sums of products of two tensors"
    CONTRACTION = "the same, whichever axes it runs over: lowered to matrix products"
    TOTAL = "a sum or a mean along axes"
    LARGEST = "the largest or the smallest along axes"
    STATISTIC = "a number that describes what lies along axes: a norm, a deviation, a product"
    SCAN = "running sums"
    AVERAGE_POOL = "means of windows"
    MAX_POOL = "the largest of each window"
    RESAMPLE = "sums with weights by the distance of positions"
    SAMPLE = "values read between positions that another tensor gives"
    INDEXED_SUM = "sums of what an index brings to one place"
    FOLD = "sums of what overlapping windows bring to one place"
    PICK = "values picked along an axis by their size, with their places"

    # What lies along an axis made comparable.
    SOFTMAX = "weights that sum to 1 along an axis"
    LOG_SOFTMAX = "the logarithms of such weights"
    NORM = "values less their mean, over their deviation"
    BATCH_NORM = "the same with stored statistics"

    # Nothing flows.
    EMBEDDING = "rows of a table, by their numbers"
    COUNT = "whole numbers found from values: places, ranks, counts"
    FACTORY = "a tensor made from a shape"
    RANDOM = "numbers drawn by chance"
    READ = "a value handed to Python"

    # What a front end records, and a canonical graph has no longer.
    CHECK = "an assertion, or a mode that is switched"
    ATTENTION = "softmax attention as one operation"
    RECURRENT = "a recurrent layer"
    COMPLEX = "real numbers read as complex ones, or complex ones as real"
    OUTPUT = "one of several results"

    UNKNOWN = "an operation that the table does not have"


#: One element of the result reads one element of each tensor.
ELEMENTWISE = frozenset(
    {Kind.IDENTITY, Kind.DETACH, Kind.CAST, Kind.AFFINE, Kind.FUNCTION, Kind.SUM}
    | {Kind.PRODUCT, Kind.QUOTIENT, Kind.CHOICE, Kind.EXTREMUM, Kind.TEST}
)
#: Values only change place.
MOVES = frozenset(
    {Kind.RESHAPE, Kind.PERMUTE, Kind.EXPAND, Kind.SELECT, Kind.SLICE, Kind.JOIN, Kind.SHIFT}
    | {Kind.REPEAT, Kind.VIEW, Kind.INDEX, Kind.GATHER, Kind.SHUFFLE, Kind.WRITE, Kind.SPLIT}
)
#: Values change place, and numbers stand where none of them does.
FILLS = frozenset({Kind.CHOICE, Kind.PAD, Kind.FILL, Kind.WINDOWS})
#: Nothing flows, whatever enters.
STOPS = frozenset({Kind.TEST, Kind.EMBEDDING, Kind.COUNT, Kind.FACTORY, Kind.RANDOM, Kind.READ})
