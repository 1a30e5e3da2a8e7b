"""What tokens are: Hugging Face's objects know their special tokens and labels; everything else is read off the graph."""

from torch import nn

from relprop.adapters.base import Adapter
from relprop.adapters.huggingface import HuggingFace

ADAPTERS: list[type[Adapter]] = [HuggingFace, Adapter]


def adapter_for(model: nn.Module) -> Adapter:
    """The first adapter that fits."""
    return next(kind for kind in ADAPTERS if kind.fits(model))()


__all__ = ["ADAPTERS", "Adapter", "HuggingFace", "adapter_for"]
