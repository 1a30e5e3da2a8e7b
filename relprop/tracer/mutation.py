"""In-place operations made functional, also through views: who reads a tensor, or any view of it,
after a write reads what was written."""

from __future__ import annotations

from typing import Any

from torch import Tensor, fx

from relprop.errors import CaptureError, message
from relprop.tracer.capture import is_inplace
from relprop.tracer.editing import argument, aten, emit, is_tensor, name_of, val

VIEWS = frozenset(
    "view _unsafe_view reshape flatten unflatten squeeze unsqueeze transpose permute t "
    "select slice narrow diagonal as_strided alias detach contiguous to "
    "split split_with_sizes chunk unbind expand view_as reshape_as numpy_T mT movedim swapaxes".split()  # noqa: E501
)


def functionalise(graph: fx.Graph) -> None:
    """``x.add_(y)`` → ``x = add(x, y)``: later uses of ``x``, of what it is a view of, and of other
    views of that, read the new value."""
    if any(node.op == "call_function" and is_inplace(node) for node in graph.nodes):
        _Versions(graph).run()


class _Versions:
    """Each original node's value as of now: which node computes it, and whether a write elsewhere
    has outdated it."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.now: dict[fx.Node, fx.Node] = {}
        self.parent: dict[fx.Node, fx.Node] = {}
        self.family: dict[fx.Node, list[fx.Node]] = {}
        self.stale: set[fx.Node] = set()

    def run(self) -> None:
        """Walk the graph once, in order."""
        for node in list(self.graph.nodes):
            writes = node.op == "call_function" and is_inplace(node)
            first = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
            node.args = fx.node.map_arg(node.args, lambda n, at=node: self._read(n, at))
            node.kwargs = fx.node.map_arg(node.kwargs, lambda n, at=node: self._read(n, at))
            self.now[node] = node
            shown = first if writes else self._viewed(node, first)
            if shown is None:
                self.family[node] = [node]
            else:
                self.parent[node] = shown
                self.family[node] = self.family[shown]
                self.family[node].append(node)
            if writes:
                self._write(node, first)  # type: ignore[arg-type]

    def _viewed(self, node: fx.Node, first: fx.Node | None) -> fx.Node | None:
        """The tensor that ``node`` is a view of, if it is one."""
        if first is None:
            return None
        if (
            name_of(node) == "getitem"
            and first in self.parent
            and not isinstance(val(first), Tensor)
        ):
            return self.parent[first]
        if name_of(node) not in VIEWS:
            return None
        source, made = val(first), val(node)
        if isinstance(made, (list, tuple)):
            return first
        if name_of(node) == "to" and (source.dtype != made.dtype or source.device != made.device):
            return None
        if name_of(node) == "contiguous" and not source.is_contiguous():
            return None
        copies = name_of(node) in ("reshape", "flatten", "reshape_as") and not _is_view(
            source, tuple(made.shape)
        )
        return None if copies else first

    def _read(self, node: fx.Node, at: fx.Node) -> fx.Node:
        """The node that computes ``node``'s value at ``at``: an outdated view is taken anew."""
        if node in self.stale:
            self.stale.discard(node)
            self.now[node] = self._again(node, self._read(self.parent[node], at), at)
        return self.now[node]

    def _again(self, node: fx.Node, whole: fx.Node, at: fx.Node) -> fx.Node:
        if node.meta.get("wrote"):  # an in-place op returns the tensor it wrote into
            return whole
        if name_of(node) == "getitem":
            dim, start, size = _piece(node, whole)
            return (
                emit(at, aten.select.int, whole, dim, start)
                if size is None
                else emit(at, aten.slice.Tensor, whole, dim, start, start + size)
            )
        with self.graph.inserting_before(at):
            made = self.graph.create_node(
                node.op, node.target, (whole, *node.args[1:]), node.kwargs
            )
        made.meta = dict(node.meta)
        return made

    def _write(self, node: fx.Node, base: fx.Node) -> None:
        """``node`` becomes the functional form; its value is now that of ``base``, and what
        ``base`` is a view of is put together anew."""
        _make_functional(node)
        node.meta["wrote"] = True
        chain, child, after = {base, node}, base, node.next
        self.now[base] = node
        while child in self.parent:
            above = self.parent[child]
            if child.meta.get("wrote") or name_of(child) in ("alias", "detach", "contiguous", "to"):
                self.now[above] = self.now[child]
                self.stale.discard(above)
            else:
                self.now[above] = _put_back(after, self._read(above, after), self.now[child], child)
            chain.add(above)
            child = above
        self.stale |= {n for n in self.family[base] if n not in chain}


