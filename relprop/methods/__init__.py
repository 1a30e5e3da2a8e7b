"""The methods by name, in one table. A user's own are registered the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from relprop.errors import OptionError, message
from relprop.methods.attention import rollout, transformer_attribution
from relprop.methods.base import (
    SHARED,
    AttentionValues,
    Found,
    InputValues,
    LayerValues,
    Level,
    Method,
    SiteValues,
    TokenMap,
    Tokens,
    chosen_layers,
)
from relprop.methods.flow import attention_flow
from relprop.methods.gae import gae
from relprop.methods.hidden import attcat, cat, gradcam_features
from relprop.methods.inputs import (
    attnlrp,
    cp_lrp,
    epsilon_lrp,
    gradient_x_input,
    input_gradient,
    integrated_gradients,
    lrp,
)
from relprop.methods.masks import vit_cx
from relprop.methods.perturbed import deeplift, occlusion
from relprop.methods.positions import positions, windows
from relprop.methods.rows import (
    attention_grad,
    attention_times_grad,
    gradcam,
    partial_lrp,
    raw_attention,
)
from relprop.methods.sampled import gradient_shap, random, smoothgrad
from relprop.methods.values import attention_norm, value_zeroing

GRADIENT, RELEVANCE = frozenset({"gradient"}), frozenset({"relevance"})
NEEDS = frozenset(
    {"gradient", "relevance", "hidden", "features", "values", "projections", "inputs"}
)
ROLLED, READ = ("layers", "normalize_rows", "head_fusion"), ("layers", "head_fusion")

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(
            "transformer_attribution",
            transformer_attribution,
            GRADIENT | RELEVANCE,
            shared=ROLLED,
            cost="5.8",
            source="Chefer, Gur & Wolf, CVPR 2021",
        ),
        Method(
            "rollout",
            rollout,
            class_specific=False,
            shared=(*ROLLED, "discard_ratio"),
            cost="1",
            source="Abnar & Zuidema, ACL 2020",
        ),
        Method(
            "raw_attention",
            raw_attention,
            class_specific=False,
            shared=READ,
            cost="1",
            source="Chefer, Gur & Wolf, CVPR 2021",
        ),
        Method(
            "attention_flow",
            attention_flow,
            class_specific=False,
            shared=("layers",),
            cost="1",
            source="Abnar & Zuidema, ACL 2020",
        ),
        Method(
            "attention_grad",
            attention_grad,
            GRADIENT,
            shared=READ,
            signed=True,
            cost="2",
            source="Qiang et al., NeurIPS 2022",
        ),
        Method(
            "attention_times_grad",
            attention_times_grad,
            GRADIENT,
            shared=READ,
            cost="2",
            source="Barkan et al., CIKM 2021",
        ),
        Method(
            "gradcam",
            gradcam,
            GRADIENT,
            shared=("layers",),
            cost="2",
            source="Selvaraju et al., ICCV 2017",
        ),
        Method("gae", gae, GRADIENT, shared=READ, cost="2", source="Chefer, Gur & Wolf, ICCV 2021"),
        Method(
            "partial_lrp",
            partial_lrp,
            RELEVANCE,
            rules="reference_lrp",
            shared=READ,
            cost="4.8",
            source="Voita et al., ACL 2019",
        ),
        Method(
            "cat",
            cat,
            GRADIENT | {"hidden"},
            shared=("layers",),
            signed=True,
            cost="2",
            source="Qiang et al., NeurIPS 2022",
        ),
        Method(
            "attcat",
            attcat,
            GRADIENT | {"hidden"},
            shared=("layers",),
            signed=True,
            cost="2",
            source="Qiang et al., NeurIPS 2022",
        ),
        Method(
            "gradcam_features",
            gradcam_features,
            GRADIENT | {"features"},
            shared=("layers",),
            cost="2",
            source="Selvaraju et al., ICCV 2017",
        ),
        Method(
            "attention_norm",
            attention_norm,
            frozenset({"projections", "inputs"}),
            False,
            shared=ROLLED,
            cost="1.6",
            source="Kobayashi et al., EMNLP 2020",
        ),
        Method(
            "value_zeroing",
            value_zeroing,
            frozenset({"values", "hidden"}),
            False,
            shared=("layers", "normalize_rows"),
            cost="0.8 tokens",
            source="Mohebbi et al., EACL 2023",
        ),
        Method(
            "vit_cx",
            vit_cx,
            frozenset({"features", "inputs"}),
            shared=("layers",),
            cost="masks + 1",
            source="Xie et al., IJCAI 2023",
        ),
        Method(
            "lrp",
            lrp,
            RELEVANCE,
            level="input",
            rules="lrp",
            signed=True,
            cost="3",
            source="Binder et al., ICANN 2016",
        ),
        Method(
            "input_gradient",
            input_gradient,
            GRADIENT,
            level="input",
            cost="2",
            source="Simonyan et al., ICLR workshop 2014",
        ),
        Method(
            "gradient_x_input",
            gradient_x_input,
            GRADIENT,
            level="input",
            signed=True,
            cost="2",
            source="Shrikumar et al., 2016",
        ),
        Method(
            "integrated_gradients",
            integrated_gradients,
            level="input",
            signed=True,
            cost="2 n_steps + 4",
            source="Sundararajan et al., ICML 2017",
        ),
        Method(
            "attnlrp",
            attnlrp,
            RELEVANCE,
            level="input",
            rules="attnlrp",
            signed=True,
            cost="2",
            source="Achtibat et al., ICML 2024",
            starts_with="output",
        ),
        Method(
            "cp_lrp",
            cp_lrp,
            RELEVANCE,
            level="input",
            rules="cp_lrp",
            signed=True,
            cost="2",
            source="Ali et al., ICML 2022",
            starts_with="output",
        ),
        Method(
            "epsilon_lrp",
            epsilon_lrp,
            RELEVANCE,
            level="input",
            rules="epsilon",
            signed=True,
            cost="3",
            source="Bach et al., PLOS ONE 2015",
            starts_with="output",
        ),
        Method(
            "smoothgrad",
            smoothgrad,
            level="input",
            cost="2 n_samples + 2",
            source="Smilkov et al., 2017",
        ),
        Method(
            "gradient_shap",
            gradient_shap,
            level="input",
            signed=True,
            cost="2 n_samples + 2",
            source="Lundberg & Lee, NeurIPS 2017",
            whole=frozenset({"baselines"}),
        ),
        Method(
            "deeplift",
            deeplift,
            level="input",
            signed=True,
            cost="4.1",
            source="Shrikumar et al., ICML 2017",
        ),
        Method(
            "occlusion",
            occlusion,
            level="input",
            signed=True,
            cost="windows + 1",
            source="Zeiler & Fergus, ECCV 2014",
        ),
        Method(
            "random",
            random,
            class_specific=False,
            level="input",
            cost="1",
            source="the floor of every table",
        ),
    )
}


def input_level() -> tuple[str, ...]:
    """What to use for a model without token attention."""
    return tuple(name for name, method in METHODS.items() if method.level == "input")


class Table(tuple[Method, ...]):
    """Methods; printed, one line each."""

    def __str__(self) -> str:
        head = ("method", "class", "signed", "cost", "source", "what it is")
        rows = [
            head,
            *(
                (
                    m.name,
                    "yes" if m.class_specific else "no",
                    "yes" if m.signed else "no",
                    m.cost,
                    m.source,
                    m.description,
                )
                for m in self
            ),
        ]
        widths = [max(len(row[i]) for row in rows) for i in range(len(head) - 1)]
        return "\n".join(
            "  ".join((*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[-1]))
            for row in rows
        )


def available() -> Table:
    """Every method there is: name, whether it is class-specific, whether signed, cost in forward
    passes for one target, source, one line on what it is.

    >>> import relprop
    >>> "rollout" in {method.name for method in relprop.methods.available()}
    True
    """
    return Table(METHODS.values())


def register(
    name: str,
    function: Callable[..., Any],
    *,
    needs: Iterable[str] = (),
    level: Level = "attention",
    class_specific: bool = True,
    rules: str = "paper",
    shared: Iterable[str] = (),
    signed: bool = False,
    cost: str = "",
    source: str = "",
) -> Method:
    """Add a method of your own: ``relprop.explain(..., method=name)`` and everything that takes a
    method then know it (docs/write-a-method.md).

    Args:
        function: ``function(at, **options)``; ``at`` is an ``AttentionValues`` or, with
            ``level="input"``, an ``InputValues``.
        needs: any of ``"gradient"``, ``"relevance"``, ``"hidden"``, ``"features"``, ``"values"``,
            ``"projections"``, ``"inputs"``: what is computed for it.
        shared: options applied for it: any of ``"layers"``, ``"normalize_rows"``,
            ``"head_fusion"``, ``"discard_ratio"``.

    Raises:
        OptionError: the name is taken, or ``needs`` or ``shared`` name something else.
    """
    method = Method(
        name,
        function,
        frozenset(needs),
        class_specific,
        level,
        rules,
        tuple(shared),
        signed,
        cost,
        source,
    )
    if name in METHODS:
        raise OptionError(
            f"method {name!r} is there already: relprop.methods.remove({name!r}) first"
        )
    if unknown := set(method.needs) - NEEDS:
        raise OptionError(f"needs={sorted(unknown)}: there are {', '.join(sorted(NEEDS))}")
    if unknown := set(method.shared) - set(SHARED):
        raise OptionError(f"shared={sorted(unknown)}: there are {', '.join(sorted(SHARED))}")
    if level not in ("attention", "input"):
        raise OptionError(f"level={level!r}: 'attention' or 'input'")
    METHODS[name] = method
    return method


def remove(name: str) -> None:
    """Take a method away again. Raises ``OptionError`` if there is none of that name."""
    del METHODS[method_named(name, level=None).name]


def method_named(name: str, level: Level | None = "attention") -> Method:
    """A method by its name; an unknown one is answered with the list, and one of another level than
    ``level`` (``None``: any) is refused."""
    if name not in METHODS:
        raise OptionError(f"method={name!r} is no method; there are {', '.join(sorted(METHODS))}")
    if level is not None and METHODS[name].level != level:
        raise OptionError(
            message(
                f"method {name!r} works at the {METHODS[name].level}; here a method at "
                f"the {level} is wanted: "
                f"{', '.join(n for n, m in sorted(METHODS.items()) if m.level == level)}",
                then=[f"relprop.explain(model, inputs, target, method={name!r})"],
            )
        )
    return METHODS[name]


__all__ = [
    "METHODS",
    "AttentionValues",
    "Found",
    "InputValues",
    "LayerValues",
    "Method",
    "SiteValues",
    "Table",
    "TokenMap",
    "Tokens",
    "available",
    "chosen_layers",
    "input_level",
    "method_named",
    "positions",
    "register",
    "remove",
    "windows",
]
