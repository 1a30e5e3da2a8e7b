"""A Hugging Face config made small by what its fields are called, recursively, keeping what must
fit together.

Two ways: ``cap`` gives every width, head count and length a small value of its own; ``scale``
divides all widths by one number, which keeps their ratios. Layers are chosen so that each kind of
layer the config mixes occurs; special token ids stay inside the vocabulary.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

VOCABULARY = 120
LABELS = 5
HIDDEN, HEADS, HEAD_DIM, FEED_FORWARD, POSITIONS, IMAGE, PATCH = 32, 4, 8, 64, 64, 32, 8

LAYERS = re.compile(
    r"^(num_hidden_layers|n_layers?|num_layers|(en|de)coder_layers|num_(en|de)coder_layers|[lxr]_layers|(en|de)coder_num_(hidden_)?layers|conf_num_hidden_layers"
    r"|speech_encoder_layers|t2u_(en|de)coder_layers|text_encoder_num_layers|num_blocks|depth|num_self_attends_per_block|num_adapter_layers|query_dec_layers"
    r"|speech_decoder_prenet_layers|num_layers_per_stack)$"
)
HEAD_COUNTS = re.compile(
    r"^(num_attention_heads|n_heads?|num_heads|attention_heads|(\w+_)?attention_heads|(\w+_)?num_attention_heads|num_(self|cross)_attention_heads"
    r"|num_(en|de)coder_attention_heads|(en|de)coder_num_heads|linear_num_value_heads|index_n_heads)$"
)
KEY_HEADS = re.compile(
    r"^((\w+_)?num_key_value_heads|num_kv_heads|kv_n_heads|num_key_value_attention_heads|linear_num_key_heads|num_query_groups)$"
)
HEAD_SIZES = re.compile(
    r"^(head_dim|(\w+_)?head_dim|attention_head_size|attention_head_dim|kv_channels|d_kv|d_head|dim_head|v_head_dim|qk_nope_head_dim|qk_rope_head_dim|index_head_dim"
    r"|linear_(key|value)_head_dim|rotary_dim)$"
)
WIDTHS = re.compile(
    r"^((\w+_)?hidden_size|d_model|n_embd|emb_dim|embed_dim|embedding_dim|dim|hidden_dim|projection_dim|projection_size|embedding_size|entity_emb_size|project_dim"
    r"|word_embed_proj_dim|output_hidden_size|out_hidden_size|d_latents|lru_width|mask_feature_size|fpn_feature_size|mask_dim|feature_size|conv_dim|text_encoder_width"
    r"|(en|de)coder_hidden_dim|encoder_projection_dim|(query|key|value)_dim|input_embedding_size|output_embedding_size|pooler_output_size|true_hidden_size"
    r"|classifier_proj_size|attention_hidden_size|cross_attention_hidden_size|image_text_hidden_size|visual_embedding_dim|codevector_dim|proj_codevector_dim)$"
)
RANKS = re.compile(
    r"^((q|kv|o)_lora_rank|mamba_d_state|state_size|ssm_state_size|laurel_rank|embedding_rank|adapter_rank|gated_norm_rank|xvector_output_dim|d_rel)$"
)
FEED_FORWARDS = re.compile(
    r"^(intermediate_size|(\w+_)?intermediate_size(_mlp)?|(\w+_)?ffn_dim|(\w+_)?ffn_hidden_size|d_ff|dff|dim_ff|n_inner|d_inner|ffn_hidden_size|mlp_dim|(\w+_)?dim_feedforward"
    r"|encoder_feedforward_dim|feed_forward_size|pooler_hidden_size|ffn_size)$"
)
VOCABULARIES = re.compile(r"^((\w+_)?vocab_size(_per_layer_input)?|\w*_vocab_size)$")
LENGTHS = re.compile(
    r"^((\w+_)?max_position_embeddings|n_positions|n_ctx|max_(source|target)_positions|max_(en|de)coder_position_embeddings|max_seq_len|max_length|model_max_length"
    r"|original_max_position_embeddings|max_(speech|text)_positions|text_encoder_context_length|max_text_len|task_seq_len)$"
)
WINDOWS = re.compile(
    r"^(window_size|sliding_window|attention_window|local_attention|attention_window_size|sliding_window_size|attention_chunk_size|(\w+_)?chunk_size|local_radius)$"
)
IMAGES = re.compile(r"^(image_size|img_size|input_size|crop_size|pretrain_image_size)$")
PATCHES = re.compile(r"^(patch_size)$")
EXPERTS = re.compile(
    r"^(num_experts|n_routed_experts|num_local_experts|moe_num_experts|zero_expert_num)$"
)
PER_TOKEN = re.compile(r"^(num_experts_per_tok(en)?|moe_topk|moe_top_k|moe_k|topk)$")
SMALL = {
    "num_queries": 6,
    "num_detection_tokens": 6,
    "two_stage_num_proposals": 6,
    "type_vocab_size": 2,
    "num_mel_bins": 16,
    "n_group": 2,
    "topk_group": 1,
    "num_expert_group": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "max_window_layers": 1,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
    "num_latents": 8,
    "num_query_tokens": 4,
    "index_topk": 4,
    "relative_attention_num_buckets": 8,
    "num_object_labels": 8,
    "num_attr_labels": 8,
    "num_qa_labels": 8,
    "visual_feat_dim": 16,
    "num_denoising": 4,
    "num_codevectors_per_group": 8,
    "hidden_size_per_layer_input": 8,
    "num_kv_shared_layers": 0,
    "conv_depthwise_kernel_size": 3,
    "encoder_stride": PATCH,
    "moe_num_shared_experts": 1,
    "train_num_points": 16,
    "num_register_tokens": 2,
    "entity_vocab_size": VOCABULARY,
    "block_size": 2,
    "num_landmarks": 4,
    "segment_means_seq_len": 16,
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_chunk_size": 4,
    "mamba_expand": 2,
    "num_nextn_predict_layers": 0,
    "mamba_d_ssm": 64,
    "mamba_num_heads": 8,
    "mamba_head_dim": 8,
    "n_groups": 2,
    "dim_model_base": 32,
    "time_step_rank": 4,
    "mamba_dt_rank": 4,
    "coordinate_size": 6,
    "shape_size": 4,
    "context_size": 8,
    "upsample_groups": 8,
    "num_codebooks": 1,
    "window_size": 2,
    "qk_head_dim": 16,
    "encoder_hash_byte_group_vocab": 128,
    "num_frames": 2,
    "num_patches": 16,
    "num_filters": 4,
}
WIDTH_RULES = (WIDTHS, RANKS, FEED_FORWARDS)


def shrink(
    config: Any, *, how: str = "cap", divisor: int = 16, changes: dict[str, Any] | None = None
) -> Any:
    """A small config of the same class. ``how``: ``"cap"``, ``"scale"`` (by ``divisor``) or
    ``"layers"`` (only fewer layers and words).

    ``changes`` are values for fields whose rule would be wrong; a dictionary as value changes a
    sub-config's fields.
    """
    changes = changes or {}
    own = _fields(config)
    kept = _kept_layers(own)
    values: dict[str, Any] = {}
    for name, (value, default) in own.items():
        if name in changes and not (isinstance(changes[name], dict) and _is_config(value)):
            values[name] = changes[name]
        elif _is_config(value):
            values[name] = shrink(value, how=how, divisor=divisor, changes=changes.get(name))
        elif not (
            default is None and _is_nested(value)
        ):  # what was worked out from other fields will be again
            new = _shrunk(name, value, own, kept, how, divisor)
            if new != default or type(new) is not type(default):
                values[name] = new
    values.update(_taps(config, values))
    values.update({k: v for k, v in changes.items() if not (isinstance(v, dict) and k in values)})
    parts = [
        v.vocab_size for v in values.values() if isinstance(getattr(v, "vocab_size", None), int)
    ]
    vocabulary = values.get("vocab_size", getattr(config, "vocab_size", min(parts, default=None)))
    values.update(_special_ids(own, vocabulary, changes))
    return type(config)(**values)


def _fields(config: Any) -> dict[str, tuple[Any, Any]]:
    """Each field of the config with its value and its class's default; sub-configs that are no
    field of a dataclass included."""
    known = {
        f.name: f.default
        if f.default is not dataclasses.MISSING
        else f.default_factory()
        if f.default_factory is not dataclasses.MISSING
        else None
        for f in dataclasses.fields(config)
    }
    skip = {
        "transformers_version",
        "architectures",
        "id2label",
        "label2id",
        "dtype",
        "_name_or_path",
        "name_or_path",
    }
    return {
        k: (_value(config, k, d), d)
        for k, d in known.items()
        if k not in skip and not k.startswith("_")
    }


def _value(config: Any, name: str, default: Any) -> Any:
    """A field's value; the class's default where the config refuses to say (fields that differ from
    layer to layer)."""
    try:
        return getattr(config, name, default)
    except Exception:  # the library has a type of its own for this
        return default


def _taps(config: Any, values: dict[str, Any]) -> dict[str, Any]:
    """A backbone's outputs: as they are where they are stages, else as many of the last layers, of
    which there must be enough."""
    taps = getattr(config, "out_indices", None)
    if not isinstance(taps, (list, tuple)) or not taps or not hasattr(config, "_out_indices"):
        return {}
    if any(
        hasattr(config, name)
        for name in (
            "depths",
            "hidden_sizes",
            "stage_out_channels",
            "stage_in_channels",
            "block_configs",
        )
    ):
        return {"out_indices": list(taps)}
    layers = max(values.get("num_hidden_layers", 2), len(taps))
    return {
        "num_hidden_layers": layers,
        "out_indices": list(range(layers - len(taps) + 1, layers + 1)),
        "out_features": None,
    }


def _is_config(value: Any) -> bool:
    return (
        hasattr(value, "to_dict")
        and hasattr(value, "model_type")
        and dataclasses.is_dataclass(value)
    )


def _is_nested(value: Any) -> bool:
    return isinstance(value, dict) or (
        isinstance(value, (list, tuple)) and any(isinstance(v, (list, tuple, dict)) for v in value)
    )


def _kept_layers(own: dict[str, tuple[Any, Any]]) -> list[int] | None:
    """Which layers to keep: the first of every kind that the config's per-layer lists tell apart,
    at least two."""
    count = next((v for k, (v, _) in own.items() if LAYERS.match(k) and isinstance(v, int)), None)
    if not count or count < 2:
        return None
    lists = [
        v
        for v, _ in own.values()
        if isinstance(v, (list, tuple))
        and len(v) == count
        and all(isinstance(x, (str, int, bool)) for x in v)
    ]
    kinds = [str(tuple(v[i] for v in lists)) for i in range(count)]
    firsts = [i for i, kind in enumerate(kinds) if kind not in kinds[:i]][:4]
    if len(firsts) < 2:
        firsts += [i for i in range(count) if i not in firsts][: 2 - len(firsts)]
    return sorted(firsts)


def _shrunk(
    name: str,
    value: Any,
    own: dict[str, tuple[Any, Any]],
    kept: list[int] | None,
    how: str,
    divisor: int,
) -> Any:
    """One field's new value."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, (list, tuple)):
        return _shrunk_list(name, value, own, kept, how, divisor)
    if not isinstance(value, int):
        return value
    if LAYERS.match(name):
        return min(
            value,
            len(kept)
            if kept and name in ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
            else 2,
        )
    if VOCABULARIES.match(name) and name not in SMALL:
        return min(value, VOCABULARY)
    if LENGTHS.match(name):
        return min(value, POSITIONS)
    if EXPERTS.match(name):
        return min(value, 4)
    if PER_TOKEN.match(name):
        return min(value, 2)
    if how == "layers":
        return value
    if how == "scale":
        return (
            max(value // divisor, 1)
            if any(rule.match(name) for rule in (*WIDTH_RULES, HEAD_SIZES))
            else value
        )
    return _capped(name, value, own)


def _capped(name: str, value: int, own: dict[str, tuple[Any, Any]]) -> int:
    if name in SMALL:
        return min(value, SMALL[name])
    if KEY_HEADS.match(name):
        heads = next(
            (v for k, (v, _) in own.items() if HEAD_COUNTS.match(k) and isinstance(v, int)), value
        )
        return min(heads, HEADS) if value == heads else min(value, 2)
    for rule, small in (
        (HEAD_COUNTS, HEADS),
        (HEAD_SIZES, HEAD_DIM),
        (RANKS, HEAD_DIM * 2),
        (FEED_FORWARDS, FEED_FORWARD),
        (WIDTHS, HIDDEN),
        (WINDOWS, 4),
        (IMAGES, IMAGE),
        (PATCHES, PATCH),
    ):
        if rule.match(name):
            if rule is IMAGES and _patch(own) < PATCH:
                small *= 2  # several stages: a grid that can be halved
            return min(value, small) if value > 0 else value
    return value


def _patch(own: dict[str, tuple[Any, Any]]) -> int:
    patch = own.get("patch_size", (PATCH, None))[0]
    return patch if isinstance(patch, int) else PATCH


def _shrunk_list(
    name: str,
    value: Any,
    own: dict[str, tuple[Any, Any]],
    kept: list[int] | None,
    how: str,
    divisor: int,
) -> Any:
    count = next((v for k, (v, _) in own.items() if LAYERS.match(k) and isinstance(v, int)), None)
    if (
        kept
        and count
        and len(value) == count
        and all(isinstance(v, (str, int, float)) for v in value)
    ):
        chosen = type(value)(value[i] for i in kept)
        return (
            chosen
            if how != "cap"
            else type(value)(
                _capped(name.removesuffix("_per_layer"), v, own) if type(v) is int else v
                for v in chosen
            )
        )
    numbers = bool(value) and all(isinstance(v, int) and not isinstance(v, bool) for v in value)
    if not numbers:
        return value
    if name in ("depths", "layer_depths", "stage_numb_of_layers", "num_block_repeats"):
        return type(value)(min(v, 2) for v in value)
    if how == "layers":
        return value
    if IMAGES.match(name):
        return type(value)(IMAGE * (2 if _patch(own) < PATCH else 1) for _ in value)
    if name in ("num_heads", "num_attention_heads") and how == "cap":
        return type(value)(
            v // min(value) if all(v % min(value) == 0 for v in value) else v for v in value
        )
    if name == "decoder_in_channels":
        return type(value)(min(v, HIDDEN) for v in value)
    if (
        name == "hidden_sizes" and "stage_out_channels" in own
    ):  # what such a config derives it from stays
        return value
    if re.match(
        r"^(hidden_sizes|embed_dims?|conv_dim|tdnn_dim|widths|dims|neck_hidden_sizes|decoder_hidden_sizes|layer_list_out_channels)$",
        name,
    ):
        return (
            type(value)(max(v // divisor, 4) for v in value)
            if how == "scale"
            else type(value)(max(v * 16 // min(value) // 4 * 4, 4) for v in value)
        )
    return value


def _special_ids(
    own: dict[str, tuple[Any, Any]], vocabulary: Any, changes: dict[str, Any]
) -> dict[str, Any]:
    """Token ids that would fall outside the vocabulary, moved to its end, each to a place of its
    own."""
    if not isinstance(vocabulary, int):
        return {}
    moved: dict[str, Any] = {}
    place: dict[int, int] = {}

    def inside(value: int) -> int:
        return value if value < vocabulary else place.setdefault(value, vocabulary - 1 - len(place))

    for name, (value, _) in own.items():
        if re.search(r"_(token_id|token_index|index)$", name) and name not in changes:
            if value is None and name == "pad_token_id":
                moved[name] = 0
            elif isinstance(value, int) and not isinstance(value, bool) and value >= vocabulary:
                moved[name] = inside(value)
            elif isinstance(value, (list, tuple)) and any(
                isinstance(v, int) and v >= vocabulary for v in value
            ):
                moved[name] = type(value)(inside(v) for v in value)
    return moved
