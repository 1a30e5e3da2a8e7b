"""What relprop gets wrong today of these models. The list only gets shorter: a fault that is gone
fails its test, which says to remove the line."""

ROWS = "rollout gae attention_times_grad"
ALL = "batch maps sites identity books gradient_x_input"

#: The reason; the models; the checks that fail; and, where they do not fail by an assertion of
#: their own, what the error says.
KNOWN = [
    ("one feature of a backbone without a head: the last attention weighs 1/d beside the skip's 1",
     "vit.qk_norm siglip x.embedding x_clip.text timm.headless sentences", ROWS),
    ("cuts of features on a way without a skip beside it: the streams of hyper-connections",
     "vit.hyper x.hyper local.hyper recurrent_memory", ROWS),
    ("one map in two terms of a sum counts twice: projections taken off, GRU gates, loops",
     "vit.orthogonal vit.looped x.gru x.split_residual", ROWS),
    ("projections over tokens and features in one axis are taken for features",
     "x.orthogonal x.orthogonal_values", ROWS),
    ("the identity again at long skips, at inputs and values that are added again",
     "vit.value_residual vit.unet x.unet x.reinjected x.value_residual x.on_attention reformer "
     "itransformer vit.layers vit.dca x.integrated", ROWS),
    ("the same: what skip connections leave of a row sums to more than 1",
     "vit.unet vit.layers vit.dca x.reinjected hierarchical coca graph itransformer reformer "
     "monai.unetr monai.swin_unetr mobilevit x.unet x.integrated", "identity"),
    ("a learned class token that is several tokens wide: its axis is taken for features",
     "vit.jumbo", "identity"),
    ("attentions that are added are one site, the mean of both", "vit.parallel", f"sites {ROWS}"),
    ("the iterations that invert a matrix between landmarks are taken for attention",
     "nystrom", "sites"),
    ("the matrices that mix residual streams are taken for attention",
     "ft_transformer", "maps sites"),
    ("the softmax over layers, which sums no tokens, is taken for attention",
     "x.integrated", "sites"),
    ("learned queries that pool tokens and are cut: cross-attention to them is dropped",
     "coca", "maps sites"),
    ("a constant without axes beside the output: the user's callable is blamed",
     "open_clip.pair", ALL, "slice() cannot be applied to a 0-dim tensor"),
    ("ids that are clamped before they are looked up are not explained, and no softmax is seen",
     "tab_transformer", "batch maps sites identity books", "it has no softmax"),
]  # fmt: skip

FAULTS = {
    (name, check): (reason, *words)
    for reason, names, checks, *words in KNOWN
    for name in names.split()
    for check in checks.split()
}
