"""Weights out of an ONNX file, without the package ``onnx``.

An ONNX file is a protocol buffer: a sequence of fields, each a number, a wire type and a value.
Of the graph only its named tensors (initialisers) and its nodes are read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from relprop.errors import InputError

FLOAT = 1  # onnx.TensorProto.FLOAT


@dataclass(frozen=True)
class Node:
    """An operation: its type, its name, and the names of what it takes and gives."""

    operation: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Onnx:
    """The float tensors of a graph, by name, and its nodes in the order in which they run."""

    tensors: dict[str, Tensor]
    nodes: tuple[Node, ...]

    def linear_weights(self) -> dict[str, Tensor]:
        """The weights of linear layers, which an export leaves without a name: each is named after
        the bias that is added to its product, and turned to (out, in) as ``torch.nn.Linear`` has
        it."""
        product = {
            node.outputs[0]: self.tensors[node.inputs[1]]
            for node in self.nodes
            if node.operation == "MatMul" and node.inputs[1] in self.tensors
        }
        return {
            f"{bias.removesuffix('.bias')}.weight": product[of].T.contiguous()
            for node in self.nodes
            if node.operation == "Add"
            for bias, of in (node.inputs, node.inputs[::-1])
            if of in product and bias.endswith(".bias")
        }


def fields(message: memoryview) -> dict[int, list[memoryview | int]]:
    """A message's values by the numbers of their fields; a repeated field has several. Numbers of
    fixed width stay bytes."""
    found: dict[int, list[memoryview | int]] = defaultdict(list)
    at = 0

    def varint() -> int:
        nonlocal at
        number = shift = 0
        while True:
            byte = message[at]
            at += 1
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number

    while at < len(message):
        key = varint()
        if key & 7 == 0:
            found[key >> 3].append(varint())
            continue
        size = {1: 8, 5: 4}.get(key & 7) or varint()
        found[key >> 3].append(message[at : at + size])
        at += size
    return found


def read(data: bytes | Path) -> Onnx:
    """An ONNX file, or its bytes. Raises ``InputError`` where it has no graph, or keeps float
    tensors in another file."""
    whole = memoryview(data.read_bytes() if isinstance(data, Path) else data)
    graph = next(messages(fields(whole), 7), None)
    if graph is None:
        raise InputError("the file has no graph", then=["read(path)   # of an .onnx file"])
    inside = fields(graph)
    tensors = dict(tensor(fields(m)) for m in messages(inside, 5) if fields(m)[2] == [FLOAT])
    nodes = tuple(node(fields(m)) for m in messages(inside, 1))
    return Onnx(tensors, nodes)


def messages(found: dict[int, list[memoryview | int]], number: int) -> Iterator[memoryview]:
    """The values of a field that are no numbers."""
    return (value for value in found.get(number, []) if isinstance(value, memoryview))


def texts(found: dict[int, list[memoryview | int]], number: int) -> tuple[str, ...]:
    """The values of a field as texts."""
    return tuple(bytes(value).decode() for value in messages(found, number))


def tensor(found: dict[int, list[memoryview | int]]) -> tuple[str, Tensor]:
    """A TensorProto of floats: name and values."""
    name = texts(found, 8)[0]
    raw = next(messages(found, 9), None)
    if raw is None:
        raise InputError(f"{name} has no raw data", then=["export the model with its weights"])
    shape = [size for size in found.get(1, []) if isinstance(size, int)]
    return name, torch.from_numpy(np.frombuffer(raw, "<f4").reshape(shape).copy())


def node(found: dict[int, list[memoryview | int]]) -> Node:
    """A NodeProto."""
    name, operation = texts(found, 3), texts(found, 4)
    return Node(operation[0], name[0] if name else "", texts(found, 1), texts(found, 2))
