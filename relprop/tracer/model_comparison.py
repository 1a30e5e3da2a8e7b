"""The model itself, run as its user would run it, and its outputs against what a program
computed for the same samples."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import Tensor, fx, nn

from relprop.errors import InputError
from relprop.operations import Value
from relprop.tracer.binding import Inputs, flatten_output
from relprop.tracer.draws import Replayed
from relprop.tracer.editing import val
from relprop.tracer.facts import is_batched
from relprop.tracer.flat import run_eager
from relprop.tracer.modules import named_modules
from relprop.tracer.program import OutputTree, Program, is_floating
from relprop.tracer.readout import Head, Indices, sizes, taken, whole_index, within
from relprop.tracer.run import execute
from relprop.tracer.shadow import thread_safe
from relprop.tracer.side_effects import restored
from relprop.tracer.surroundings import as_python, other_chance, undisturbed
from relprop.tracer.undoing import cleanup_steps

#: How far a program may be from its model, of an output's largest value: by the coarsest type that
#: either computes in (its ε at most the first number): float64, float32, float16, bfloat16.
TOLERANCES = ((1e-15, 1e-9), (1e-6, 4e-4), (1e-3, 0.03), (1e-2, 0.1))
COARSER = 0.25
#: How many numbers are compared at once: in double precision they take several times their memory.
PIECE = 2**20
#: How often a model that draws is run with other numbers, to see whether it returns another output.
TRIES = 8
#: The numbers that a model draws, by which draw they are.
Numbers = Mapping[int, Tensor]
NO_NUMBERS: Numbers = MappingProxyType({})
#: What a model returned, and how it is put together.
Run = tuple[list[Tensor], OutputTree]


def tolerance(program: Program, dtype: torch.dtype) -> float:
    """How far an output of ``dtype`` may be from the model's, relative to its largest value; none
    for whole numbers."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return 0.0
    written = program.memo.cache("coarsest", lambda: _coarsest(program.graph))
    own = torch.finfo(program.dtype).eps if program.dtype is not None else 0.0
    return _allowed(max(written, torch.finfo(dtype).eps, own))


def _coarsest(graph: fx.Graph) -> float:
    """The ε of the coarsest type that a graph computes in."""
    made = (val(n) for n in graph.nodes if n.op == "call_function" and is_floating(n))
    return max((torch.finfo(value.dtype).eps for value in made), default=0.0)


def _allowed(coarsest: float) -> float:
    return next((allowed for eps, allowed in TOLERANCES if coarsest <= eps), COARSER)


def difference(a: Tensor, b: Tensor) -> tuple[float, float]:
    """The largest difference of two tensors, and the largest magnitude; where both hold the same
    infinity or both NaN they agree."""
    if a.shape != b.shape:
        return float("inf"), 0.0
    return _apart(a[None], b[None]).max().item(), largest(b)


