"""The models: of each how it is built, its inputs, its target, and which row its head reads. A new
model is one entry here; what is wrong with it, a line of ``faults.py``.

    name: case(made, inputs, target, reads, ...)
"""

# ruff: noqa: C408, E501
# fmt: off
from dataclasses import dataclass
from typing import Any

from tests.third_party.drawing import ids, normal


@dataclass(frozen=True)
class Case:
    """``made``: how the model is built (``checks.built``). ``inputs``: by name, or by position.
    ``target``: an index into one sample's output, or a function of the output of one sample.

    ``reads``: of a plain residual stack the position of the row that the head reads, or a slice of
    positions for their mean; ``None``: not a plain stack. ``beside``: so many attentions are added
    in one sum. ``rows``: so many rows the target reads. ``paper``: a plain ViT or BERT, whose default method is worked out anew.

    ``sites``: how many softmaxes mix explained tokens, where contractions read others, too.
    ``mixed``: heads are mixed behind the softmax. ``alone``: the model mixes the samples of a
    batch. ``refused``: what the refusal of all methods over attention says, where it is true;
    ``at_the_input``: whether gradient × input is explained. ``exact``: how near a batch is to its
    samples; less where a part of the model computes in float32. ``steady``: its gradient is the
    same however numbers are rounded."""

    made: tuple
    inputs: dict[Any, Any]
    target: Any = 1
    reads: int | slice | None = None
    beside: int = 1
    rows: int = 1
    paper: bool = False
    sites: int | None = None
    mixed: bool = False
    alone: bool = False
    exact: float = 1e-9
    steady: bool = True
    refused: str = ""
    at_the_input: bool = True


def case(made, inputs, target=1, reads=None, **rest):
    return Case(made, inputs if isinstance(inputs, dict) else {0: inputs}, target, reads, **rest)


def M(path, *arguments, **keywords):
    return path, arguments, keywords


def V(path, **changes):
    """A model of vit-pytorch; ``None`` leaves out a setting that most of them have."""
    settings = dict(image_size=16, patch_size=4, num_classes=5, dim=16, depth=2, heads=2, mlp_dim=32)
    settings = {k: v for k, v in (settings | changes).items() if v is not None}
    return M(f"vit_pytorch.{path}", **settings)


def X(kind="Decoder", wrapped=None, **layers):
    """A language model of x-transformers; ``wrapped``: settings of the module around the layers."""
    layers = M(f"x_transformers:{kind}", dim=16, depth=2, heads=2, attn_dim_head=8, **layers)
    return M("x_transformers:TransformerWrapper", num_tokens=20, max_seq_len=12, attn_layers=layers, **(wrapped or {}))


def headed(body, width=16):
    """The body, and a linear head at every token."""
    return M("torch.nn:Sequential", body, M("torch.nn:Linear", width, 5))


ALL, FIRST, LAST = slice(None), slice(16), (-1, 3)
SMALL, MIDDLE, LARGE = (normal(2, 3, n, n) for n in (16, 32, 64))
VIDEO, SERIES, TABLE = normal(2, 3, 4, 16, 16), normal(2, 8, 16), normal(2, 5)
WORDS, KINDS = ids(20, 2, 8), ids(3, 2, 4)
TUBES = dict(depth=None, patch_size=None, image_patch_size=8, frames=4, frame_patch_size=2)
NO_SOFTMAX = "it has no softmax"
LOOPED = dict(depth=None, pre_loop_depth=1, num_looped_blocks=1, post_loop_depth=1, loop_depth=2)
TABULAR = dict(dim=8, heads=2, dim_head=4, num_continuous=5)
RTDL = dict(n_cont_features=5, d_out=3, n_blocks=2, d_block=16, attention_n_heads=2, attention_dropout=0.0, ffn_d_hidden=16, ffn_d_hidden_multiplier=None, ffn_dropout=0.0, residual_dropout=0.0)
TINY = dict(dim=16, depth=2, heads=2, dim_head=8)
LATENTS = dict(num_latents=4, latent_dim=16, latent_heads=2, cross_dim_head=8, latent_dim_head=8)
PERCEIVER = dict(num_freq_bands=2, depth=2, max_freq=4, num_classes=5, **LATENTS)
TIMM = dict(img_size=16, patch_size=4, embed_dim=16, depth=2, num_heads=2)
CLIP_VISION = M("open_clip.model:CLIPVisionCfg", layers=2, width=16, head_width=8, patch_size=4, image_size=16)
CLIP_TEXT = M("open_clip.model:CLIPTextCfg", context_length=8, vocab_size=20, width=16, heads=2, layers=2)
MONAI = dict(hidden_size=16, mlp_dim=32, num_heads=2)
BOLT = dict(context_length=32, prediction_length=4, input_patch_size=4, input_patch_stride=4, quantiles=[0.1, 0.5, 0.9], use_reg_token=True)
T5 = M("transformers:T5Config", d_model=16, d_kv=8, d_ff=32, num_layers=2, num_decoder_layers=1, num_heads=2, decoder_start_token_id=0, pad_token_id=0, chronos_config=BOLT)
BERT = M("transformers:BertConfig", vocab_size=20, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, max_position_embeddings=12)
IMAGE, PIXELS, LONG = normal(2, 16, 4, 4), normal(2, 6, 6, 3), ids(20, 2, 16)
PAIR = {0: SERIES, 1: normal(2, 6, 16, seed=2)}

