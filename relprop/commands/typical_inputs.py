"""Inputs for a Hugging Face model from the names its ``forward`` takes and its config: ids, pixels,
sound, series, of the right shapes and with random contents."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

LENGTH, TARGET_LENGTH, GRID = 12, 5, 4
BESIDE = ("input_ids", "pixel_values", "bbox", "visual_embeds", "visual_feats", "visual_pos")
MASKS = (
    ("input_ids", "attention_mask"),
    ("decoder_input_ids", "decoder_attention_mask"),
    ("input_values", "attention_mask"),
    ("input_features", "attention_mask"),
    ("pixel_values", "pixel_mask"),
)
PLACEHOLDERS = ("image_token_id", "image_token_index", "audio_token_id", "audio_token_index")
BINS = (
    "feature_projection_input_dim",
    "input_feat_per_channel",
    "num_mel_bins",
    "input_dim",
    "feature_size",
)


def typical_call(model: nn.Module) -> dict[str, Tensor]:
    """One sample of everything that ``model`` needs, nothing of it padding."""
    make = Inputs(model)
    call = {name: make(name) for name in wanted(model)}
    for name, mask_name, shape in list(masks(make, call)):
        call[mask_name] = torch.ones(shape, dtype=torch.long)
        end = end_id(model.config)
        if call[name].dim() == 2 and name in ("input_ids", "decoder_input_ids") and end is not None:
            call[name][:, -1] = end  # as a tokenizer ends a text
    return call


def wanted(model: nn.Module, *, both: bool = False, generates: bool = False) -> list[str]:
    """The inputs to give: the main one, those without a default, and what encoder–decoder models
    (``generates``) and models of ``both`` pictures and texts need beside it."""
    takes = inspect.signature(model.forward).parameters
    main: Any = getattr(model, "main_input_name", "input_ids")
    names = [main] if isinstance(main, str) else list(main)
    plain = [p for p in takes.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    names += [p.name for p in plain if p.default is p.empty]
    names += BESIDE if both else ()
    known = list(dict.fromkeys(n for n in names if n in takes and n in Inputs.NAMES))
    decodes = getattr(model.config, "is_encoder_decoder", False) and "decoder_input_ids" in takes
    if decodes and (generates or "input_ids" not in known):
        known.append("decoder_input_ids")
    if "bbox" in takes and "input_ids" in known:
        known.append("bbox")
    return list(dict.fromkeys(known)) or [n for n in Inputs.NAMES if n in takes][:1]


def masks(make: Inputs, call: Mapping[str, Tensor]) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """The masks that go with the inputs: an input's name, its mask's, and the mask's shape."""
    takes, given = inspect.signature(make.model.forward).parameters, set()
    for name, mask in MASKS:
        if name in call and mask in takes and mask not in given:
            given.add(mask)
            shape = tuple(call[name].shape)
            if mask == "pixel_mask":
                yield name, mask, (shape[0], *shape[-2:])
            else:
                last = name == "input_features" and make.channels_first
                yield name, mask, (shape[0], shape[-1] if last else shape[1])


def parts(config: Any) -> list[Any]:
    """The config and its sub-configs."""
    subs = [v for v in vars(config).values() if hasattr(v, "to_dict") and hasattr(v, "model_type")]
    return [config, *(p for s in subs for p in parts(s))]


def first(config: Any, *names: str, default: Any = None, prefer: str = "") -> Any:
    """The first of these fields that the config or a sub-config has; sub-configs whose name holds
    ``prefer`` come first."""

    def rank(part: Any) -> int:
        return 0 if part is config else 1 if prefer and prefer in type(part).__name__.lower() else 2

    for part in sorted(parts(config), key=rank):
        for name in names:
            if (value := getattr(part, name, None)) is not None:
                return value
    return default


def end_id(config: Any) -> int | None:
    """The id that ends a text, where the config names one."""
    end = getattr(config, "eos_token_id", None)
    end = end[0] if isinstance(end, (list, tuple)) and end else end
    size = int(first(config, "src_vocab_size", "vocab_size", default=0, prefer="text"))
    return end if isinstance(end, int) and 0 <= end < size else None


