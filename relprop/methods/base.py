"""A Method: a named way to turn one run into scores. Over attention it gives Eq. 13's matrices,
which the roll-up multiplies, or scores per token that it reads off the run itself; at the input it
gives one number per element of every explained input, and there is nothing to roll up."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, fx

from relprop.errors import OptionError, message
from relprop.methods.fusion import checked_ratio, fusion_named
from relprop.tracer.program import Program, Site

Layers = slice | Sequence[int] | None
Level = Literal["attention", "input"]


@dataclass(frozen=True)
class SiteValues:
    """What a run found at one attention site, each (batch, *batch axes of the attention, queries,
    keys); ``None`` if not asked for."""

    site: Site
    attention: Tensor
    gradient: Tensor | None
    relevance: Tensor | None


@dataclass(frozen=True)
class LayerValues:
    """A tensor of the graph that holds tokens: its value and ∂y_t/∂value, each (batch, *one
    sample's shape); ``None``: not asked for.

    ``token_axes``: which axes of one sample's shape are tokens. ``site``: the attention site whose
    layer it ends, if it does.
    """

    node: fx.Node
    value: Tensor
    gradient: Tensor | None
    token_axes: tuple[int, ...]
    site: Site | None = None

    def per_token(self, values: Tensor) -> Tensor:
        """Σ over the axes that are no tokens, (batch, tokens), of something of the tensor's
        shape."""
        features = [i + 1 for i in range(values.dim() - 1) if i not in self.token_axes]
        return values.sum(features).flatten(1) if features else values.flatten(1)


@dataclass(frozen=True)
class TokenMap:
    """Scores of one input's tokens, (batch, tokens), and, if the method has them, their parts by
    layer in forward order, (batch, layers, tokens), and what skip connections alone leave, which
    ``row`` has besides the scores (``identity``, (batch, tokens); ``None``: 0)."""

    scores: Tensor
    layers: Tensor | None = None
    identity: Tensor | None = None


@dataclass(frozen=True)
class Tokens:
    """Which inputs' tokens stand at the queries or the keys of a site, followed by skip
    connections: by name, and whether they are all the tokens of one input, ``exactly``, in order.
    No name: tokens of the model's own (learned queries)."""

    names: tuple[str, ...]
    exactly: bool


@dataclass(frozen=True)
class AttentionValues:
    """What a run found, for a method over attention, and what it can ask of the roll-up.

    ``sites``: the attention sites that ``layers=`` chose, in forward order. ``layers``: the outputs
    of their layers, for a method that needs ``"hidden"``; ``features``: the tensors that
    ``target_layers=`` names, or what the last site's queries, keys and values come from, for one
    that needs ``"features"``. ``content``: by input, which tokens are patches or words that the
    target reads, (batch, tokens), bool (scores of tokens that it does not read become 0). ``last``:
    by input, the index in ``sites`` of the last site that reads its tokens with nothing but skip
    connections between it and the target.

    ``rows(matrices)``: what the head reads through each site alone, all others passed by their skip
    connections: by input (batch, sites, tokens), for a matrix per contraction, meaned over heads.
    ``heads(values, map)``: the same for one site and each of its heads, (batch, heads, tokens);
    ``head_means(values, map)`` the mean of each head's whole map, (batch, heads). ``place(node,
    numbers)``: numbers (batch, *token positions) at a tensor of the graph, handed down to the
    input's tokens by skip connections. ``identity()``: what skip connections alone leave of the
    target, (batch, tokens), by input. ``reads(site)``: whose tokens a site's queries and its keys
    are. ``dense(values, map)``: a site's map with its heads fused, (batch, queries, keys); refused
    for windows. ``move(node, numbers, to)``: as ``place``, down to another tensor of the graph.
    ``received(values, layer)``: the attention that each token of a layer receives, meaned over
    heads and queries, (batch, tokens); ``None`` if the site's keys are other tokens than its
    queries.

    ``grids``: by input, its patches (h, w) and its size (H, W), for an image. ``inputs``: what is
    explained, (batch, *one sample's shape), by name; for one that needs ``"inputs"``,
    ``output(name, value)`` is y_t (batch,) if it were another.

    For a method that needs ``"values"``: ``value(node)`` of V or of a layer's output, and
    ``replay(changed, end, variants)``: the values at ``end``, (variants, batch, ...), if those at
    ``changed`` were ``variants``; ``same_tokens(values, layer)``: whether a site's queries are the
    tokens of a layer's output, one for one; ``projected_norms(values)``: ‖f(x_j)‖, f a head's part
    of the value and output projections, (batch, ..., heads, keys) as in the map;
    ``sum_norms(values)``: ‖Σ_h α_ij f(x_j) + δ_ij x_i‖ after the norm behind the sum, (batch,
    queries, keys).
    """

    sites: Sequence[SiteValues]
    layers: Sequence[LayerValues]
    content: Mapping[str, Tensor]
    last: Mapping[str, int]
    rows: Callable[[Mapping[fx.Node, Tensor]], Mapping[str, Tensor]]
    heads: Callable[[SiteValues, Tensor], Mapping[str, Tensor]]
    head_means: Callable[[SiteValues, Tensor], Tensor]
    place: Callable[[fx.Node, Tensor], Mapping[str, Tensor]]
    identity: Callable[[], Mapping[str, Tensor]]
    reads: Callable[[Site], tuple[Tokens, Tokens]]
    dense: Callable[[SiteValues, Tensor], Tensor]
    move: Callable[[fx.Node, Tensor, fx.Node], Tensor]
    value: Callable[[fx.Node], Tensor]
    replay: Callable[[fx.Node, fx.Node, Tensor], Tensor]
    received: Callable[[SiteValues, LayerValues], Tensor | None]
    same_tokens: Callable[[SiteValues, LayerValues], bool]
    projected_norms: Callable[[SiteValues], Tensor]
    sum_norms: Callable[[SiteValues], Tensor]
    grids: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]] | None]
    inputs: Mapping[str, Tensor]
    output: Callable[[str, Tensor], Tensor]
    features: Sequence[LayerValues] = ()
    run: Any = None


