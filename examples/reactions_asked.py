"""Where does this atom come from? A language model of chemical reactions fills in an atom that is
masked in the product; the heat of its answer lies on the atom of the reactants that it was.

    make real                                        # fetches the model from PyPI
    python -m examples.reactions_asked --out reaction.png
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from matplotlib import pyplot as plt

import relprop
from examples.reaction_model import ATOM, reaction_ids, reaction_model, reaction_tokens
from examples.reaction_model import reaction_vocabulary as vocabulary

#: Benzoic acid and an amine with a bromine; the product is their amide.
REACTION = "O=C(O)c1ccc(F)cc1.NCCc1ccc(Br)cc1>>O=C(NCCc1ccc(Br)cc1)c1ccc(F)cc1"
ASKED = (("N", 0), ("F", 0), ("Br", 0))
METHOD: dict[str, Any] = {"method": "transformer_attribution", "gradient": "balanced"}


def draw(reaction: str, out: Path) -> None:
    """The reaction once for each of ``ASKED``, its masked atom framed, heat behind the others."""
    model, known, tokens = reaction_model(), vocabulary(), reaction_tokens(reaction)
    ids, arrow = reaction_ids(tokens, known), tokens.index(">>")
    fig, axes = plt.subplots(len(ASKED), figsize=(8.5, 0.75 * len(ASKED)), layout="tight")
    for axis, (atom, which) in zip(axes, ASKED, strict=True):
        at = [i for i, token in enumerate(tokens) if token == atom and i > arrow][which]
        masked = ids.clone()
        masked[at + 1] = known["[MASK]"]
        target = (at + 1, int(ids[at + 1]))
        e = relprop.explain(model, {"input_ids": masked[None]}, target, progress=False, **METHOD)
        heat = e.scores[0, 1:-1].clamp(min=0)
        with torch.no_grad():
            said = model(masked[None]).logits[0, at + 1].softmax(-1)[target[1]]
        axis.set_title(f"which atom was this {atom}? (probability {said:.2f})", fontsize=9)
        _line(axis, tokens, heat / heat.max(), at)
    fig.savefig(out, dpi=110)


def _line(axis: Any, tokens: list[str], heat: torch.Tensor, masked: int) -> None:
    axis.set_axis_off()
    axis.set_xlim(0, sum(map(len, tokens)) + 1)
    x = 0.5
    for i, token in enumerate(tokens):
        strength = float(heat[i]) if ATOM.fullmatch(token) else 0.0
        box = {
            "boxstyle": "round,pad=0.12",
            "facecolor": (0.9, 0.4, 0.0, strength),
            "edgecolor": "black" if i == masked else "none",
        }
        axis.text(x, 0.4, token, family="monospace", fontsize=10, bbox=box)
        x += len(token)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("reaction.png"))
    draw(REACTION, parser.parse_args().out)
