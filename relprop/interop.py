"""Explanations as other libraries take them: Captum's ``Attribution``, Quantus' ``explain_func``, a
callable like pytorch-grad-cam's, ``shap.Explanation``. Each library is looked up when it is asked
for; none is needed here.

All of them want one number per element of the input, or per pixel. A method at the input has them;
of one over attention, a pixel has its place in the heat map, divided among its channels, and the
embedding of a token the token's score, divided among its features: sums are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from relprop.api.explain import explain
from relprop.errors import OptionError
from relprop.explanation import Explanation, TokenScores
from relprop.methods import method_named

__all__ = ["attributions", "cam", "captum_attribution", "quantus_explainer", "shap_explanation"]


def attributions(explanation: Explanation, *inputs: Tensor) -> tuple[Tensor, ...]:
    """A number per element of each explained input, of the inputs' shapes; ``inputs`` in the order
    of ``explanation.streams``. Raises ``OptionError`` for more inputs than are explained."""
    streams = list(explanation.streams.values())
    if len(inputs) > len(streams):
        fact = f"{len(inputs)} inputs are given, and {len(streams)} are explained"
        raise OptionError(fact, then=["explain_inputs= names those to explain"])
    return tuple(_spread(explanation, s, x) for s, x in zip(streams, inputs, strict=False))


def _spread(explanation: Explanation, stream: TokenScores, x: Tensor) -> Tensor:
    """The scores of one input, in its shape."""
    if stream.input is not None and stream.input.shape == x.shape:
        return stream.input
    if stream.grid is not None and x.dim() == 4:
        heat = explanation[stream.name].heatmap(tuple(x.shape[-2:])).to(x.device)
        total = stream.scores.masked_fill(stream.source < 0, 0).sum(1).to(x.device)
        summed = heat.sum((1, 2))
        scale = torch.where(summed.abs() > 0, total / summed, 0.0)
        return (heat * scale[:, None, None] / x.shape[1])[:, None].expand_as(x).clone()
    scores = stream.scores[:, stream.source >= 0].to(x.device)
    if x.shape == scores.shape:
        return scores
    if x.dim() == 3 and x.shape[:2] == scores.shape:
        return (scores / x.shape[2])[..., None].expand_as(x).clone()
    raise OptionError(
        f"the scores of {stream.name!r} are {list(scores.shape)}, and its input {list(x.shape)}",
        then=["explanation.scores has a number for each token"],
    )


def _asked(model: nn.Module, inputs: Any, target: Any, method: str, options: Any) -> Explanation:
    at_input = method_named(method, level=None).level == "input"
    keep = ("input",) if at_input else ()
    return explain(model, inputs, target, method=method, keep=keep, **options)


def captum_attribution(
    model: nn.Module, *, method: str = "transformer_attribution", **options: Any
) -> Any:
    """A ``captum.attr.Attribution`` by any method of relprop: ``attribute(inputs, target,
    additional_forward_args)`` as Captum's own, so that its metrics, Inseq and the like take it.

    Raises ``OptionError`` without Captum (``relprop[captum]``).

    >>> import torch, relprop
    >>> from relprop.demo.model import digit_scene_model
    >>> attribution = relprop.interop.captum_attribution(digit_scene_model(), method="gae")
    >>> attribution.attribute(torch.rand(2, 1, 32, 32), target=3).shape
    torch.Size([2, 1, 32, 32])
    """
    try:
        from captum.attr import Attribution
    except ImportError:
        raise OptionError(
            'captum_attribution needs Captum: pip install "relprop[captum]"'
        ) from None

    class Relprop(Attribution):  # type: ignore[misc]
        """A method of relprop, as Captum calls one."""

        def attribute(
            self, inputs: Any, target: Any = None, additional_forward_args: Any = None
        ) -> Any:
            """Attributions of the shape of ``inputs``: a tensor, or a tuple as they are one."""
            given = inputs if isinstance(inputs, tuple) else (inputs,)
            more = additional_forward_args
            beside = () if more is None else more if isinstance(more, tuple) else (more,)
            e = _asked(model, (*given, *beside), target, method, options)
            found = attributions(e, *given)
            return found if isinstance(inputs, tuple) else found[0]

    return Relprop(model)


def quantus_explainer(
    *, method: str = "transformer_attribution", **options: Any
) -> Callable[..., np.ndarray]:
    """A function ``explain_func(model, inputs, targets, **kwargs)`` for Quantus' metrics: arrays
    in, an array of the inputs' shape out.

    >>> import numpy as np, relprop
    >>> from relprop.demo.model import digit_scene_model
    >>> explain_func = relprop.interop.quantus_explainer(method="gradient_x_input")
    >>> explain_func(digit_scene_model(), np.zeros((2, 1, 32, 32), np.float32), np.array([3, 8])).shape
    (2, 1, 32, 32)
    """  # noqa: E501

    def explain_func(model: nn.Module, inputs: Any, targets: Any, **_: Any) -> np.ndarray:
        like = next(model.parameters(), torch.zeros(()))
        x = torch.as_tensor(inputs, dtype=like.dtype, device=like.device)
        classes = torch.as_tensor(np.asarray(targets)).long().reshape(-1).tolist()
        (found,) = attributions(_asked(model, x, classes, method, options), x)
        made: np.ndarray = found.detach().cpu().numpy()
        return made

    return explain_func


def cam(
    model: nn.Module, *, method: str = "transformer_attribution", **options: Any
) -> Callable[..., np.ndarray]:
    """A callable like one of pytorch-grad-cam: ``cam(input_tensor, targets)`` gives (batch, H, W)
    in [0, 1], each map's largest value 1, what is negative 0.

    ``targets``: ``None`` (the prediction), class numbers, or objects with a ``category``, as that
    library's ``ClassifierOutputTarget``.

    >>> import torch, relprop
    >>> from relprop.demo.model import digit_scene_model
    >>> grayscale = relprop.interop.cam(digit_scene_model())(torch.rand(2, 1, 32, 32), [3, 8])
    >>> grayscale.shape, float(grayscale.max())
    ((2, 32, 32), 1.0)
    """

    def call(input_tensor: Tensor, targets: Sequence[Any] | None = None) -> np.ndarray:
        classes = None if targets is None else [int(getattr(t, "category", t)) for t in targets]
        e = explain(model, input_tensor, classes, method=method, **options)
        heat = e.heatmap(tuple(input_tensor.shape[-2:])).clamp(min=0)
        largest = heat.amax((1, 2), keepdim=True)
        made: np.ndarray = torch.where(largest > 0, heat / largest, 0.0).detach().cpu().numpy()
        return made

    return call


def shap_explanation(explanation: Explanation, stream: str | None = None) -> Any:
    """Scores as a ``shap.Explanation``, which shap's plots take: of a text a row of tokens per
    sample, of pictures a map (batch, H, W), of anything else the scores. ``stream``: of several
    explained inputs which.

    They are scores of the method that made them, not Shapley values: they need not sum to the
    output less a base value, and ``base_values`` is 0. Raises ``OptionError`` without shap.

    >>> import relprop
    >>> from relprop.demo.review_model import review_model, review_tokenizer
    >>> e = relprop.explain(review_model(), "a dull plot", 0, processor=review_tokenizer())
    >>> shap_values = relprop.interop.shap_explanation(e)        # doctest: +SKIP
    >>> shap.plots.text(shap_values[0])                          # doctest: +SKIP
    """
    try:
        import shap
    except ImportError:
        raise OptionError("shap_explanation needs shap: pip install shap") from None
    one = explanation if stream is None else explanation[stream]
    (scores,) = one.streams.values()
    picture = scores.grid is not None and len(scores.grid) == 2 and scores.image is not None
    values = (one.heatmap() if picture else scores.scores).detach().cpu().double().numpy()
    data = None if scores.tokens is None else np.array(scores.tokens, dtype=object)
    names = None if scores.tokens is None else [list(row) for row in scores.tokens]
    base, outputs = np.zeros(len(values)), [str(t) for t in one.target]
    return shap.Explanation(values, base, data, feature_names=names, output_names=outputs)


def __dir__() -> list[str]:
    return __all__
