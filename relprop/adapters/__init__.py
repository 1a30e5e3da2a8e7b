"""What tokens are: timm's and Hugging Face's objects know their labels, special tokens and
pictures; everything else is read off the graph."""

from typing import TypeVar

from torch import nn

from relprop.adapters.base import Adapter
from relprop.adapters.describing import describe
from relprop.adapters.given import Given, Prepared
from relprop.adapters.huggingface import HuggingFace
from relprop.adapters.pictures import Original
from relprop.adapters.timm import Timm
from relprop.error_boundary import guarded
from relprop.errors import OptionError

ADAPTERS: list[type[Adapter]] = [HuggingFace, Timm, Adapter]
Kind = TypeVar("Kind", bound=type[Adapter])


def adapter_for(model: nn.Module) -> Adapter:
    """The first adapter that fits."""
    return next(kind for kind in ADAPTERS if kind.fits(model))()


@guarded
def register(adapter: Kind) -> Kind:
    """Ask ``adapter`` first from now on; returns it, so that it can stand above a class as a
    decorator. ``remove`` undoes it."""
    if not (isinstance(adapter, type) and issubclass(adapter, Adapter)):
        raise OptionError(f"register takes a subclass of relprop.adapters.Adapter, not {adapter!r}")
    remove(adapter)
    ADAPTERS.insert(0, adapter)
    return adapter


@guarded
def remove(adapter: type[Adapter]) -> None:
    """No longer ask ``adapter``."""
    if adapter in ADAPTERS[:-1]:
        ADAPTERS.remove(adapter)


__all__ = [
    "ADAPTERS",
    "Adapter",
    "Given",
    "HuggingFace",
    "Original",
    "Prepared",
    "Timm",
    "adapter_for",
    "describe",
    "register",
    "remove",
]


def __dir__() -> list[str]:
    return __all__
