"""timm models: what their classes are called, and how a picture becomes their input. Patches and
prefix tokens are read off the graph."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from torch import nn

from relprop.adapters.base import Adapter
from relprop.adapters.given import Prepared, ready
from relprop.adapters.rgb import as_rgb

READY = (
    "inputs = relprop.data.image_transform(model)[1](torch.from_numpy(picture).movedim(-1, 0)[None]"
    ".float())   # of 0 … 1, of the model's size"
)


class Timm(Adapter):
    """Reads ``model.pretrained_cfg`` (labels, mean, size, crop), ``model.num_classes`` and timm's
    own tables of ImageNet's classes."""

    @classmethod
    def fits(cls, model: nn.Module) -> bool:
        """A model with timm's ``pretrained_cfg``; timm is looked up, never imported."""
        return "timm" in sys.modules and bool(getattr(model, "pretrained_cfg", None))

    def prepare(self, model: nn.Module, inputs: Any, processor: Any) -> Prepared:
        """Pictures through timm's own evaluation transform for this model, unless another is
        given."""
        if processor is None and not ready(inputs):
            processor, channels = _transform(model), _config(model).get("input_size", (3,))[0]
            many = isinstance(inputs, (list, tuple)) or getattr(inputs, "ndim", 0) == 4
            some = list(inputs) if many else [inputs]
            inputs = [as_rgb(one, channels=channels, ready=READY) for one in some]
        return super().prepare(model, inputs, processor)

    def label_index(self, model: nn.Module, label: str) -> int | None:
        """By description (``"tench"``) or by name (``"n01440764"``)."""
        names = _names(model)
        return names.index(label) if label in names else super().label_index(model, label)

    def labels(self, model: nn.Module) -> tuple[str, ...]:
        """The descriptions of ``pretrained_cfg``; else those of the ImageNet classes that the
        weights' number of classes stands for."""
        names = _names(model)
        given = _config(model).get("label_descriptions")
        if isinstance(given, Mapping):
            return tuple(str(given.get(name, name)) for name in names)
        info = _imagenet(model)
        known = info is not None and list(names) == list(info.label_names())
        return tuple(info.label_descriptions()) if known else names


def _config(model: nn.Module) -> Mapping[str, Any]:
    config: Any = model.pretrained_cfg
    return config if isinstance(config, Mapping) else vars(config)


def _names(model: nn.Module) -> tuple[str, ...]:
    """The names of the classes, if there is one for every output."""
    given = _config(model).get("label_names")
    if given is None:
        info = _imagenet(model)
        given = info.label_names() if info is not None else ()
    if isinstance(given, Mapping):
        by_index = {int(k): v for k, v in given.items()}
        given = [by_index.get(i, str(i)) for i in range(max(by_index, default=-1) + 1)]
    return tuple(map(str, given)) if len(given) == getattr(model, "num_classes", None) else ()


def _imagenet(model: nn.Module) -> Any:
    """timm's table of the classes, if the head is still that of the weights the config
    describes."""
    from timm.data import infer_imagenet_subset

    subset = infer_imagenet_subset(model)
    same = _config(model).get("num_classes") == getattr(model, "num_classes", None)
    return _table(subset) if subset and same else None


@lru_cache(maxsize=8)
def _table(subset: str) -> Any:
    """A table of timm's, read from its files once."""
    from timm.data import ImageNetInfo

    return ImageNetInfo(subset)


def _transform(model: nn.Module) -> Any:
    """timm's transform for evaluation, at the size the model was built for."""
    from timm.data import create_transform

    return create_transform(**data_config(model), is_training=False)


def data_config(model: nn.Module) -> dict[str, Any]:
    """What timm says of the pictures a model takes, at the size it was built for."""
    from timm.data import resolve_model_data_config

    config: dict[str, Any] = resolve_model_data_config(model)
    size = getattr(getattr(model, "patch_embed", None), "img_size", None)
    if isinstance(size, (tuple, list)):
        config["input_size"] = (config["input_size"][0], *size)
    return config
