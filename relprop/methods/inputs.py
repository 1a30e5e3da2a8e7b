"""Methods at the input: one number per element of every explained input, for any model, with or
without attention.

Two of them are one line of autograd: Captum's ``Saliency`` and ``InputXGradient`` run the model
themselves, once per target, and here the forward pass is shared by all targets; tests hold them
equal. What takes more than a line is Captum's, looked up when it is asked for.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from relprop.errors import CompletenessWarning, OptionError, RelpropError, first_line, warn
from relprop.progress import counting
from relprop.rules.baselines import GAMMA
from relprop.runner.input_study import InputStudy

CONVERGED = 0.05
#: What stands for no input: zeros, a number, a tensor, or a dict of these by input name.
Baseline = Tensor | float | Mapping[str, Tensor | float | None] | None


def lrp(at: InputStudy) -> Mapping[str, Tensor]:
    """Relevance by Eq. 4 (z⁺, rule set ``lrp``), or by any other rule set, down to the inputs.
    Signed where adds are: Eq. 6.

    Option of all methods of relevance at the input: ``positions=True`` adds to each token what the
    position terms at its place received (Bakish et al. 2025).
    """
    return at.relevances


def attnlrp(at: InputStudy) -> Mapping[str, Tensor]:
    """Relevance by LRP-ε with rules for softmax, products and norms, started with y_t, down to the
    inputs (AttnLRP: Achtibat et al. 2024). Signed.

    It sums to y_t less what biases and constant terms absorb.
    """
    return at.relevances


def cp_lrp(at: InputStudy) -> Mapping[str, Tensor]:
    """The same with attention maps and gates as constants (CP-LRP: Ali et al. 2022). Signed."""
    return at.relevances


def epsilon_lrp(at: InputStudy) -> Mapping[str, Tensor]:
    """Relevance by LRP-ε, started with y_t, down to the inputs (Bach et al. 2015). Signed."""
    return at.relevances


def lrp_gamma(
    at: InputStudy, *, gamma: float = GAMMA, conv_gamma: float | None = None
) -> Mapping[str, Tensor]:
    """AttnLRP with LRP-γ on linear and convolution layers, started with y_t, down to the inputs
    (Achtibat et al. 2024; Andéol et al. 2021). Signed.

    ``gamma``: how much more the terms count that have the sign of their layer's result.
    ``conv_gamma``: the same in convolutions (``None``: as in linear layers).
    """
    return at.relevances


def input_gradient(at: InputStudy) -> Mapping[str, Tensor]:
    """|∂y_t/∂x| (Simonyan et al. 2014; Captum's ``Saliency``). Never negative: how much each
    element matters, not which way."""
    return {name: gradient.abs() for name, gradient in at.gradients.items()}


def gradient_x_input(at: InputStudy) -> Mapping[str, Tensor]:
    """x ⊙ ∂y_t/∂x (Shrikumar et al. 2016; Captum's ``InputXGradient``). Signed; it sums to y_t for
    a model without biases that is piecewise linear."""
    return {
        name: at.values[name].to(gradient.dtype) * gradient
        for name, gradient in at.gradients.items()
    }


def integrated_gradients(
    at: InputStudy, *, n_steps: int = 50, baseline: Baseline = None
) -> Mapping[str, Tensor]:
    """(x − x′) ⊙ ∫₀¹ ∂y_t/∂x at x′ + α(x − x′) dα (Sundararajan et al. 2017, Eq. 1), by Captum,
    with Gauss–Legendre quadrature. Signed.

    Complete: it sums to y_t(x) − y_t(x′), over all explained inputs together. ``n_steps`` forward
    and backward passes per target. ``baseline`` is x′: ``None`` (zeros: for normalised pixels the
    mean colour, for ids embeddings of 0), a number, a tensor (its first axis the batch, or 1),
    integer ids for an input of ids, or a dict of these by input name. Warns (``RelpropWarning``) if
    the sum is off by more than 5 %, the authors' own check.
    """
    positive_integer("n_steps", n_steps)
    start = baselines(at, baseline)
    try:
        from captum.attr import IntegratedGradients
    except ImportError:
        raise OptionError(
            'method integrated_gradients needs Captum: pip install "relprop[captum]"'
        ) from None
    values = tuple(at.values.values())
    with gradient_taken("on the way from the baseline"), counting("step", n_steps) as begin:

        def step(*moved: Tensor) -> Tensor:
            begin("")
            return at.forward(*moved)

        found = IntegratedGradients(step).attribute(
            values, start, n_steps=n_steps, internal_batch_size=len(values[0])
        )
    if not at.run.forms.of_gradient:  # whose integral is no difference of y
        _warn_unless_complete(at, found, start, n_steps)
    return dict(zip(at.values, found, strict=True))


@contextmanager
def gradient_taken(where: str) -> Iterator[None]:
    """What is done inside takes a gradient. Raises ``RelpropError`` where autograd refuses it."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise RelpropError(
            f"the gradient {where} cannot be taken: {first_line(error)}",
            then=[
                "give the operator a derivative (torch.library.register_autograd)",
                "or do without: method='lrp' and a rule for it (docs/write-a-rule.md)",
            ],
        ) from error


def positive_integer(name: str, value: object) -> int:
    """``value``, if it is one. Raises ``OptionError``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise OptionError(f"{name}={value!r}: a positive integer")
    return value


def by_input(at: InputStudy, option: str, given: object) -> dict[str, Any]:
    """An option that is a dict by input name, or one value for all of them, as a dict. Raises
    ``OptionError`` for a name of no explained input."""
    named = dict(given) if isinstance(given, Mapping) else dict.fromkeys(at.values, given)
    unknown = [name for name in named if name not in at.values]
    if unknown:
        raise OptionError(
            f"{option} for {unknown[0]!r}: the explained inputs are "
            f"{', '.join(map(repr, at.values))}"
        )
    return named


def sums(found: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Σ and Σ|·| of the contributions of all inputs together, (batch,), in double."""
    rows = torch.cat([f.flatten(1).double() for f in found], 1)
    return rows.sum(1), rows.abs().sum(1)


def warn_of_gaps(
    total: Tensor, difference: Tensor, gap: Tensor, bad: Tensor, words: str, then: Sequence[str]
) -> None:
    """Warn of samples whose contributions do not sum to the change of y_t; ``gap`` is how far each
    is off, in any unit, and ``words`` what to say, with places for how many and for the worst."""
    if bool(bad.any()):
        worst = int(gap.nan_to_num().argmax())
        many = f"{int(bad.sum())} of {len(bad)} samples"
        fact = (
            f"{words.format(many=many, worst=worst)} to {float(total[worst]):.4g}, where y_t "
            f"changes by {float(difference[worst]):.4g} from the baseline"
        )
        warn(CompletenessWarning(fact, then=then))


def _warn_unless_complete(
    at: InputStudy, found: tuple[Tensor, ...], start: tuple[Tensor, ...], n_steps: int
) -> None:
    difference = (at.forward(*at.values.values()) - at.forward(*start)).double()
    total, size = sums(found)
    gap = (total - difference).abs()
    bad = (gap > CONVERGED * difference.abs()) & (gap > 1e-4 * size)
    words = f"have not converged with n_steps={n_steps}: those of sample {{worst}} sum"
    then = [
        f"n_steps={4 * n_steps}",
        "another baseline=: near embeddings of 0 a model that normalises them changes fastest",
    ]
    warn_of_gaps(
        total, difference, gap / size, bad, f"integrated gradients of {{many}} {words}", then
    )


def baselines(at: InputStudy, baseline: object) -> tuple[Tensor, ...]:
    """The tensor x′ of every input, of its full shape. Raises ``OptionError`` for what is none."""
    if isinstance(baseline, Tensor) and len(at.values) > 1:
        raise OptionError(
            f"baseline is one tensor for {len(at.values)} explained inputs: give a dict "
            f"by input name ({', '.join(map(repr, at.values))})"
        )
    named = by_input(at, "baseline", baseline)
    return tuple(_baseline(at, name, named.get(name)) for name in at.values)


def _baseline(at: InputStudy, name: str, given: object) -> Tensor:
    value = at.values[name]
    if given is None or (isinstance(given, numbers.Real) and not isinstance(given, bool)):
        return torch.full_like(value, 0.0 if given is None else float(given))
    if not isinstance(given, Tensor):
        raise OptionError(
            f"baseline for {name!r} is {type(given).__name__}: give None, a number, a "
            "tensor, or a dict of these by input name"
        )
    tensor = given.detach().to(value.device) if given.is_floating_point() else at.embed(name, given)
    try:
        return tensor.to(value.dtype).expand(value.shape).contiguous()
    except RuntimeError:
        raise OptionError(
            f"baseline for {name!r} has shape {list(given.shape)}; what is explained is "
            f"{list(value.shape)}, batch first"
        ) from None
