"""A call for a Hugging Face model, from the names its ``forward`` takes and its config: ids with
different padding, pixels, sound, series."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

LENGTH, TARGET_LENGTH, SHORTER, GRID = 12, 5, (0, 3, 5), 4
BOTH = {
    "zero-shot image classification",
    "visual question answering",
    "document question answering",
}
IDS = ("input_ids", "decoder_input_ids")
MASKS = (
    ("input_ids", "attention_mask"),
    ("decoder_input_ids", "decoder_attention_mask"),
    ("input_values", "attention_mask"),
    ("input_features", "attention_mask"),
    ("pixel_values", "pixel_mask"),
)
Call = dict[str, Tensor]


def call_for(
    model: nn.Module, tasks: tuple[str, ...], batch: int, settings: Mapping[str, Any]
) -> tuple[Call, Call, dict[str, Tensor]]:
    """Two calls of the same shapes and, by input name, which positions are padding. ``settings``
    override lengths, sizes and which inputs are given."""
    takes = inspect.signature(model.forward).parameters
    config = model.config
    wanted = _wanted(model, takes, tasks, settings)

    def one() -> Call:
        call = {name: MAKERS[name](config, batch, settings, model) for name in wanted}
        for name, (mask_name, mask) in _masks(call, takes, config, settings).items():
            call[mask_name] = mask.long()
            call[name] = (
                _padded(call[name], mask, config)
                if name in IDS
                else call[name] * along(mask, call[name])
            )
        return call

    first, second = one(), one()
    pads = {name: ~mask for name, (_, mask) in _masks(first, takes, config, settings).items()}
    return first, second, pads


def _wanted(
    model: nn.Module, takes: Mapping[str, Any], tasks: tuple[str, ...], settings: Mapping[str, Any]
) -> list[str]:
    """The inputs to give: the main one, those without a default, and what two-tower and
    encoder–decoder models need beside it."""
    if "inputs" in settings:
        return list(settings["inputs"])
    required = [
        n
        for n, p in takes.items()
        if p.default is inspect.Parameter.empty
        and p.kind is p.POSITIONAL_OR_KEYWORD
        and n in MAKERS
    ]
    main = getattr(model, "main_input_name", "input_ids")
    names = [
        n
        for n in (main if isinstance(main, (list, tuple)) else [main])
        if n in takes and n in MAKERS
    ]
    names += [n for n in required if n not in names]
    if BOTH & set(tasks):
        names += [
            n
            for n in (
                "input_ids",
                "pixel_values",
                "bbox",
                "visual_embeds",
                "visual_feats",
                "visual_pos",
            )
            if n in takes and n not in names
        ]
    generates = {"sequence to sequence", "speech recognition"} & set(
        tasks
    ) or "input_ids" not in names
    if (
        getattr(model.config, "is_encoder_decoder", False)
        and generates
        and "decoder_input_ids" in takes
        and "decoder_input_ids" not in names
    ):
        names.append("decoder_input_ids")
    if "bbox" in takes and "input_ids" in names and "bbox" not in names:
        names.append("bbox")
    if not names:
        names = [n for n in MAKERS if n in takes][:1]
    return names


def _masks(
    call: Call, takes: Mapping[str, Any], config: Any, settings: Mapping[str, Any]
) -> dict[str, tuple[str, Tensor]]:
    """The masks that go with the inputs, by input: a name and which positions are real, with
    different padding in each sample."""
    masks: dict[str, tuple[str, Tensor]] = {}
    for name, mask_name in MASKS:
        if (
            name in call
            and mask_name in takes
            and mask_name not in settings.get("without", ())
            and mask_name not in (m for m, _ in masks.values())
        ):
            given = call[name]
            if mask_name == "pixel_mask":
                masks[name] = (
                    mask_name,
                    _shortened(len(given), given.shape[-1], settings)
                    .unsqueeze(1)
                    .repeat(1, given.shape[-2], 1),
                )
            else:
                length = (
                    given.shape[-1]
                    if name == "input_features" and _channels_first(config, settings)
                    else given.shape[1]
                )
                masks[name] = mask_name, _shortened(len(given), length, settings)
    return masks


def _shortened(batch: int, length: int, settings: Mapping[str, Any]) -> Tensor:
    """Real positions: all of the first sample, three quarters of the second, seven twelfths of the
    third."""
    mask = torch.ones(batch, length, dtype=torch.bool)
    for i in range(batch):
        cut = length * SHORTER[i % len(SHORTER)] // LENGTH
        mask[
            i, slice(0, cut) if settings.get("padding") == "left" else slice(length - cut, None)
        ] = False
    return mask


def _padded(ids: Tensor, mask: Tensor, config: Any) -> Tensor:
    """Ids with padding where the mask is 0, each text ended as a tokenizer would end it."""
    if ids.dim() != 2:
        return ids
    ids = torch.where(mask, ids, _pad(config))
    if (end := _end(config)) is not None:
        ids[torch.arange(len(ids)), (torch.arange(mask.shape[1]) * mask).argmax(1)] = end
    return ids


def along(mask: Tensor, given: Tensor) -> Tensor:
    """A mask (batch, positions) or (batch, height, width) with axes of length 1 where ``given`` has
    features or channels."""
    if given.dim() == mask.dim():
        return mask
    positions_last = given.shape[given.dim() - mask.dim() + 1 :] == mask.shape[1:]
    return (
        mask.unsqueeze(1)
        if positions_last
        else mask.reshape(*mask.shape, *(1,) * (given.dim() - mask.dim()))
    )


def _length(settings: Mapping[str, Any]) -> int:
    return int(settings.get("length", LENGTH))


def _pad(config: Any) -> int:
    for part in _parts(config):
        pad = getattr(part, "pad_token_id", None)
        if isinstance(pad, int) and pad >= 0:
            return pad
    return 0


def _end(config: Any) -> int | None:
    """The id that ends a text, where the config names one."""
    end = getattr(config, "eos_token_id", None)
    end = end[0] if isinstance(end, (list, tuple)) and end else end
    return (
        end
        if isinstance(end, int)
        and 0 <= end < int(_first(config, "src_vocab_size", "vocab_size", default=0, prefer="text"))
        else None
    )


def _parts(config: Any) -> list[Any]:
    """The config and its sub-configs."""
    subs = [v for v in vars(config).values() if hasattr(v, "to_dict") and hasattr(v, "model_type")]
    return [config, *(p for s in subs for p in _parts(s))]


def _first(config: Any, *names: str, default: Any = None, prefer: str = "") -> Any:
    """The first of these fields that the config or a sub-config has; sub-configs whose name holds
    ``prefer`` come first."""
    parts = _parts(config)
    parts.sort(
        key=lambda p: (
            0 if p is config else 1 if prefer and prefer in type(p).__name__.lower() else 2
        )
    )
    for part in parts:
        for name in names:
            value = getattr(part, name, None)
            if value is not None:
                return value
    return default


def _ids(config: Any, batch: int, length: int, settings: Mapping[str, Any], name: str) -> Tensor:
    """Random ids that are no special token of the config, but where the model must find
    placeholders or separators."""
    channels = settings.get("channels", {}).get(name)
    ids = _plain_ids(config, batch, length, (channels,) if channels else ())
    if name == "input_ids":
        ids[:, : settings.get("placeholders", 0)] = _first(
            config,
            "image_token_id",
            "image_token_index",
            "audio_token_id",
            "audio_token_index",
            default=0,
        )
        for place, value in settings.get("fixed", {}).items():
            ids[:, place] = value
    return ids


def _plain_ids(config: Any, batch: int, length: int, more: tuple[int, ...] = ()) -> Tensor:
    vocabulary = int(_first(config, "src_vocab_size", "vocab_size", default=100, prefer="text"))
    special: set[int] = {0, 1, 2, 3}
    for part in _parts(config):
        for key, value in vars(part).items():
            if key.endswith(("_token_id", "_token_index")):
                special.update(
                    v
                    for v in (value if isinstance(value, (list, tuple)) else [value])
                    if isinstance(v, int)
                )
    allowed = torch.tensor(
        [i for i in range(vocabulary) if i not in special] or list(range(vocabulary))
    )
    return allowed[torch.randint(len(allowed), (batch, length, *more))]


def _pixels(config: Any, batch: int, settings: Mapping[str, Any], model: nn.Module) -> Tensor:
    channels = int(
        _first(config, "num_channels", "in_channels", "in_chans", default=3, prefer="vision")
    )
    if "spatial_shapes" in inspect.signature(model.forward).parameters:  # patches, ready cut
        return torch.randn(
            batch, GRID * GRID, channels * int(_first(config, "patch_size", prefer="vision")) ** 2
        )
    size = settings.get("image_size") or _first(
        config, "image_size", "img_size", default=64, prefer="vision"
    )
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    return torch.randn(batch, channels, int(height), int(width))


def _frames(config: Any, batch: int, settings: Mapping[str, Any], model: nn.Module) -> Tensor:
    frames = int(settings.get("video", 2))
    return _pixels(config, frames * batch, settings, model).unflatten(0, (batch, frames))


def _sound(config: Any, batch: int, settings: Mapping[str, Any], model: nn.Module) -> Tensor:
    if (
        model.main_input_name == "input_values"
        and getattr(config, "max_length", None)
        and getattr(config, "num_mel_bins", None)
    ):
        return torch.randn(
            batch, int(config.max_length), int(config.num_mel_bins)
        )  # spectrogram patches
    return torch.randn(batch, int(settings.get("samples", 4000)))


def _features(config: Any, batch: int, settings: Mapping[str, Any], model: nn.Module) -> Tensor:
    bins = int(
        settings.get("bins")
        or _first(
            config,
            "feature_projection_input_dim",
            "input_feat_per_channel",
            "num_mel_bins",
            "input_dim",
            "feature_size",
            default=16,
            prefer="audio",
        )
    )
    frames = int(settings.get("frames", 0))
    if _channels_first(config, settings):
        return torch.randn(
            batch,
            bins,
            frames or 2 * int(_first(config, "max_source_positions", default=16, prefer="audio")),
        )
    return torch.randn(batch, frames or 32, bins)


def _channels_first(config: Any, settings: Mapping[str, Any]) -> bool:
    """Whether sound comes as (bins, frames), as Whisper's does."""
    whisper = _first(config, "num_mel_bins", prefer="audio") and _first(
        config, "max_source_positions", prefer="audio"
    )
    return bool(settings.get("channels_first", whisper))


