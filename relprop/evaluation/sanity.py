"""Sanity checks: does the map depend on the model's parameters, and on the class that it
explains?"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from relprop.api.explain import trace
from relprop.api.rounding import rank_correlation
from relprop.error_boundary import guarded
from relprop.errors import InputError, OptionError
from relprop.evaluation.base import bools, finite, warn_of_nan
from relprop.explanation import Explanation
from relprop.tracer.program import Program

Maps = Explanation | Tensor


@guarded
@dataclass(frozen=True, eq=False)
class RandomizationCurve:
    """Likeness to the trained model's maps: ``similarity`` (batch, stages), Spearman's ρ;
    ``stages``: the last module randomised at each. NaN: a constant map."""

    similarity: Tensor
    stages: tuple[str, ...]

    @property
    def values(self) -> Tensor:
        """(batch,), float64: each sample's mean over the stages, for ``bootstrap``."""
        return self.similarity.nanmean(1)

    @property
    def at(self) -> Tensor:
        """(stages,), float64: the mean over samples at each stage."""
        return self.similarity.nanmean(0)


@guarded
@dataclass(frozen=True)
class ParameterRandomization:
    """How alike a map stays while the model's parameters are randomised, module after module from
    the output down (Adebayo et al. 2018). Lower is better.

    The modules that have parameters are randomised in the reverse of the order in which the model
    first uses them, each staying so (cascading), in ``stages`` steps of about equally many modules;
    after each the samples are explained anew and compared with the trained model's maps, Spearman's
    ρ over the content tokens. A map that stays alike does not explain what the model has learned.
    """

    stages: int = 8
    seed: int = 0

    name: ClassVar[str] = "parameter randomisation"
    higher_is_better: ClassVar[bool] = False
    protocol: ClassVar[str] = "paper"
    source: ClassVar[str] = "Adebayo et al., NeurIPS 2018 (cascading randomisation)"
    deviations: ClassVar[tuple[str, ...]] = (
        "A parameter is randomised by shuffling its entries, which keeps their distribution; the "
        "paper draws from the initialiser, which a trained module no longer knows.",
        "The maps are compared as they are, with their signs; the paper does this and "
        "also compares absolute values.",
        "Order is that of first use in the model's graph, which needs no list of layers; "
        "parameters that the output does not use are left alone.",
    )

    def __post_init__(self) -> None:
        if self.stages < 1:
            raise OptionError(f"stages={self.stages}: at least 1")

    def __call__(
        self,
        model: nn.Module,
        inputs: Any,
        explain: Callable[[nn.Module], Maps],
        *,
        content: Any = None,
    ) -> RandomizationCurve:
        """The likeness at each stage. ``model`` is left as it is: copies are randomised.

        ``explain``: a function of a model that gives its maps, an ``Explanation`` of ``inputs`` or
        a tensor (batch, ...), always for the same targets. ``inputs``: what the model is called
        with, to find the order of its modules. ``content`` (batch, tokens): what is compared; an
        explanation knows. Raises ``InputError``.
        """
        before = _compared(explain(model), content)
        randomised = copy.deepcopy(model)
        groups = list(_from_the_output(trace(model, inputs), randomised))
        if not groups:
            fact = "the model's output depends on no parameter"
            raise InputError(f"{fact}: there is nothing to randomise")
        count = min(self.stages, len(groups))
        generator, found, names = torch.Generator().manual_seed(self.seed), [], []
        for stage in range(count):
            now = groups[len(groups) * stage // count : len(groups) * (stage + 1) // count]
            for parameter in (p for _, parameters in now for p in parameters):
                order = torch.randperm(parameter.numel(), generator=generator)
                shuffled = parameter.data.flatten()[order.to(parameter.device)]
                parameter.data = shuffled.view_as(parameter)
            names.append(now[-1][0])
            found.append(_correlations(before, _compared(explain(randomised), content)))
        return RandomizationCurve(torch.stack(found, 1), tuple(names))


@guarded
@dataclass(frozen=True)
class ClassSensitivity:
    """Spearman's ρ of the maps of two classes: 1 where the explanation does not depend on what it
    explains. Lower is better.

    >>> import torch
    >>> ClassSensitivity()(torch.tensor([[0.1, 0.2, 0.3]]), torch.tensor([[0.3, 0.2, 0.1]])).round()
    tensor([-1.], dtype=torch.float64)
    """

    name: ClassVar[str] = "class sensitivity"
    higher_is_better: ClassVar[bool] = False
    protocol: ClassVar[str] = "paper"
    source: ClassVar[str] = (
        "Sixt, Granz & Landgraf, ICML 2020 (random logit test); Chefer, Gur & Wolf, CVPR "
        "2021, Fig. 3"
    )
    deviations: ClassVar[tuple[str, ...]] = (
        "The sources compare by SSIM or by eye; here by rank, over the content tokens or "
        "all pixels, which no scale of the colours can change.",
        "A constant map has no ranks: the sample's value is NaN, and a warning says so.",
    )

    def __call__(self, maps: Maps, others: Maps, *, content: Any = None) -> Tensor:
        """(batch,), float64, in [−1, 1]. ``maps`` and ``others``: the same samples for two classes,
        explanations or tensors (batch, ...). Raises ``InputError``."""
        found = _correlations(_compared(maps, content), _compared(others, content))
        warn_of_nan(self.name, found.isnan(), "one of their maps is constant")
        return found


def _compared(maps: Maps, content: Any) -> list[Tensor]:
    """For each sample the numbers that are compared, float64."""
    if isinstance(maps, Explanation):
        content, maps = maps.content if content is None else content, maps.scores
    flat = maps.flatten(1) if maps.dim() > 2 else maps
    values = finite("maps", flat, "batch, tokens").cpu().double()
    if content is None:
        return list(values)
    kept = bools("content", content, values.shape)
    return [row[keep] for row, keep in zip(values, kept, strict=True)]


def _correlations(a: list[Tensor], b: list[Tensor]) -> Tensor:
    if [len(row) for row in a] != [len(row) for row in b]:
        given = f"maps of {len(a)} and {len(b)} samples, or of different sizes"
        raise InputError(f"{given}: the same tokens are needed")
    return torch.stack([rank_correlation(x, y) for x, y in zip(a, b, strict=True)]).double()


def _from_the_output(
    program: Program, model: nn.Module
) -> Iterator[tuple[str, list[nn.Parameter]]]:
    """The modules with parameters that the output uses, each with its own, last used first; a
    parameter of several names goes with the one the graph has."""
    order = {node: i for i, node in enumerate(program.graph.nodes)}
    used = sorted(
        (min(order[user] for user in node.users), str(node.target))
        for node in program.graph.nodes
        if node.op == "get_attr" and node.users
    )
    known, done = dict(model.named_parameters(remove_duplicate=False)), set()
    groups: dict[str, list[nn.Parameter]] = {}
    for _, target in used:
        name = target.removeprefix("model.")
        if name in known and id(known[name]) not in done:
            done.add(id(known[name]))
            groups.setdefault(name.rpartition(".")[0], []).append(known[name])
    yield from reversed(groups.items())
