"""What a person looked at and wrote down: models whose constructor or call is unusual, and
softmaxes that are no attention over tokens."""

from __future__ import annotations

import re
from typing import Any

from tools.sweep.subject import Subject

RESNET = {"encoder_in_channels": [32, 64, 128]}
EFFICIENT = {
    "width_coefficient": 0.25,
    "depth_coefficient": 0.2,
    "image_size": 64,
    "hidden_dim": 320,
}
CHANGES: dict[str, dict[str, Any]] = {
    "align": {"vision_config": EFFICIENT, "projection_dim": 80},
    "audio-spectrogram-transformer": {"call:without": ["attention_mask"]},
    "bamba": {"attn_layer_indices": [1]},
    "beit": {"num_hidden_layers": 4, "out_indices": [1, 2, 3, 4]},
    "blip-2": {
        "image_token_index": 119,
        "call:inputs": ["input_ids", "pixel_values"],
        "call:placeholders": 4,
        "call:length": 16,
    },
    "Blip2ForImageTextRetrieval": {
        "qformer_config": {"use_qformer_text_input": True},
        "call:placeholders": 0,
        "call:length": 12,
    },
    "blt": {
        "use_cache": False,
        "encoder_config": {"hidden_size_global": 32},
        "decoder_config": {"hidden_size_global": 32},
    },
    "BlipForQuestionAnswering": {"call:inputs": ["input_ids", "pixel_values", "decoder_input_ids"]},
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}
    },
    "data2vec-vision": {"num_hidden_layers": 4, "out_indices": [1, 2, 3, 4]},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0}},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "DetrForSegmentation": {"encoder_attention_heads": 8, "decoder_attention_heads": 8},
    "dia": {"call:channels": {"decoder_input_ids": 9}},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "dpt": {"num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3]},
    "efficientnet": EFFICIENT,
    "esm": {"vocab_size": 30, "pad_token_id": 1, "mask_token_id": 29},
    "gemma3n": {"vision_config": {"architecture": "resnet10t"}},
    "gemma4_text": {"global_head_dim": 16},
    "gemma4": {"text_config": {"global_head_dim": 16}},
    "gemma4_unified_text": {"global_head_dim": 16},
    "gemma4_unified": {"text_config": {"global_head_dim": 16}},
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]]},
    "granite_speech5_ctc": {"call:bins": 64},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "hrm_text": {"num_layers_per_stack": None, "num_hidden_layers": 1, "L_cycles": 2},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "kyutai_speech_to_text": {"call:channels": {"input_ids": 2}},
    "layoutlmv3": {"input_size": 32, "call:image_size": 32},
    "levit": {"patch_size": 16, "image_size": 64},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "lilt": {"hidden_size": 48},
    "LongformerForQuestionAnswering": {"call:fixed": {3: 2, 4: 2}},
    "lw_detr": {
        "backbone_config": {"image_size": 64, "num_windows": 4},
        "projector_scale_factors": [1.0],
        "num_feature_levels": 1,
    },
    "lxmert": {"call:inputs": ["input_ids", "visual_feats", "visual_pos"]},
    "ministral": {"head_dim": 8},
    "moonshine_streaming": {"num_key_value_heads": 4},
    "mpnet": {"relative_attention_num_buckets": 32},
    "nemotron": {"num_key_value_heads": 2},
    "neomme": {"head_dim": 16},
    "nystromformer": {
        "call:length": 16,
        "call:without": ["attention_mask"],
    },  # with landmarks it fails on masks
    "pp_doclayout_v2": {"class_thresholds": [0.0] * 5, "class_order": [0, 1, 2, 3, 4]},
    "PerceiverForImageClassificationConvProcessing": {"num_cross_attention_heads": 1},
    "PerceiverForImageClassificationFourier": {"num_cross_attention_heads": 1},
    "qwen4_exp": {
        "indexer_compress_ratio": 2,
        "indexer_budget": 4,
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
    },
    "qwen3_asr": {
        "audio_config": {"output_dim": 32},
        "call:inputs": ["input_ids", "input_features", "input_features_mask"],
        "call:placeholders": 13,
        "call:length": 24,
        "call:frames": 100,
        "call:channels_first": True,
    },
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {
        "axial_pos_embds_dim": [8, 24],
        "axial_pos_shape": [4, 4],
        "attention_head_size": 8,
        "lsh_attn_chunk_length": 4,
        "local_attn_chunk_length": 4,
        "attn_layers": ["local", "lsh"],
        "hash_seed": 0,
        "call:length": 16,
    },
    "ReformerModelWithLMHead": {"is_decoder": True},
    "rt_detr": RESNET,
    "rt_detr_v2": RESNET,
    "sapiens2": {"head_config": {"upsample_out_channels": [16, 16], "conv_out_channels": [16]}},
    "shieldgemma2": {"yes_token_index": 5, "no_token_index": 6},
    "siglip2": {
        "call:inputs": ["input_ids", "pixel_values", "pixel_attention_mask", "spatial_shapes"]
    },
    "Siglip2ForImageClassification": {
        "call:inputs": ["pixel_values", "pixel_attention_mask", "spatial_shapes"]
    },
    "speech-encoder-decoder": {"call:inputs": ["input_values", "decoder_input_ids"]},
    "t5": {"decoder_start_token_id": 0},
    "timesfm2_5": {"context_length": 128},
    "timesfm": {"context_length": 128},
    "vibevoice_asr": {"acoustic_tokenizer_chunk_size": 3200},
    "videomt": {"call:video": 1},
    "vilt": {"call:without": ["pixel_mask"]},
    "visual_bert": {"call:inputs": ["input_ids", "visual_embeds"]},
    "voxtral": {
        "audio_token_id": 119,
        "call:inputs": ["input_ids", "input_features"],
        "call:placeholders": 32,
        "call:length": 60,
    },
    "voxtral_realtime": {
        "call:inputs": ["input_ids", "input_features"],
        "call:frames": 96,
        "call:channels_first": True,
    },
    "wav2vec2-bert": {"vocab_size": 30},
    "wav2vec2-conformer": {"vocab_size": 30},
    "xlnet": {"call:padding": "left"},
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "num_hidden_layers": 4,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "attention_hidden_size": 64,
    },
}
"""By model type or class: values of config fields that the generic rule gets wrong (a dictionary is a sub-config's), and, as ``call:NAME``, settings of the call."""  # noqa: E501