def _apart(a: Tensor, b: Tensor) -> Tensor:
    """The largest difference of each of several tensors."""
    if a.is_complex() or b.is_complex():
        a, b = (torch.view_as_real(t.to(torch.complex64)) for t in (a, b))
    wide = torch.float32 if a.device.type == "mps" else torch.float64
    worst = torch.zeros(len(a), dtype=wide, device=a.device)
    pieces = (t.reshape(len(t), -1).split(max(1, PIECE // max(1, len(t))), 1) for t in (a, b))
    for mine, theirs in zip(*pieces, strict=True):
        if not mine.numel():
            continue
        x, y = mine.to(wide), theirs.to(a.device, wide)
        agree = (x == y) | (x.isnan() & y.isnan())
        worst = torch.maximum(worst, torch.where(agree, 0.0, x - y).abs().amax(1))
    return torch.where(worst.isnan(), torch.inf, worst)


def largest(value: Tensor) -> float:
    """The largest magnitude that is finite."""
    value = torch.view_as_real(value) if value.is_complex() else value
    pieces = (p.nan_to_num(0.0, 0.0, 0.0) for p in value.reshape(-1).split(PIECE) if p.numel())
    return max((max(-float(p.min()), float(p.max())) for p in pieces), default=0.0)


def model_outputs(model: nn.Module, inputs: Inputs, draws: Numbers = NO_NUMBERS) -> list[Tensor]:
    """The tensors that the model itself returns (see ``model_run``)."""
    return model_run(model, inputs, draws)[0]


def model_run(
    model: nn.Module,
    inputs: Inputs,
    draws: Numbers = NO_NUMBERS,
    watch: AbstractContextManager[object] | None = None,
) -> Run:
    """The tensors that the model itself returns, in eval mode, without gradients, and how they are
    put together; what running it changes is taken back, or seen by nobody (other threads may call
    the model meanwhile). ``draws``: the numbers that it draws, by which draw they are; ``watch``:
    what looks at its calls."""
    run = thread_safe(model)
    if run is not model:
        with contextlib.suppress(InputError):  # a model that no shadow runs for
            return _outputs(run, inputs, draws, watch)
    return _outputs(model, inputs, draws, watch)


def outputs_of_few(
    model: nn.Module,
    inputs: Inputs,
    heads: Sequence[Head],
    watch: AbstractContextManager[object] | None = None,
) -> tuple[list[Tensor], Indices]:
    """The tensors that the model itself returns, its ``heads`` run on the positions that are read
    alone, and the outputs that were made so, with what there is of them. Raises ``InputError``
    where that is no way to run it."""
    run = thread_safe(model)
    with giving_few(run, heads) as given:
        outputs, _ = _outputs(run, inputs, {}, watch)
        return outputs, given()


@contextlib.contextmanager
def giving_few(model: nn.Module, heads: Sequence[Head]) -> Iterator[Callable[[], Indices]]:
    """Within, the model's ``heads`` run on the positions that are read alone. Gives what tells the
    outputs that were made so, with what there is of them."""
    there = dict(named_modules(model))
    hooks = [_GiveFew(head) for head in heads if head.path in there]
    with cleanup_steps() as steps:
        for hook in hooks:
            steps.append(there[hook.head.path].register_forward_pre_hook(hook).remove)
        yield lambda: {hook.head.output: hook.head.index for hook in hooks if hook.gave}


def watched_run(
    model: nn.Module, inputs: Inputs, see: Callable[[str, object], None], draws: Numbers
) -> None:
    """Run the model as ``model_run`` does, and show ``see`` what each of its modules returns, by
    the module's name, whenever it is called."""
    run = thread_safe(model)
    with cleanup_steps() as steps:
        for path, module in named_modules(run):
            if path and not isinstance(module, torch.jit.ScriptModule):
                steps.append(module.register_forward_hook(_Show(path, see)).remove)
        _outputs(run, inputs, draws)


class _Show:
    """A hook that shows what a module returns; in no attribute, since these are taken back after a
    run, and what they hold."""

    __slots__ = ("path", "see")

    def __init__(self, path: str, see: Callable[[str, object], None]) -> None:
        self.path, self.see = path, see

    def __call__(self, module: nn.Module, given: object, output: object) -> None:
        self.see(self.path, output)


class _GiveFew:
    """A hook that hands a head few positions, and notes that it did, in no attribute that is taken
    back after a run."""

    __slots__ = ("gave", "head")

    def __init__(self, head: Head) -> None:
        self.head, self.gave = head, False

    def __call__(self, module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor] | None:
        if self.gave:
            raise InputError(f"{self.head.path!r} reads more than an output")
        hooked = len(module._forward_pre_hooks) > 1 or module._forward_hooks
        if hooked or not isinstance(module, nn.Linear) or len(args) != 1:
            return None
        features = self.head.of_few(args[0])
        self.gave = features is not None
        return None if features is None else (features,)


def _outputs(
    model: nn.Module,
    inputs: Inputs,
    draws: Numbers,
    watch: AbstractContextManager[object] | None = None,
) -> Run:
    trees: list[OutputTree] = []

    def call(*tensors: Tensor) -> list[Tensor]:
        args, kwargs = inputs.rebuild(tensors)
        with watch or contextlib.nullcontext():
            flat, tree = flatten_output(model(*args, **kwargs))
        trees.append(tree)
        return flat

    with (
        undisturbed(model),
        torch.no_grad(),
        as_python(model),
        restored(model),
        Replayed(draws) if draws else torch.no_grad(),
    ):
        return run_eager(call, inputs, model), trees[0]


@dataclass(frozen=True)
class Gap:
    """An output that isn't the model's: of which samples, how far ``apart`` the two are at the most
    (infinitely where the shapes do not match), and the output's largest value."""

    output: str
    samples: tuple[int, ...]
    apart: float
    largest: float = 0.0

    @property
    def error(self) -> float:
        """The largest difference, relative to the output's largest value."""
        return self.apart / self.largest if self.largest else float("inf")


@dataclass(frozen=True)
class Expected:
    """What a model returned at one output: a row for each sample that is compared, with all or some
    places of it (``None``: that cannot be told), and the largest magnitude of the whole output."""

    rows: Tensor | None
    largest: float


def expected(
    program: Program,
    eager: Sequence[Tensor],
    indices: Indices,
    some: slice = slice(None),
    batch: int = 1,
    kept: Indices = MappingProxyType({}),
) -> dict[str, Expected]:
    """What a model returned for a ``batch`` (``eager``), of ``some`` of its samples: at the outputs
    of ``indices``, the places of these, by the outputs' names. ``kept``: the outputs of which
    ``eager`` has not all places."""
    found = {}
    for name, node, whole in zip(program.outputs.names, program.output_nodes, eager, strict=False):
        if node not in indices:
            continue
        there = kept.get(node, whole_index(node))
        rows = rows_of(whole, torch.Size(sizes(node, there)), batch)
        part = None if rows is None else taken(node, rows[some], within(indices[node], there))
        found[name] = Expected(part, 0.0 if rows is None else largest(rows))
    return found


def gaps(
    program: Program,
    values: Mapping[fx.Node, Value],
    wanted: Mapping[str, Expected],
    batch: int,
    closer: float = 1.0,
) -> list[Gap]:
    """The outputs that are ``wanted`` whose ``values``, of a ``batch`` of samples and of the same
    places, are not what the model returned; ``closer``: by how much less they may be off."""
    found = []
    for name, node in zip(program.outputs.names, program.output_nodes, strict=True):
        if name not in wanted:
            continue
        mine, theirs, scale = values[node].detach(), wanted[name].rows, wanted[name].largest
        mine = mine if is_batched(node) else mine.expand(batch, *mine.shape)
        if theirs is None:
            found.append(Gap(name, tuple(range(batch)), float("inf")))
            continue
        error = _apart(mine, theirs)
        wrong = error > tolerance(program, theirs.dtype) * scale / closer
        if wrong.any():
            samples = tuple(wrong.nonzero()[:, 0].tolist())
            found.append(Gap(name, samples, error.max().item(), scale))
    return found


def rows_of(eager: Tensor, sample: torch.Size, batch: int) -> Tensor | None:
    """What a model returned for a batch as one row per sample, each of the shape that it returns
    for one sample; ``None``: that cannot be told. Of a similarity of all samples with all others
    (images and texts), a sample's row is its similarity with itself."""
    if eager.dim() == len(sample) > 0:
        pairs = zip(eager.shape, sample, strict=True)
        along = [d for d, (whole, one) in enumerate(pairs) if whole != one]
        if all(eager.shape[d] == batch * sample[d] for d in {0, *along}):
            rows: Tensor = eager.unflatten(0, (batch, sample[0]))
            for d in set(along) - {0}:
                pairs = rows.unflatten(d + 1, (batch, sample[d]))
                rows = pairs.diagonal(0, 0, d + 1).movedim(-1, 0)
            return rows
    if eager.shape == (batch, *sample):
        return eager
    return eager.expand(batch, *sample) if eager.shape == sample else None


def is_row(alone: Tensor, eager: Tensor, sample: int, batch: int) -> bool:
    """Whether what a model returned for one sample alone is the sample's part of what it returned
    for a batch."""
    rows = rows_of(eager, alone.shape, batch)
    if rows is None:
        return False
    error = _apart(alone[None], rows[sample : sample + 1])
    allowed = _allowed(torch.finfo(eager.dtype).eps) if eager.is_floating_point() else 0.0
    return bool(error[0] <= allowed * largest(rows))


def unsteady(model: nn.Module, inputs: Inputs, before: Sequence[Tensor], draws: Numbers) -> bool:
    """Whether the model, run again on the same inputs, returns something else than ``before``."""
    again = model_outputs(model, inputs, draws)
    return len(again) != len(before) or not all(
        is_row(a, b[None], 0, 1) for a, b in zip(again, before, strict=True)
    )


#: What to say of a model that is.
UNSTEADY = (
    "the model returns something else when it is run again on the same inputs: it draws numbers "
    "by a generator of its own, or counts its calls"
)
KEEP_STEADY = [
    "draw by torch, numpy.random or random, whose states are put back, or seed a generator of its "
    "own in its forward",
    "keep no count that its output depends on",
]


def other_draws(
    program: Program,
    model: nn.Module,
    one: Inputs,
    values: Mapping[fx.Node, Value],
    indices: Indices,
) -> Gap | None:
    """An output of the model for one sample, at the places of ``indices``, that is another than a
    program's ``values`` when it draws other numbers; ``None`` if none is."""
    for seed in range(TRIES):
        with other_chance(model, seed):
            drawn = expected(program, model_outputs(model, one), indices)
        if found := gaps(program, values, drawn, 1):
            return found[0]
    return None


def rounding_decides(
    program: Program,
    model: nn.Module,
    one: Inputs,
    values: Mapping[fx.Node, Value],
    indices: Indices,
) -> bool:
    """Whether a program's own outputs for one sample, at the places of ``indices``, are others in
    float64, or if what is explained is off by its last digits: rounding then decides which of
    nearly equal values the model picks, or is all that there is of the output."""
    wide, leaves = replace(program, dtype=torch.float64), set(program.leaves.values())
    for other, watch in ((wide, set[fx.Node]()), (program, leaves)):
        found = execute(other, model, one, indices, watch, _nudged)
        outputs = [found.get(node, torch.empty(0)) for node in program.output_nodes]
        if gaps(program, values, expected(program, outputs, indices), 1):
            return True
    return False


def _nudged(_: fx.Node, value: Value) -> Value:
    """A value a few units in the last place larger, or smaller."""
    chance = torch.Generator().manual_seed(0)
    by = torch.randn(value.shape, generator=chance).to(value.device, value.dtype)
    return value * (1 + 4 * torch.finfo(value.dtype).eps * by)