def _boxes(config: Any, batch: int, settings: Mapping[str, Any], model: nn.Module) -> Tensor:
    size = int(_first(config, "max_2d_position_embeddings", default=1000))
    corners = torch.randint(0, min(size, 1000) // 2, (batch, _length(settings), 2))
    return torch.cat(
        [corners, corners + torch.randint(1, min(size, 1000) // 2 - 1, corners.shape)], -1
    )


def _series(config: Any, batch: int, settings: Mapping[str, Any], model: nn.Module) -> Tensor:
    length = int(_first(config, "context_length", default=32)) + (
        max(getattr(config, "lags_sequence", None) or [0])
    )
    channels = int(_first(config, "num_input_channels", "input_size", default=1))
    return (
        torch.randn(batch, length, channels)
        if channels > 1 or hasattr(config, "num_input_channels")
        else torch.randn(batch, length)
    )


MAKERS: dict[str, Callable[[Any, int, Mapping[str, Any], nn.Module], Tensor]] = {
    "input_ids": lambda config, batch, settings, model: _ids(
        config, batch, _length(settings), settings, "input_ids"
    ),
    "decoder_input_ids": lambda config, batch, settings, model: _ids(
        getattr(config, "decoder", config), batch, TARGET_LENGTH, settings, "decoder_input_ids"
    ),
    "task_inputs": lambda config, batch, settings, model: _plain_ids(
        config, batch, int(getattr(config, "task_seq_len", LENGTH))
    ),
    "pixel_values_videos": _frames,
    "pixel_attention_mask": lambda config, batch, settings, model: torch.ones(
        batch, GRID * GRID, dtype=torch.long
    ),
    "spatial_shapes": lambda config, batch, settings, model: torch.full((batch, 2), GRID),
    "pixel_values": _pixels,
    "input_values": _sound,
    "input_features": _features,
    "bbox": _boxes,
    "past_values": _series,
    "input_features_mask": lambda config, batch, settings, model: torch.ones(
        batch, int(settings.get("frames") or 32), dtype=torch.long
    ),
    "visual_embeds": lambda config, batch, settings, model: torch.randn(
        batch, 4, int(config.visual_embedding_dim)
    ),
    "visual_feats": lambda config, batch, settings, model: torch.randn(
        batch, 4, int(config.visual_feat_dim)
    ),
    "visual_pos": lambda config, batch, settings, model: torch.rand(
        batch, 4, int(config.visual_pos_dim)
    ),
}
