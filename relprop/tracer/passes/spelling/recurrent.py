"""LSTM, GRU and plain recurrent layers → their steps, one after another: linear maps, gates and
products that the rules know."""

from __future__ import annotations

from collections.abc import Callable

from torch import fx

from relprop.operations import Kind, kind, packet
from relprop.tracer.editing import arguments, aten, emit, swap_results, val

Step = Callable[[fx.Node, fx.Node, list[fx.Node], list[fx.Node]], list[fx.Node]]
LAYERS = (aten.lstm, aten.gru, aten.rnn_tanh, aten.rnn_relu)


LSTM, GRU = (aten.lstm, aten.lstm_cell), (aten.gru, aten.gru_cell)


TANH = (aten.rnn_tanh, aten.rnn_tanh_cell)


def unroll(node: fx.Node) -> fx.Node | None:
    """The steps of a recurrent layer in place of ``node``, or one step in place of a cell."""
    if packet(node) not in LAYERS:
        return _unroll_cell(node)
    _unroll_layer(node)
    return None


def _unroll_layer(node: fx.Node) -> None:
    """Packed sequences and projections are left as they are."""
    if getattr(node.target, "_overloadname", "") != "input":
        return
    if any(kind(u) is not Kind.OUTPUT for u in node.users):
        return
    x, hidden, weights, has_bias, layers, _, _, both_ways, batch_first = arguments(node)
    states = list(hidden) if packet(node) in LSTM else [hidden]
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
        inputs = found[0] if directions == 1 else _beside(node, *found)
    result = emit(node, aten.stack.default, inputs, 1 if batch_first else 0)
    ends = (emit(node, aten.stack.default, state, 0) for state in last)
    swap_results(node, [result, *ends])


def _beside(node: fx.Node, ahead: list[fx.Node], back: list[fx.Node]) -> list[fx.Node]:
    """What both directions give, step by step."""
    return [emit(node, aten.cat.default, [*pair], -1) for pair in zip(ahead, back, strict=True)]


def _unroll_cell(node: fx.Node) -> fx.Node | None:
    x, hidden, *weights = arguments(node)
    is_lstm = packet(node) in LSTM
    given = list(hidden) if is_lstm else [hidden]
    state = _step(node)(node, x, given, [w for w in weights if w is not None])
    if not is_lstm:
        return state[0]
    swap_results(node, state)
    return None


def _step(node: fx.Node) -> Step:
    op = packet(node)
    return _lstm if op in LSTM else _gru if op in GRU else _plain


def _run(
    node: fx.Node, inputs: list[fx.Node], start: list[fx.Node], weights: list[fx.Node]
) -> tuple[list[fx.Node], list[fx.Node]]:
    state, outputs = start, []
    for x in inputs:
        state = _step(node)(node, x, state, weights)
        outputs.append(state[0])
    return outputs, state


def _maps(node: fx.Node, x: fx.Node, h: fx.Node, weights: list[fx.Node]) -> tuple[fx.Node, fx.Node]:
    of_input, of_state, *biases = weights
    return emit(node, aten.linear.default, x, of_input, *biases[:1]), emit(
        node, aten.linear.default, h, of_state, *biases[1:]
    )


def _parts(node: fx.Node, gates: fx.Node, count: int) -> list[fx.Node]:
    size = val(gates).shape[-1] // count
    return [
        emit(node, aten.slice.Tensor, gates, -1, i * size, (i + 1) * size) for i in range(count)
    ]


def _lstm(node: fx.Node, x: fx.Node, state: list[fx.Node], weights: list[fx.Node]) -> list[fx.Node]:
    i, f, g, o = _parts(node, emit(node, aten.add.Tensor, *_maps(node, x, state[0], weights)), 4)
    i, f, o = (emit(node, aten.sigmoid.default, gate) for gate in (i, f, o))
    kept = emit(node, aten.mul.Tensor, f, state[1])
    c = emit(
        node,
        aten.add.Tensor,
        kept,
        emit(node, aten.mul.Tensor, i, emit(node, aten.tanh.default, g)),
    )
    return [emit(node, aten.mul.Tensor, o, emit(node, aten.tanh.default, c)), c]


def _gru(node: fx.Node, x: fx.Node, state: list[fx.Node], weights: list[fx.Node]) -> list[fx.Node]:
    of_x, of_h = (_parts(node, gates, 3) for gates in _maps(node, x, state[0], weights))
    r, z = (
        emit(node, aten.sigmoid.default, emit(node, aten.add.Tensor, a, b))
        for a, b in zip(of_x[:2], of_h[:2], strict=True)
    )
    n = emit(
        node,
        aten.tanh.default,
        emit(node, aten.add.Tensor, of_x[2], emit(node, aten.mul.Tensor, r, of_h[2])),
    )
    fresh = emit(node, aten.mul.Tensor, emit(node, aten.rsub.Scalar, z, 1), n)
    return [emit(node, aten.add.Tensor, fresh, emit(node, aten.mul.Tensor, z, state[0]))]


def _plain(
    node: fx.Node, x: fx.Node, state: list[fx.Node], weights: list[fx.Node]
) -> list[fx.Node]:
    total = emit(node, aten.add.Tensor, *_maps(node, x, state[0], weights))
    return [emit(node, aten.tanh.default if packet(node) in TANH else aten.relu.default, total)]