Found = Mapping[fx.Node, Tensor] | Mapping[str, TokenMap]


@dataclass(frozen=True)
class Method:
    """``function(at, **options)``, with ``at`` an ``AttentionValues`` or, at the input level, an
    ``InputValues``.

    Over attention it returns a matrix per contraction node, which is rolled up, or a ``TokenMap``
    per explained input; at the input an attribution per input. ``needs`` says what must be computed
    for it: ``"gradient"``, ``"relevance"``, ``"hidden"``, ``"features"``, ``"values"``,
    ``"projections"``, ``"inputs"``. ``rules`` is the rule set it takes by default. ``shared``: the
    options that are the same for many methods and are applied for it. ``cost``: in forward passes,
    for one target. Its relevance ``starts_with`` 1 at the target, or with y_t, the target's own
    value, so that signed scores are contributions to y_t. ``whole`` are its options whose tensors
    have no entry per sample along their first axis: they are handed on as tuples, and never cut
    with the batch.
    """

    name: str
    function: Callable[..., Mapping[Any, Any]]
    needs: frozenset[str] = frozenset()
    class_specific: bool = True
    level: Level = "attention"
    rules: str = "paper"
    shared: tuple[str, ...] = ()
    signed: bool = False
    cost: str = ""
    source: str = ""
    starts_with: Literal["one", "output"] = "one"
    whole: frozenset[str] = frozenset()

    @property
    def description(self) -> str:
        """What its function's docstring begins with, up to the source in parentheses."""
        return (inspect.getdoc(self.function) or "").split("\n")[0].split(" (")[0].rstrip(".")

    def own_options(self) -> dict[str, Any]:
        """The options its function takes, with their defaults."""
        return {
            p.name: p.default
            for p in list(inspect.signature(self.function).parameters.values())[1:]
        }

    def options(self) -> dict[str, Any]:
        """The options it takes, with their defaults."""
        return self.own_options() | {
            name: SHARED[name] for name in self.shared if name not in self.own_options()
        }

    def checked(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All options with their values; an unknown one is refused, with the list."""
        known = self.options()
        for name in given:
            if name not in known:
                has = f"it has {', '.join(sorted(known))}" if known else "it has none"
                raise OptionError(f"method {self.name!r} has no option {name!r}; {has}")
        found = {
            **known,
            **{
                name: _entries(value) if name in self.whole else value
                for name, value in given.items()
            },
        }
        if "head_fusion" in self.shared:
            fusion_named(found["head_fusion"])
        if "discard_ratio" in self.shared:
            checked_ratio(found["discard_ratio"])
        return found

    def needing(self, options: Mapping[str, Any]) -> frozenset[str]:
        """What must be computed for it with these options."""
        by_gradient = (
            frozenset({"gradient"}) if options.get("head_fusion") == "gradient" else frozenset()
        )
        without = frozenset({"gradient"}) if options.get("use_gradient") is False else frozenset()
        return (self.needs - without) | by_gradient

    def __str__(self) -> str:
        return f"{self.name}: {self.description}"


def _entries(value: Any) -> Any:
    """A tensor as the tuple of its entries, each with a first axis of 1; so are those in a dict."""
    if isinstance(value, Mapping):
        return {name: _entries(v) for name, v in value.items()}
    return value.split(1) if isinstance(value, Tensor) and value.dim() else value


#: Options that are the same wherever a method has them: which sites (in forward order, −1 nearest
#: the output), rows of Ā divided by their sums,
#: how heads become one map, and which part of each map, its smallest entries, is set to 0 before
#: the roll-up.
SHARED: dict[str, Any] = {
    "layers": None,
    "normalize_rows": False,
    "head_fusion": "mean",
    "discard_ratio": 0.0,
}


def chosen_layers(layers: Layers, count: int) -> tuple[int, ...]:
    """The indices that ``layers`` names among ``count`` attention sites in forward order; Python
    indexing, −1 is nearest the output. Raises ``OptionError`` where that is none, or there is no
    such site."""
    if layers is None:
        return tuple(range(count))
    if isinstance(layers, slice) and (chosen := tuple(range(count)[layers])):
        return chosen
    if isinstance(layers, slice) or (isinstance(layers, (list, tuple)) and not layers):
        raise OptionError(
            message(
                f"layers={layers!r} chooses none of the {count} attention sites",
                then=[
                    f"layers=None takes all; or give indices from 0 to {count - 1}, or negative "
                    "ones, of which -1 is nearest the output"
                ],
            )
        )
    if (
        not isinstance(layers, Sequence)
        or isinstance(layers, str)
        or not all(isinstance(i, int) and not isinstance(i, bool) for i in layers)
    ):
        raise OptionError(
            f"layers={layers!r}: give a slice or a list of integers, in forward order"
        )
    bad = [i for i in layers if not -count <= i < count]
    if bad:
        raise OptionError(
            f"layers={list(layers)}: {bad[0]} is out of range for {count} attention sites"
        )
    return tuple(i % count for i in layers)


@dataclass(frozen=True)
class InputValues:
    """What a run found at the explained inputs, by name, each (batch, *one sample's shape): at
    pixels, features, or the embeddings of ids.

    ``gradients`` and ``relevances`` are empty if not asked for. ``forward(*tensors)`` gives y_t of
    every sample, (batch,), for other values of the inputs (one tensor each, in the order of
    ``values``), attached to autograd. ``embed(name, ids)`` gives the embeddings of other ids.
    ``contributions(*references)`` is DeepLIFT's: one tensor per input, given x′ of each, then
    y_t(x) and y_t(x′). ``positions`` are the axes of each value, the batch being axis 0, that have
    a score each; the others are summed over. ``window`` is how many of them lie together along
    each, as ``occlusion`` hides them.
    """

    values: Mapping[str, Tensor]
    gradients: Mapping[str, Tensor]
    relevances: Mapping[str, Tensor]
    forward: Callable[..., Tensor]
    embed: Callable[[str, Tensor], Tensor]
    contributions: Callable[..., tuple[tuple[Tensor, ...], Tensor, Tensor]]
    positions: Mapping[str, tuple[int, ...]]
    window: Mapping[str, tuple[int, ...]]


def refuse_branches(program: Program, method: str) -> None:
    """Refuse, for a method that runs the graph on other values, a model whose Python code branches
    on what it has computed. Raises ``OptionError``."""
    if program.choices:
        raise OptionError(
            f"{method}: the model branches on what it has computed ({program.choices[0]}): its "
            "graph holds for the values as they are"
        )
