"""``instrument``: the hook interface. Values, gradients and relevances at any node of a model,
hooks on relevance as it flows, and values that are set.

A node is named by its place: ``blocks.2.attn`` is what that module returns (of several tensors the
first, the others ``blocks.2.attn[1]``), ``blocks.2.attn:softmax`` the softmax computed in it
(``:softmax#1`` the second one). Patterns are those of a shell: ``blocks.*.attn:softmax``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from relprop.api.interventions import Instrument
from relprop.error_boundary import guarded
from relprop.errors import OptionError
from relprop.opening import check_devices
from relprop.opening.opening import open_model
from relprop.rules import RuleSet
from relprop.runner.conditions import Conditions
from relprop.runner.session import Session, open_session
from relprop.runner.verification import Verifier, verified
from relprop.targets.resolve import compared_outputs
from relprop.tracer.binding import Inputs, bind
from relprop.tracer.names import named
from relprop.tracer.surroundings import undisturbed

__all__ = ["Instrument", "instrument"]


@guarded
def instrument(
    model: nn.Module,
    inputs: Any,
    target: Any = None,
    *,
    rules: RuleSet | str | None = None,
    precision: str | torch.dtype | None = None,
    on_unknown: str = "generic",
    explain_inputs: Sequence[str | int] | str | None = None,
    verify: bool = True,
    processor: Any = None,
    strict: bool = False,
) -> Instrument:
    """Observe ``model`` on ``inputs`` for one ``target``; use it in a ``with`` block. Arguments as
    in ``explain``; ``strict`` holds for all that is asked later, too. The forward pass runs at
    once, and is compared with the model's own. ``rules=None``: those of ``"paper"``, and in
    ``explanation`` the method's own. Relevance starts with 1 at the target, or with y_t by the
    rules of a method that does so (``"attnlrp"``, ``"cp_lrp"``, ``"epsilon"``, ``"lrp_gamma"``), as
    it does in ``explain``.

    >>> import torch, relprop
    >>> from relprop.demo.model import digit_scene_model
    >>> with relprop.instrument(digit_scene_model(), torch.rand(2, 1, 32, 32), target=3) as probe:
    ...     relevance = probe.relevance("blocks.2.mlp")["blocks.2.mlp"]
    >>> relevance.shape
    torch.Size([2, 65, 96])
    """
    model, inputs = open_model(model, inputs, processor=processor)
    how = Conditions(None, explain_inputs, precision, on_unknown)

    def session_of(bound: Inputs) -> Session:
        session = open_session(model, bound, rules or "paper", how)
        if session.program.input_specialised and bound.batch > 1:
            raise OptionError(
                f"the model branches on values ({session.program.decisions[0]}): "
                f"instrument one sample at a time, not {bound.batch}"
            )
        return replace(session, program=named(session.program, model, bound))

    def opened(others: Any) -> tuple[Session, Inputs]:
        with undisturbed(model), torch.no_grad():
            bound = bind(open_model(model, others, processor=processor)[1])
            check_devices(model, bound)
            return session_of(bound), bound

    with undisturbed(model), torch.no_grad():
        bound = bind(inputs)
        check_devices(model, bound)

        def call(bound: Inputs, verifier: Verifier) -> Instrument:
            verifier.run_model(bound)
            session = session_of(bound).reading([target], bound)
            starts = compared_outputs(session.program, [target])
            probe = Instrument(session, bound, target, rules, opened)
            values = probe._forward()[0].forward.values
            ref = verifier.reference(session.program, bound, starts)
            probe.may_differentiate = verifier.compare(session, ref, values)
            return probe

        return verified(model, bound, verify, call)