CASES = {
    "vit": case(V("vit:ViT"), SMALL, 3, 0, paper=True),
    "vit.mean": case(V("vit:ViT", pool="mean"), SMALL, 3, ALL, paper=True),
    "simple_vit": case(V("simple_vit:SimpleViT"), SMALL, 3, ALL, paper=True),
    "vit.registers": case(V("simple_vit_with_register_tokens:SimpleViT"), SMALL, 1, FIRST),
    "vit.qk_norm": case(V("simple_vit_with_qk_norm:SimpleViT"), SMALL, 1, ALL),
    "vit.value_residual": case(V("simple_vit_with_value_residual:SimpleViT"), SMALL, 1, ALL),
    "vit.hyper": case(V("simple_vit_with_hyper_connections:SimpleViT", num_residual_streams=2), SMALL, 1, FIRST),
    "vit.unet": case(V("simple_uvit:SimpleUViT"), SMALL, 1, FIRST),
    "vit.orthogonal": case(V("simple_vit_orthog_residual_update:SimpleViT"), SMALL, 1, ALL),
    "vit.layers": case(V("simple_vit_attn_residual:SimpleViTAttnResidual"), SMALL, 1, ALL, sites=2),
    "vit.dca": case(V("attn_residual_with_dca_simple_vit:SimpleViT"), SMALL, 1, ALL, sites=2),
    "vit.flash": case(V("simple_flash_attn_vit:SimpleViT"), SMALL, 1, ALL),
    "vit.parallel": case(V("parallel_vit:ViT"), SMALL, 1, 0, beside=2),
    "vit.looped": case(V("looped_vit:LoopedViT", **LOOPED), SMALL, 1, 0),
    "vit.jumbo": case(V("jumbo_vit:JumboViT", jumbo_cls_k=2), SMALL),
    "vit.sampled": case(M("tests.third_party.drawing:Seeded", V("ats_vit:ViT", max_tokens_per_depth=(8, 4))), SMALL[:1]),
    "vit.list": case(V("na_vit:NaViT"), {0: [normal(3, 16, 16)]}, refused="input 0 is a list of tensors", at_the_input=False),
    "siglip": case(V("vat_siglip:SigLIP", num_classes=None), SMALL, (3, 2), 3),
    "deepvit": case(V("deepvit:DeepViT"), SMALL, 1, 0, mixed=True),
    "cait": case(V("cait:CaiT", cls_depth=2), SMALL, mixed=True),
    "t2t": case(V("t2t:T2TViT", patch_size=None, t2t_layers=((3, 2), (3, 2))), SMALL),
    "cct": case(M("vit_pytorch.cct:cct_2", img_size=16, num_classes=5, n_conv_layers=1, kernel_size=3, stride=2, padding=1), SMALL),
    "maxvit.registers": case(M("vit_pytorch.max_vit_with_registers:MaxViT", num_classes=5, depth=(1, 1), dim=16, dim_head=8, window_size=4), MIDDLE),
    "mobilevit": case(M("vit_pytorch.mobile_vit:MobileViT", (64, 64), [16, 24, 24], [8, 8, 12, 12, 16, 16, 16, 16, 16, 16, 20], 5, depths=(1, 1, 1)), LARGE, sites=2),  # the last one's sequences are of one token
    "xcit": case(V("xcit:XCiT", cls_depth=1), SMALL, sites=1),
    "lookvit": case(V("look_vit:LookViT", image_size=32, patch_size=8, depth=1, mlp_dim=None, highres_patch_size=4, cross_attn_heads=2), MIDDLE),
    "vivit.factorized": case(V("vivit:ViViT", spatial_depth=1, temporal_depth=1, variant="factorized_self_attention", **TUBES), VIDEO),
    "x.decoder": case(X(), WORDS, LAST, -1),
    "x.encoder": case(X("Encoder", dict(average_pool_embed=True)), WORDS, 3, ALL),
    "x.cls": case(X("Encoder", dict(use_cls_token=True)), WORDS, 3, 0),
    "x.memory": case(X(wrapped=dict(num_memory_tokens=2)), WORDS, LAST, -1),
    "x.embedding": case(X(wrapped=dict(return_only_embed=True)), WORDS, LAST, -1),
    "x.gru": case(X(gate_residual=True), WORDS, LAST, -1),
    "x.orthogonal": case(X(orthog_residual=True), WORDS, LAST, -1),
    "x.orthogonal_values": case(X(attn_orthog_projected_values=True), WORDS, LAST, -1),
    "x.split_residual": case(X(mv_split_residual=True), WORDS, LAST, -1),
    "x.unet": case(X(unet_skips=True), WORDS, LAST, -1),
    "x.reinjected": case(X(reinject_input=True), WORDS, LAST, -1),
    "x.value_residual": case(X(add_value_residual=True), WORDS, LAST, -1),
    "x.integrated": case(X(integrate_layers=True), WORDS, LAST, -1, sites=2),
    "x.hyper": case(X(num_residual_streams=2), WORDS, LAST, -1, sites=2),
    "x.shifted": case(X(shift_tokens=1), WORDS, LAST),
    "x.flash": case(X(attn_flash=True), WORDS, LAST, -1),
    "x.talking_heads": case(X(attn_pre_talking_heads=True, attn_post_talking_heads=True), WORDS, LAST, -1),
    "x.on_attention": case(X(attn_on_attn=True), WORDS, LAST, -1),
    "x.sigmoid": case(X(attn_sigmoid=True), WORDS, LAST, refused=NO_SOFTMAX),
    "x.sink": case(X(attn_head_learned_sink=True), WORDS, LAST, -1),
    "torchvision.vit": case(M("torchvision.models:VisionTransformer", 16, 4, 2, 2, 16, 32, num_classes=5), SMALL, 1, 0, paper=True),
    "torchvision.swin": case(M("torchvision.models:SwinTransformer", [2, 2], 8, [2, 2], [2, 2], [4, 4], num_classes=5), SMALL),
    "torchvision.maxvit": case(M("torchvision.models:MaxVit", (32, 32), 8, 2, [8], [1], 4, 0.0, num_classes=5), MIDDLE),
    "timm.vit": case(M("timm:create_model", "vit_tiny_patch16_224", num_classes=5, **TIMM), SMALL, 1, 0, paper=True),
    "timm.headless": case(M("timm:create_model", "vit_tiny_patch16_224", num_classes=0, **TIMM), SMALL, 3, 0),
    "open_clip.picture": case(M("open_clip.transformer:VisionTransformer", 16, 4, 16, 2, 2, 2, output_dim=8), SMALL, 1, 0, paper=True),
    "open_clip.text": case(M("open_clip.transformer:TextTransformer", 8, 20, 16, 2, 2, output_dim=8), WORDS.sort().values, 1, -1),
    "open_clip.pair": case(M("open_clip:CLIP", 8, CLIP_VISION, CLIP_TEXT), {"image": SMALL, "text": WORDS.sort().values}, lambda o: o[0][0] @ o[1][0], rows=2),
    "monai.vit": case(M("monai.networks.nets:ViT", 1, (8, 8, 8), (4, 4, 4), num_layers=2, classification=True, num_classes=5, **MONAI), normal(2, 1, 8, 8, 8), lambda o: o[0][0, 1], 0),
    "monai.unetr": case(M("monai.networks.nets:UNETR", 1, 2, (32, 32), feature_size=4, spatial_dims=2, **MONAI), normal(2, 1, 32, 32), (1, 3, 3)),
    "monai.swin_unetr": case(M("monai.networks.nets:SwinUNETR", 1, 2, depths=(1, 1, 1, 1), num_heads=(1, 1, 1, 1), feature_size=12, spatial_dims=2, window_size=2), normal(2, 1, 64, 64), (1, 3, 3)),
    "monai.decoder": case(M("monai.networks.nets:DecoderOnlyTransformer", 20, 8, 16, 2, 2), WORDS, LAST, -1),
    "sam.encoder": case(M("segment_anything.modeling:ImageEncoderViT", 32, 4, embed_dim=16, depth=2, num_heads=2, out_chans=8, use_rel_pos=True, window_size=3, global_attn_indexes=(1,)), MIDDLE, (1, 2, 2)),
    "sam.two_way": case(M("segment_anything.modeling:TwoWayTransformer", 1, 16, 2, 32), {"image_embedding": IMAGE, "image_pe": normal(2, 16, 4, 4, seed=3), "point_embedding": normal(2, 3, 16, seed=4)}, lambda o: o[0][0, 1, 2]),
    "sentences": case(M("tests.third_party.drawing:Sentences", BERT), WORDS, 1, ALL),
    "sentences.dict": case(M("tests.third_party.drawing:Sentences", BERT, whole=True), {"features": {"input_ids": WORDS, "attention_mask": WORDS * 0 + 1}}, refused="input 'features' is a dict of tensors", at_the_input=False),
    "cross_encoder": case(M("transformers:BertForSequenceClassification", BERT), {"input_ids": WORDS}, 1, 0, paper=True),
    "chronos.bolt": case(M("chronos.chronos_bolt:ChronosBoltModelForForecasting", T5), {"context": normal(2, 32)}, lambda o: o.quantile_preds[0, 1, 2], sites=3, exact=1e-6),
    "ft_transformer": case(M("tab_transformer_pytorch:FTTransformer", categories=(3,) * 4, depth=1, num_residual_streams=2, **TABULAR), {"x_categ": KINDS, "x_numer": TABLE}, 0, sites=1),
    "ft_transformer.plain": case(M("tab_transformer_pytorch:FTTransformer", categories=(3,) * 4, depth=2, num_residual_streams=1, **TABULAR), {"x_categ": KINDS, "x_numer": TABLE}, 0),
    "tab_transformer": case(M("tab_transformer_pytorch:TabTransformer", categories=(3,) * 4, depth=1, num_residual_streams=1, mlp_act=M("torch.nn:ReLU"), **TABULAR), {"x_categ": KINDS, "x_cont": TABLE}, 0, at_the_input=False),  # the oracle knows no embedding of offset kinds
    "rtdl": case(M("rtdl_revisiting_models:FTTransformer", cat_cardinalities=[], **RTDL), {"x_cont": TABLE, "x_cat": None}),
    "rtdl.kinds": case(M("rtdl_revisiting_models:FTTransformer", cat_cardinalities=[3] * 4, **RTDL), {"x_cont": TABLE, "x_cat": KINDS}),
    "linformer": case(headed(M("linformer:Linformer", dim=16, seq_len=8, depth=2, k=4, heads=2)), SERIES, (3, 2)),
    "performer": case(M("performer_pytorch:PerformerLM", num_tokens=20, max_seq_len=8, nb_features=8, **TINY), WORDS, (3, 2), refused=NO_SOFTMAX),
    "reformer": case(M("reformer_pytorch:ReformerLM", num_tokens=20, dim=16, depth=2, max_seq_len=8, heads=2, bucket_size=4, use_full_attn=True, ff_chunks=1, reverse_thres=100), WORDS, (3, 2), 3),
    "reformer.lsh": case(M("reformer_pytorch:ReformerLM", num_tokens=20, dim=16, depth=1, max_seq_len=8, heads=2, bucket_size=4, n_hashes=1, ff_chunks=1), WORDS, (3, 2), refused=NO_SOFTMAX, at_the_input=False),
    "nystrom": case(M("nystrom_attention:Nystromformer", num_landmarks=4, **TINY), SERIES, (3, 2), alone=True, exact=1e-3, steady=False, sites=4),  # the softmax between landmarks is inverted: it weighs nothing, the inverse does; divides by the largest of row sums that are all 1
    "axial.picture": case(M("axial_attention:AxialImageTransformer", dim=16, depth=2, heads=2, reversible=False), IMAGE, (2, 1, 1)),
    "local": case(M("local_attention:LocalTransformer", num_tokens=20, max_seq_len=8, local_attn_window_size=4, num_residual_streams=1, **TINY), WORDS, LAST),
    "local.hyper": case(M("local_attention:LocalTransformer", num_tokens=20, max_seq_len=8, local_attn_window_size=8, num_residual_streams=2, **TINY), WORDS, LAST, -1),
    "perceiver": case(M("perceiver_pytorch:Perceiver", **PERCEIVER), PIXELS),
    "perceiver.gated": case(M("perceiver_pytorch.gated:Perceiver", **PERCEIVER), PIXELS),
    "timesformer": case(M("timesformer_pytorch:TimeSformer", num_frames=2, num_classes=5, image_size=16, patch_size=8, **TINY), normal(2, 2, 3, 16, 16)),
    "esm2": case(M("esm.model.esm2:ESM2", 2, 16, 2), ids(20, 2, 8) + 4, lambda o: o["logits"][0, 3, 5], 3),
    "x_clip.text": case(M("x_clip.x_clip:TextTransformer", num_tokens=20, max_seq_len=8, **TINY), WORDS, (0, 2), 0),
    "x_clip.picture": case(M("x_clip.x_clip:VisionTransformer", image_size=16, patch_size=4, channels=3, **TINY), SMALL, (0, 2), ALL),
    "titans": case(M("titans_pytorch:MemoryAsContextTransformer", num_tokens=20, segment_len=4, neural_memory_layers=(), num_residual_streams=1, **TINY), WORDS, LAST),
    "coca": case(M("coca_pytorch:CoCa", dim=16, num_tokens=20, unimodal_depth=1, multimodal_depth=1, num_img_queries=4, heads=2, dim_head=8, image_dim=16), {"text": WORDS, "image_tokens": normal(2, 6, 16)}, (3, 2)),
    "sinkhorn": case(M("sinkhorn_transformer:SinkhornTransformerLM", num_tokens=20, dim=16, heads=2, depth=1, max_seq_len=16, bucket_size=4), LONG, (3, 2)),
    "conformer": case(headed(M("conformer:Conformer", conv_kernel_size=3, **TINY)), SERIES, (3, 2), 3),
    "itransformer": case(M("iTransformer:iTransformer", num_variates=5, lookback_len=12, pred_length=4, num_residual_streams=1, **TINY), normal(2, 12, 5), (2, 1), 5),
    "itransformer.2d": case(M("iTransformer:iTransformer2D", num_variates=5, num_time_tokens=3, lookback_len=12, pred_length=4, dim=16, depth=1, heads=2, dim_head=8), normal(2, 12, 5), lambda o: o[4][0, 2, 1]),
    "palm": case(M("palm_pytorch:PaLM", num_tokens=20, **TINY), WORDS, LAST, -1),
    "graph": case(M("graph_transformer_pytorch:GraphTransformer", edge_dim=8, with_feedforwards=True, **TINY), {"nodes": SERIES, "edges": normal(2, 8, 8, 8)}, lambda o: o[0][0, 3, 2]),
    "deformable": case(M("deformable_attention:DeformableAttention", dim=16, heads=2, dim_head=8, downsample_factor=2, offset_kernel_size=4, offset_groups=1), normal(2, 16, 8, 8), (2, 1, 1)),
    "two_way": case(M("bidirectional_cross_attention:BidirectionalCrossAttention", dim=16, heads=2, dim_head=8, context_dim=16), PAIR, lambda o: o[0][0, 3, 2] + o[1][0, 1, 2]),
    "recurrent_memory": case(M("recurrent_memory_transformer_pytorch:RecurrentMemoryTransformer", num_tokens=20, num_memory_tokens=2, seq_len=8, **TINY), WORDS, lambda o: o[0][0, -1, 2], 9),
    "hierarchical": case(M("simple_hierarchical_transformer:HierarchicalTransformer", num_tokens=20, seq_len=8, hierarchies=(1, 2), **TINY), WORDS, LAST),
}
