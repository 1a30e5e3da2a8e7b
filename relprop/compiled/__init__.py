"""Flat programs: forward pass, gradient, relevance and roll-up recorded once as one graph of ATen
operations, which PyTorch compiles, exports, and runs without this package."""

from relprop.compiled.explainer import Explainer
from relprop.compiled.making import make_flat

__all__ = ["Explainer", "make_flat"]