@dataclass(frozen=True)
class Inputs:
    """Makes ``batch`` samples of an input by its name. ``settings`` override lengths and sizes."""

    model: nn.Module
    batch: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)

    NAMES = (
        *("input_ids", "decoder_input_ids", "task_inputs", "pixel_values_videos"),
        *("pixel_attention_mask", "spatial_shapes", "pixel_values", "input_values"),
        *("input_features", "bbox", "past_values", "input_features_mask"),
        *("visual_embeds", "visual_feats", "visual_pos"),
    )

    def __call__(self, name: str) -> Tensor:
        """The input of this name."""
        found: Tensor = getattr(self, name)()
        return found

    @property
    def config(self) -> Any:
        """The model's."""
        return self.model.config

    def first(self, *names: str, default: Any = None, prefer: str = "") -> Any:
        """Of the config, as ``first``."""
        return first(self.config, *names, default=default, prefer=prefer)

    @property
    def channels_first(self) -> bool:
        """Whether sound comes as (bins, frames), as Whisper's does."""
        whisper = self.first("num_mel_bins", prefer="audio")
        whisper = whisper and self.first("max_source_positions", prefer="audio")
        return bool(self.settings.get("channels_first", whisper))

    @property
    def length(self) -> int:
        """Tokens of a text."""
        return int(self.settings.get("length", LENGTH))

    def input_ids(self) -> Tensor:
        """Random ids, but where the model must find placeholders or separators."""
        ids = self.ids(self.config, self.length, "input_ids")
        ids[:, : self.settings.get("placeholders", 0)] = self.first(*PLACEHOLDERS, default=0)
        for place, value in self.settings.get("fixed", {}).items():
            ids[:, place] = value
        return ids

    def decoder_input_ids(self) -> Tensor:
        config = getattr(self.config, "decoder", self.config)
        return self.ids(config, TARGET_LENGTH, "decoder_input_ids")

    def task_inputs(self) -> Tensor:
        return self.ids(self.config, int(getattr(self.config, "task_seq_len", LENGTH)), "")

    def ids(self, config: Any, length: int, name: str) -> Tensor:
        """Random ids that are no special token of the config."""
        vocabulary = int(first(config, "src_vocab_size", "vocab_size", default=100, prefer="text"))
        special = {0, 1, 2, 3}
        for key, value in (item for part in parts(config) for item in vars(part).items()):
            if key.endswith(("_token_id", "_token_index")):
                values = value if isinstance(value, (list, tuple)) else [value]
                special.update(v for v in values if isinstance(v, int))
        allowed = [i for i in range(vocabulary) if i not in special] or list(range(vocabulary))
        channels = self.settings.get("channels", {}).get(name)
        shape = (self.batch, length, *((channels,) if channels else ()))
        return torch.tensor(allowed)[torch.randint(len(allowed), shape)]

    def pixel_values(self, count: int | None = None) -> Tensor:
        """Images, or patches where the model takes them ready cut."""
        images = self.batch if count is None else count
        names = ("num_channels", "in_channels", "in_chans")
        channels = int(self.first(*names, default=3, prefer="vision"))
        if "spatial_shapes" in inspect.signature(self.model.forward).parameters:
            patch = int(self.first("patch_size", prefer="vision"))
            return torch.randn(images, GRID * GRID, channels * patch**2)
        size = self.settings.get("image_size")
        size = size or self.first("image_size", "img_size", default=64, prefer="vision")
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        return torch.randn(images, channels, int(height), int(width))

    def pixel_values_videos(self) -> Tensor:
        frames = int(self.settings.get("video", 2))
        return self.pixel_values(frames * self.batch).unflatten(0, (self.batch, frames))

    def pixel_attention_mask(self) -> Tensor:
        return torch.ones(self.batch, GRID * GRID, dtype=torch.long)

    def spatial_shapes(self) -> Tensor:
        return torch.full((self.batch, 2), GRID)

    def input_values(self) -> Tensor:
        """Sound, or patches of its spectrogram."""
        length, bins = (getattr(self.config, n, None) for n in ("max_length", "num_mel_bins"))
        if self.model.main_input_name == "input_values" and length and bins:
            return torch.randn(self.batch, int(length), int(bins))
        return torch.randn(self.batch, int(self.settings.get("samples", 4000)))

    def input_features(self) -> Tensor:
        bins = self.settings.get("bins") or self.first(*BINS, default=16, prefer="audio")
        frames = int(self.settings.get("frames", 0))
        if not self.channels_first:
            return torch.randn(self.batch, frames or 32, int(bins))
        positions = self.first("max_source_positions", default=16, prefer="audio")
        return torch.randn(self.batch, int(bins), frames or 2 * int(positions))

    def input_features_mask(self) -> Tensor:
        return torch.ones(self.batch, int(self.settings.get("frames") or 32), dtype=torch.long)

    def bbox(self) -> Tensor:
        half = min(int(self.first("max_2d_position_embeddings", default=1000)), 1000) // 2
        corners = torch.randint(0, half, (self.batch, self.length, 2))
        return torch.cat([corners, corners + torch.randint(1, half - 1, corners.shape)], -1)

    def past_values(self) -> Tensor:
        lags = max(getattr(self.config, "lags_sequence", None) or [0])
        length = int(self.first("context_length", default=32)) + lags
        channels = int(self.first("num_input_channels", "input_size", default=1))
        if channels > 1 or hasattr(self.config, "num_input_channels"):
            return torch.randn(self.batch, length, channels)
        return torch.randn(self.batch, length)

    def visual_embeds(self) -> Tensor:
        return torch.randn(self.batch, 4, int(self.config.visual_embedding_dim))

    def visual_feats(self) -> Tensor:
        return torch.randn(self.batch, 4, int(self.config.visual_feat_dim))

    def visual_pos(self) -> Tensor:
        return torch.rand(self.batch, 4, int(self.config.visual_pos_dim))
