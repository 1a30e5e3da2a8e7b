"""The methods that come with relprop: one table, a line of facts each."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from relprop import rules
from relprop.methods.attention import rollout, transformer_attribution
from relprop.methods.deeplift import deeplift
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
    lrp_gamma,
)
from relprop.methods.left_out import leave_one_out
from relprop.methods.masks import vit_cx
from relprop.methods.occlusion import occlusion
from relprop.methods.plain import PLAIN
from relprop.methods.projection import read_by_projections
from relprop.methods.rows import (
    attention_grad,
    attention_times_grad,
    gradcam,
    partial_lrp,
    raw_attention,
)
from relprop.methods.sampled import gradient_shap, random, smoothgrad
from relprop.methods.values import attention_norm, value_zeroing
from relprop.runner.method import Method

GRADIENT, RELEVANCE = frozenset({"gradient"}), frozenset({"relevance"})
ROLLED, READ = ("layers", "normalize_rows", "head_fusion"), ("layers", "head_fusion")
#: Relevance at the input.
BY_RULES = partial(Method, level="input", shared=("positions",), signed=True)

SHIPPED: dict[str, Method] = {
    method.name: replace(method, plain=PLAIN[method.name])
    for method in (
        Method(
            "transformer_attribution",
            transformer_attribution,
            GRADIENT | RELEVANCE,
            shared=ROLLED,
            cost="4.9",
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
            cost="1 + s flows",
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
            shared=("layers", "part"),
            signed=True,
            cost="2",
            source="Qiang et al., NeurIPS 2022",
        ),
        Method(
            "attcat",
            attcat,
            GRADIENT | {"hidden"},
            shared=("layers", "part"),
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
            frozenset({"inputs"}),
            False,
            reads=read_by_projections,
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
            signed=True,
            cost="masks + 1",
            source="Xie et al., IJCAI 2023",
        ),
        BY_RULES(
            "lrp",
            lrp,
            RELEVANCE,
            rules="lrp",
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
            shared=("part",),
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
            shared=("gradient",),
            source="Sundararajan et al., ICML 2017",
        ),
        BY_RULES(
            "attnlrp",
            attnlrp,
            RELEVANCE,
            rules="attnlrp",
            cost="2",
            source="Achtibat et al., ICML 2024",
            starts_with="output",
        ),
        BY_RULES(
            "cp_lrp",
            cp_lrp,
            RELEVANCE,
            rules="cp_lrp",
            cost="2",
            source="Ali et al., ICML 2022",
            starts_with="output",
        ),
        BY_RULES(
            "epsilon_lrp",
            epsilon_lrp,
            RELEVANCE,
            rules="epsilon",
            cost="2",
            source="Bach et al., PLOS ONE 2015",
            starts_with="output",
        ),
        BY_RULES(
            "lrp_gamma",
            lrp_gamma,
            RELEVANCE,
            rules=lambda options: rules.lrp_gamma(options["gamma"], options["conv_gamma"]),
            cost="4",
            source="Achtibat et al., ICML 2024",
            starts_with="output",
        ),
        Method(
            "smoothgrad",
            smoothgrad,
            level="input",
            cost="2 n_samples + 2",
            shared=("gradient",),
            source="Smilkov et al., 2017",
        ),
        Method(
            "gradient_shap",
            gradient_shap,
            level="input",
            signed=True,
            cost="2 n_samples + 2",
            shared=("gradient",),
            source="Lundberg & Lee, NeurIPS 2017",
            whole=frozenset({"baselines"}),
        ),
        Method(
            "deeplift",
            deeplift,
            frozenset({"start"}),
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
            cost="windows + 2",
            source="Zeiler & Fergus, ECCV 2014",
        ),
        Method(
            "leave_one_out",
            leave_one_out,
            level="input",
            signed=True,
            cost="groups + 2",
            source="Cohen-Wang et al., NeurIPS 2024",
            texts=True,
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
