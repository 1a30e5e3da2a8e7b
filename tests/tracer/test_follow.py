"""What is pushed forward through a graph arrives where it should, and nowhere else."""

import torch

from relprop.tracer.follow import depending, follow, reached

aten = torch.ops.aten


def diamond():
    """x → a → b → d and x → c → d, and y beside them."""
    graph = torch.fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    a = graph.call_function(aten.neg.default, (x,))
    b = graph.call_function(aten.relu.default, (a,))
    c = graph.call_function(aten.exp.default, (x,))
    d = graph.call_function(aten.add.Tensor, (b, c))
    e = graph.call_function(aten.mul.Tensor, (y, y))
    graph.output((d, e))
    return graph, x, y, a, b, c, d, e


def test_a_transfer_is_asked_where_an_operand_is_known_and_in_order():
    graph, x, _, a, b, c, d, e = diamond()
    asked = []

    def longest(node, known):
        asked.append(node)
        ways = [known[i] for i in node.all_input_nodes if i in known]
        return 1 + max(ways) if node.op == "call_function" else None

    assert follow(graph.nodes, {x: 0}, longest) == {x: 0, a: 1, b: 2, c: 1, d: 3}
    assert asked[:4] == [a, b, c, d] and e not in asked


def test_what_a_transfer_does_not_know_goes_no_further():
    graph, x, _, a, b, c, d, _ = diamond()
    found = follow(graph.nodes, {x: "x"}, lambda n, _: None if n is b else n.name)
    assert set(found) - set(graph.find_nodes(op="output")) == {x, a, c, d}


def test_a_start_is_never_asked_again():
    graph, x, _, a, _, _, _, _ = diamond()
    assert follow(graph.nodes, {x: 0, a: 7}, lambda n, known: None) == {x: 0, a: 7}


def test_what_depends_on_a_node_other_than_through_some():
    graph, x, y, a, b, c, d, e = diamond()
    (end,) = graph.find_nodes(op="output")
    assert depending(graph.nodes, [x]) == {x, a, b, c, d, end}
    assert depending(graph.nodes, [y]) == {y, e, end}
    assert depending(graph.nodes, [a], lambda n: n is not b) == {a}


def test_what_one_comes_to_from_a_node():
    _, x, y, a, b, c, d, e = diamond()
    assert set(reached([d])) == {d, b, c, a, x} and len(list(reached([d, a]))) == 5
    assert set(reached([d], lambda n: [i for i in n.all_input_nodes if i is not b])) == {d, c, x}
    assert {y, e} < set(reached([y], lambda n: n.users)) and list(reached([])) == []