def _video_and_text(output: Any) -> Any:
    """VideoPrism divides its similarities by their sum over the videos of a call: of one video it
    is always 1."""
    return (output["video_embeds"] * output["text_embeds"]).sum()


TARGETS: dict[str, Any] = {"VideoPrismClipModel": _video_and_text}
"""By class: what is explained where neither the default target nor an element of the output says anything."""  # noqa: E501

NO_TOKEN_ATTENTION: tuple[tuple[str, str, str], ...] = (
    (r"hf/.*", r"\.(gate|router): ", "a router: it weighs experts"),
    (r"hf/dbrx/.*", r"\.ffn: it enters no contraction", "a router: it weighs experts"),
    (
        r"hf/deepseek_v4/.*",
        r"\.(attn_hc|ffn_hc): ",
        "hyper-connections: they mix copies of the residual stream",
    ),
    (
        r"hf/inkling2.*",
        r"\.(attention|mlp|final)_input: its keys are channels",
        "attention over depth: it mixes what earlier blocks gave for one token, no tokens",
    ),
    (
        r"timm/davit/.*",
        r"blocks\.\d+\.1\.attn: its keys are channels",
        "channel attention: it mixes channels of a token, no tokens",
    ),
    (
        r"timm/(xcit|edgenext)/.*",
        r"(\.attn|\.xca): its keys are channels",
        "cross-covariance attention: it mixes channels, no tokens",
    ),
    (r"timm/resnest/.*", r"\.rsoftmax: ", "split attention: it weighs branches of a convolution"),
    (
        r"timm/sknet/.*",
        r"\.conv\d\.attn: ",
        "selective kernels: it weighs branches of a convolution",
    ),
    (
        r"hf/detr/DetrForSegmentation",
        r"bbox_attention: it enters no contraction",
        "maps that are features of the mask head: they weigh nothing",
    ),
    (r"hf/shieldgemma2/.*", r"^top level: ", "the output's own probabilities"),
    (
        r"hf/convbert/.*",
        r"attention\.self: its keys are channels",
        "dynamic convolution: weights of a kernel over nine neighbours, beside the attention",
    ),
    (
        r"hf/patchtsmixer/.*",
        r"\.attn_softmax: it enters no contraction",
        "a gate: it weighs features",
    ),
    (
        r"hf/(d_fine|deimv2)/.*",
        r"decoder\.(integral|lqe_layers)",
        "a distribution over distances of a box's edge: it weighs numbers",
    ),
    (
        r"hf/granite_speech5_ctc/.*",
        r"^encoder: it enters no contraction",
        "the middle layer's guess at letters, fed back: it weighs letters",
    ),
    (
        r"hf/(deformable_detr|rt_detr|rt_detr_v2|d_fine|deimv2|rf_detr|lw_detr|mask2former|oneformer|pp_doclayout_v\d)/.*",
        r"(self|encoder|cross)_attn: it enters no contraction",
        "deformable attention: it weighs points sampled between tokens",
    ),
)
"""Softmaxes that end in no attention site and are no attention over tokens: subject, place and the reason found (as patterns), and what a person saw there."""  # noqa: E501


def is_reviewed(subject: Subject, softmax: str) -> bool:
    """Whether a softmax that ends in no site is known to be none."""
    return any(
        re.fullmatch(name, subject.name) and re.search(place, softmax)
        for name, place, _ in NO_TOKEN_ATTENTION
    )
