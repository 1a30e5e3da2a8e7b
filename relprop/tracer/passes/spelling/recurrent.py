"""LSTM, GRU and plain recurrent layers → their cells, one after another, which PyTorch's own
definitions take apart. Its definition of a layer maps all inputs before they are cut into steps,
so that what every step has (an initial state, a bias) would no longer stand beside its input."""

from __future__ import annotations

import operator

from torch import fx

from relprop.operations import Kind, kind, packet
from relprop.tracer.editing import arguments, aten, emit, swap_results, val

CELLS = {
    aten.lstm: aten.lstm_cell.default,
    aten.gru: aten.gru_cell.default,
    aten.rnn_tanh: aten.rnn_tanh_cell.default,
    aten.rnn_relu: aten.rnn_relu_cell.default,
}


def unroll(node: fx.Node) -> None:
    """The cells of a recurrent layer in place of ``node``. Packed sequences and projections are
    left as they are."""
    packed = getattr(node.target, "_overloadname", "") != "input"
    if packed or any(kind(u) is not Kind.OUTPUT for u in node.users):
        return
    x, hidden, weights, has_bias, layers, _, _, both_ways, batch_first = arguments(node)
    states = list(hidden) if packet(node) is aten.lstm else [hidden]
    directions, per = (2 if both_ways else 1), (4 if has_bias else 2)
    if len(weights) != layers * directions * per:
        return
    steps = emit(node, aten.transpose.int, x, 0, 1) if batch_first else x
    inputs = [emit(node, aten.select.int, steps, 0, t) for t in range(val(steps).shape[0])]
    last: list[list[fx.Node]] = [[] for _ in states]
    runs = iter(range(layers * directions))
    for _ in range(layers):
        found = []
        for way in (1, -1)[:directions]:
            at = next(runs)
            start = [emit(node, aten.select.int, state, 0, at) for state in states]
            own = weights[at * per : (at + 1) * per]
            outputs, ended = _run(node, inputs[::way], start, own)
            found.append(outputs[::way])
            for state, end in zip(last, ended, strict=True):
                state.append(end)
        both = zip(*found, strict=True)  # what each direction gives, step by step
        inputs = [emit(node, aten.cat.default, [*one], -1) if one[1:] else one[0] for one in both]
    result = emit(node, aten.stack.default, inputs, 1 if batch_first else 0)
    ends = (emit(node, aten.stack.default, state, 0) for state in last)
    swap_results(node, [result, *ends])


def _run(
    node: fx.Node, inputs: list[fx.Node], state: list[fx.Node], weights: list[fx.Node]
) -> tuple[list[fx.Node], list[fx.Node]]:
    """What each step gives, and the state after the last."""
    cell, outputs = CELLS[packet(node)], []
    for x in inputs:
        made = emit(node, cell, x, state if len(state) > 1 else state[0], *weights)
        several = isinstance(val(made), tuple)
        state = [emit(node, operator.getitem, made, i) for i in (0, 1)] if several else [made]
        outputs.append(state[0])
    return outputs, state
