"""Complex numbers as pairs of real ones, by PyTorch's ``ComplexTensor``: relevance travels along
real numbers. What is written anew here is of a form that rules know better."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.complex_tensor import ComplexTensor
from torch.utils._pytree import tree_map_only

from relprop.errors import CaptureError
from relprop.operations import Operator, is_call, operand, packet
from relprop.tracer.constants import Constants
from relprop.tracer.editing import arguments, aten, emit, rank, tensor_inputs, val
from relprop.tracer.facts import Facts, know, place, refusal
from relprop.tracer.passes.spelling.definitions import Definitions
from relprop.tracer.passes.spelling.fourier import between_complex, of_real, to_real
from relprop.tracer.passes.trials.recipes import plain

Pairs = dict[fx.Node, Any]  # of complex tensors (real part, imaginary part), or a tuple of these


def make_real(graph: fx.Graph, constants: Constants) -> bool:
    """Put pairs of real tensors in place of all complex ones; whether there was one. Raises
    ``CaptureError`` naming an operation of complex numbers that has no such form."""
    pairs: Pairs = {}
    definitions = Definitions(constants.device)
    for node in list(graph.nodes):
        if not _is_complex(node) and not any(i in pairs for i in tensor_inputs(node)):
            continue
        if node.op == "output":
            raise _refused(node, "the model returns complex numbers")
        if node.op != "call_function":
            pairs[node] = _read_as_pair(node)
        elif is_call(node, operator.getitem):
            pairs[node] = pairs[operand(node)][arguments(node)[1]]
        else:
            made = _converted(node, definitions, pairs)
            if isinstance(made, fx.Node):
                node.replace_all_uses_with(made)
            else:
                pairs[node] = made
    return bool(pairs)


def _is_complex(node: fx.Node) -> bool:
    return isinstance(val(node), Tensor) and val(node).is_complex()


def _read_as_pair(node: fx.Node) -> tuple[fx.Node, fx.Node]:
    """Complex numbers that a graph begins with."""
    with node.graph.inserting_after(node):
        whole = node.graph.call_function(aten.view_as_real.default, (node,))
    know(whole, Facts(torch.view_as_real(val(node).resolve_conj()), place(node)))
    after = whole.next
    real, imaginary = (emit(after, aten.select.int, whole, rank(node), i) for i in (0, 1))
    return real, imaginary


def _converted(node: fx.Node, definitions: Definitions, pairs: Pairs) -> Any:
    """What a call makes of complex numbers, in real ones: a node, or pairs of them."""
    given = tensor_inputs(node)
    made = definitions.written(
        node,
        _of_parts(node, pairs),
        tuple(part for n in given for part in pairs.get(n, (n,))),
        form=tuple(n in pairs for n in given),
    )
    if made is None:
        raise _refused(node, f"{node.target} has no form in real numbers here")
    return made


def _of_parts(node: fx.Node, pairs: Pairs) -> Callable[..., object]:
    """A call as a function of the real tensors that its operands consist of. Of real numbers that
    it makes complex, the imaginary part is 0."""
    function: Operator = FORMS.get(packet(node), node.target)
    begins = packet(node) not in FORMS and not any(n in pairs for n in tensor_inputs(node))

    def call(*tensors: Tensor) -> object:
        parts = iter(tensors)

        def value(n: fx.Node) -> Tensor:
            real = next(parts)
            if n in pairs:
                return ComplexTensor(real, next(parts))
            return _complex(real) if begins else real

        args, kwargs = fx.node.map_arg((node.args, node.kwargs), value)
        made = function(*plain(args), **plain(kwargs))
        return tree_map_only(ComplexTensor, lambda z: (z.re, z.im), made)

    return call


def _polar(size: Tensor, angle: Tensor) -> ComplexTensor:
    return ComplexTensor(size * angle.cos(), size * angle.sin())


def _of_last_axis(x: Tensor) -> ComplexTensor:
    return ComplexTensor(x.select(-1, 0), x.select(-1, 1))


def _size(z: ComplexTensor) -> Tensor:
    size: Tensor = torch.linalg.vector_norm(torch.stack([z.re, z.im], -1), dim=-1)
    return size


def _rolled(z: ComplexTensor, *how: Any) -> ComplexTensor:
    return ComplexTensor(z.re.roll(*how), z.im.roll(*how))


def _complex(x: Tensor) -> ComplexTensor:
    return x if isinstance(x, ComplexTensor) else ComplexTensor(x, torch.zeros_like(x))


def _sum(a: Tensor, b: Any) -> Tensor:
    """A sum, of which the second term may be a number."""
    if isinstance(b, Tensor):
        return a + b
    z = _complex(a)
    return ComplexTensor(z.re + b.real, z.im + b.imag)


def _product(a: Any, b: Any) -> ComplexTensor:
    """A product, of which one factor may be real or a number."""
    a, b = (b, a) if isinstance(b, ComplexTensor) else (a, b)
    a = _complex(a)
    if not isinstance(b, (ComplexTensor, complex)):
        return ComplexTensor(a.re * b, a.im * b)
    return ComplexTensor(a.re * b.real - a.im * b.imag, a.im * b.real + a.re * b.imag)


#: Forms that rules know better than PyTorch's own, and what makes complex numbers of real ones.
FORMS: dict[Operator, Operator] = {
    aten.complex: ComplexTensor,
    aten.polar: _polar,
    aten.view_as_complex: _of_last_axis,
    aten.abs: _size,
    aten.add: _sum,
    aten.mul: _product,
    aten.roll: _rolled,
    aten._fft_c2c: between_complex,
    aten._fft_r2c: of_real,
    aten._fft_c2r: to_real,
}


def _refused(node: fx.Node, why: str) -> CaptureError:
    """What is raised where complex numbers have no form in real ones."""
    fact = f"the model computes with complex numbers, and {why}"
    return refusal(node, fact, "write that part in real numbers")
