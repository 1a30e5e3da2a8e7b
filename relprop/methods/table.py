"""The methods that come with relprop: one table, a line of facts each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from relprop import rules
from relprop.methods import inputs, rows
from relprop.methods.attention import rollout, transformer_attribution
from relprop.methods.deeplift import deeplift
from relprop.methods.flow import attention_flow
from relprop.methods.gae import gae
from relprop.methods.hidden import attcat, cat, gradcam_features
from relprop.methods.left_out import leave_one_out
from relprop.methods.masks import vit_cx
from relprop.methods.occlusion import occlusion
from relprop.methods.plain import PLAIN
from relprop.methods.projection import read_by_projections
from relprop.methods.sampled import gradient_shap, random, smoothgrad
from relprop.methods.values import attention_norm, value_zeroing
from relprop.runner.method import Method

GRADIENT, RELEVANCE = frozenset({"gradient"}), frozenset({"relevance"})
HIDDEN = GRADIENT | {"hidden"}
ROLLED, READ = ("layers", "normalize_rows", "head_fusion"), ("layers", "head_fusion")


def _method(
    function: Callable[..., Mapping[Any, Any]],
    cost: str,
    source: str,
    needs: frozenset[str] = frozenset(),
    shared: tuple[str, ...] = (),
    **facts: Any,
) -> Method:
    """A method under its function's name."""
    name = function.__name__
    facts |= {"cost": cost, "source": source, "shared": shared, "plain": PLAIN[name]}
    return Method(name, function, needs, **facts)


_of_any_class = partial(_method, class_specific=False)
_at_input = partial(_method, level="input")
_added_up = partial(_at_input, signed=True)
_by_rules = partial(_added_up, needs=RELEVANCE, shared=("positions",))
_of_output = partial(_by_rules, starts_with="output")


def _gamma(options: Mapping[str, Any]) -> rules.RuleSet:
    return rules.lrp_gamma(options["gamma"], options["conv_gamma"])


SHIPPED: dict[str, Method] = {
    method.name: method
    for method in (
        _method(
            transformer_attribution,
            "4.9",
            "Chefer, Gur & Wolf, CVPR 2021",
            GRADIENT | RELEVANCE,
            ROLLED,
        ),
        _of_any_class(rollout, "1", "Abnar & Zuidema, ACL 2020", shared=(*ROLLED, "discard_ratio")),
        _of_any_class(rows.raw_attention, "1", "Chefer, Gur & Wolf, CVPR 2021", shared=READ),
        _of_any_class(
            attention_flow, "1 + s flows", "Abnar & Zuidema, ACL 2020", shared=("layers",)
        ),
        _method(
            rows.attention_grad, "2", "Qiang et al., NeurIPS 2022", GRADIENT, READ, signed=True
        ),
        _method(rows.attention_times_grad, "2", "Barkan et al., CIKM 2021", GRADIENT, READ),
        _method(rows.gradcam, "2", "Selvaraju et al., ICCV 2017", GRADIENT, ("layers",)),
        _method(gae, "2", "Chefer, Gur & Wolf, ICCV 2021", GRADIENT, READ),
        _method(
            rows.partial_lrp,
            "4.8",
            "Voita et al., ACL 2019",
            RELEVANCE,
            READ,
            rules="reference_lrp",
        ),
        _method(cat, "2", "Qiang et al., NeurIPS 2022", HIDDEN, ("layers", "part"), signed=True),
        _method(attcat, "2", "Qiang et al., NeurIPS 2022", HIDDEN, ("layers", "part"), signed=True),
        _method(
            gradcam_features,
            "2",
            "Selvaraju et al., ICCV 2017",
            GRADIENT | {"features"},
            ("layers",),
        ),
        _of_any_class(
            attention_norm,
            "1.6",
            "Kobayashi et al., EMNLP 2020",
            frozenset({"inputs"}),
            ROLLED,
            reads=read_by_projections,
        ),
        _of_any_class(
            value_zeroing,
            "0.8 tokens",
            "Mohebbi et al., EACL 2023",
            frozenset({"values", "hidden"}),
            ("layers", "normalize_rows"),
        ),
        _method(
            vit_cx,
            "masks + 1",
            "Xie et al., IJCAI 2023",
            frozenset({"features", "inputs"}),
            ("layers",),
            signed=True,
        ),
        _by_rules(inputs.lrp, "3", "Binder et al., ICANN 2016", rules="lrp"),
        _at_input(inputs.input_gradient, "2", "Simonyan et al., ICLR workshop 2014", GRADIENT),
        _added_up(inputs.gradient_x_input, "2", "Shrikumar et al., 2016", GRADIENT, ("part",)),
        _added_up(
            inputs.integrated_gradients,
            "2 n_steps + 4",
            "Sundararajan et al., ICML 2017",
            shared=("gradient",),
        ),
        _of_output(inputs.attnlrp, "2", "Achtibat et al., ICML 2024", rules="attnlrp"),
        _of_output(inputs.cp_lrp, "2", "Ali et al., ICML 2022", rules="cp_lrp"),
        _of_output(inputs.epsilon_lrp, "2", "Bach et al., PLOS ONE 2015", rules="epsilon"),
        _of_output(inputs.lrp_gamma, "4", "Achtibat et al., ICML 2024", rules=_gamma),
        _at_input(smoothgrad, "2 n_samples + 2", "Smilkov et al., 2017", shared=("gradient",)),
        _added_up(
            gradient_shap,
            "2 n_samples + 2",
            "Lundberg & Lee, NeurIPS 2017",
            shared=("gradient",),
            whole=frozenset({"baselines"}),
        ),
        _added_up(deeplift, "4.1", "Shrikumar et al., ICML 2017", frozenset({"start"})),
        _added_up(occlusion, "windows + 2", "Zeiler & Fergus, ECCV 2014"),
        _added_up(leave_one_out, "groups + 2", "Cohen-Wang et al., NeurIPS 2024", texts=True),
        _at_input(random, "1", "the floor of every table", class_specific=False),
    )
}