def _is_view(source: Tensor, shape: tuple[int, ...]) -> bool:
    try:
        source.view(shape)
    except RuntimeError:
        return False
    return True


def _make_functional(node: fx.Node) -> None:
    name, base = name_of(node)[:-1], node.args[0]
    if name == "copy":
        source: Any = node.args[1]
        if is_tensor(source) and val(source).dtype != val(base).dtype:
            source = emit(node, aten.to.dtype, source, val(base).dtype)
        node.target, node.args = aten.expand.default, (source, list(val(base).shape))
    elif name in ("fill", "zero"):
        value = 0 if name == "zero" else node.args[1]
        if is_tensor(value):
            node.target, node.args = (
                aten.expand.default,
                (emit(node, aten.to.dtype, value, val(base).dtype), list(val(base).shape)),
            )
        else:
            node.target, node.args = aten.full_like.default, (base, value)
    else:
        packet = getattr(aten, name, None)
        functional = next(
            (
                f
                for o in (node.target._overloadname, "default")
                if (f := getattr(packet, o, None)) is not None
            ),
            None,
        )  # type: ignore[union-attr]
        if functional is None:
            raise CaptureError(
                message(f"no functional form of {node.target}", at=str(node.meta["place"]))
            )
        node.target = functional
    if is_tensor(base) and isinstance(val(node), Tensor) and val(node).dtype != val(base).dtype:
        raise CaptureError(
            message(
                f"{node.target} writes {val(node).dtype} into {val(base).dtype}",
                at=str(node.meta["place"]),
            )
        )


def _put_back(at: fx.Node, whole: fx.Node, part: fx.Node, view: fx.Node) -> fx.Node:
    """``whole`` with ``part`` in the place that ``view`` shows."""
    name, shape = name_of(view), list(val(whole).shape)
    if name in (
        "view",
        "_unsafe_view",
        "reshape",
        "flatten",
        "unflatten",
        "squeeze",
        "unsqueeze",
        "view_as",
        "reshape_as",
    ):
        return emit(at, aten.reshape.default, part, shape)
    if name in ("transpose", "swapaxes"):
        return emit(at, aten.transpose.int, part, view.args[1], view.args[2])
    if name in ("t", "mT"):
        return emit(at, aten.transpose.int, part, -2, -1)
    if name == "permute":
        dims = [d % len(shape) for d in argument(view, 1, "dims")]
        return emit(at, aten.permute.default, part, [dims.index(i) for i in range(len(dims))])
    if name == "select":
        return emit(
            at,
            aten.select_scatter.default,
            whole,
            part,
            argument(view, 1, "dim", 0),
            argument(view, 2, "index"),
        )
    if name == "slice":
        dim = argument(view, 1, "dim", 0)
        start, end, step = (
            argument(view, 2 + i, n, d)
            for i, (n, d) in enumerate((("start", None), ("end", None), ("step", 1)))
        )
        return emit(
            at,
            aten.slice_scatter.default,
            whole,
            part,
            dim,
            *slice(start, end, step).indices(shape[dim]),
        )
    if name == "narrow":
        return emit(
            at,
            aten.slice_scatter.default,
            whole,
            part,
            view.args[1],
            view.args[2],
            view.args[2] + view.args[3],
        )
    if name == "diagonal":
        return emit(at, aten.diagonal_scatter.default, whole, part, *view.args[1:])
    if name == "as_strided":
        return emit(at, aten.as_strided_scatter.default, whole, part, *view.args[1:])
    if name == "getitem":
        return _put_piece_back(at, whole, part, view)
    raise CaptureError(
        message(
            f"the model writes in place into a view by {view.target}, which has no inverse",
            at=str(view.meta["place"]),
        )
    )


def _put_piece_back(at: fx.Node, whole: fx.Node, part: fx.Node, view: fx.Node) -> fx.Node:
    dim, start, size = _piece(view, whole)
    if size is None:
        return emit(at, aten.select_scatter.default, whole, part, dim, start)
    return emit(at, aten.slice_scatter.default, whole, part, dim, start, start + size)


def _piece(view: fx.Node, whole: fx.Node) -> tuple[int, int, int | None]:
    """Axis, start and length (``None``: the axis is gone) of one result of split, chunk or
    unbind."""
    pieces, index = view.args
    dim = argument(pieces, 1 if name_of(pieces) == "unbind" else 2, "dim", 0) % val(whole).dim()
    if name_of(pieces) == "unbind":
        return dim, index, None
    sizes = [piece.shape[dim] for piece in val(pieces)]
    return dim, sum(sizes[:index]), sizes[index]
