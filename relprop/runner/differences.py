"""What verification says where a graph is not its model: why, and what to do."""

from __future__ import annotations

from relprop.errors import message
from relprop.interpreter.slopes import Slopes
from relprop.tracer.binding import Inputs

#: What to do where a model's output is drawn by chance.
DRAW_ALIKE = [
    "switch it off in eval mode: training=self.training for a dropout",
    "or seed before it draws, in its forward: torch.manual_seed(0), numpy.random.seed(0), "
    "random.seed(0)",
]
#: What came of a comparison with a model that is less exact than the program.
ROUNDED = "not compared: in the model's own precision rounding decides what it picks"


#: Why a graph is not its model, and what to do.
PICKED_BY_ROUNDING = (
    "rounding decides which of nearly equal values the model picks: in float64 the graph itself "
    "gives another output"
)
EXACT_NUMBERS = "precision='float64' explains what exact numbers decide"
UNSEEN = (
    "the graph was captured on sample 0: the model takes values out of tensors in a way that no "
    "tracer sees (a custom operator, memory read by address)"
)
INSTEAD = ["explain the samples one by one", "compute with tensors instead"]
CHANGED = "what was captured just now is not what the model does"
REPORT = ["report this model: a captured graph must equal the model it came from"]


def other_gradients(found: Slopes) -> str:
    """Why the model's own gradients are others than those of its recorded forward."""
    fact = (
        f"the gradient of the model's output at {found.worst!r} is not autograd's: off by "
        f"{found.error:.1e} of its largest value"
    )
    stops, at = [c for c in found.stops if not c.startswith("no_grad")], ""
    if found.hooked:
        fact += "; the model has backward hooks, which change its gradients"
        at = ", ".join(found.hooked[:3])
        then = [
            "remove them while it is explained",
            "verify=False explains with the gradient of its forward",
        ]
    elif found.functions:
        fact += (
            f"; the model has backward functions of its own ({', '.join(found.functions)}), and "
            "the derivative of what was recorded of their forward is another"
        )
        then = [
            "verify=False explains with the derivative of the forward",
            "write their forward with operations whose derivative is the wanted one",
        ]
    elif stops:
        fact += f"; the model stops gradients by {'; '.join(stops[:3])}"
        then = ["verify=False explains with the gradient of what was recorded"]
    else:
        then = ["report this model: a graph's gradients must equal those of its model"]
    return message(fact, at=at, then=then)


def about_shared(inputs: Inputs) -> str:
    """Which inputs were taken to belong to all samples, as an end of a sentence."""
    shared = [
        repr(n)
        for n, t, b in zip(inputs.names, inputs.tensors, inputs.batched, strict=True)
        if not b and t.dim() and t.shape[0] != 1
    ]
    return f"; {', '.join(shared)} belongs to all samples" if shared else ""
