"""What model and twin do not say alike yet, by pair and method, each with the reason: held to be
wrong, so that what is mended must be taken out."""

METHODS_LEFT: tuple[tuple[str, str, str], ...] = (
    (
        "patch_tst_normalised",
        "value_zeroing",
        "the twin's axis of series is one of windows to value_zeroing, which refuses it",
    ),
    (
        "patch_tst",
        "value_zeroing",
        "the twin's axis of series is one of windows to value_zeroing, which refuses it",
    ),
    (
        "cache_token_by_token",
        "transformer_attribution attcat value_zeroing",
        "each step of a cache is an attention of its own: a rule that normalises over a tensor "
        "sees it; attcat and value_zeroing say that no layer holds all tokens",
    ),
    (
        "cache_prompt_then_step",
        "transformer_attribution attcat value_zeroing",
        "each step of a cache is an attention of its own: a rule that normalises over a tensor "
        "sees it; attcat and value_zeroing say that no layer holds all tokens",
    ),
    (
        "gat",
        "value_zeroing",
        "the twin's zeroed values overflow",
    ),
    (
        "moe_dispatched",
        "transformer_attribution lrp",
        "what comes back is made for every token and every place, of which one is kept",
    ),
    (
        "mega",
        "transformer_attribution lrp",
        "the moving average is a sum of positions here and a product there",
    ),
    *(
        (
            name,
            "value_zeroing",
            "refused: its experts are branches of Python's, which other values would choose anew",
        )
        for name in ("mixtral", "moe_listed", "moe_switch")
    ),
    (
        "megatron_bert",
        "attcat",
        "sequence first: which attention a token receives is meaned over other queries",
    ),
)

LEFT: dict[str, dict[str, str]] = {}
for name, methods, why in METHODS_LEFT:
    LEFT.setdefault(name, {}).update(dict.fromkeys(methods.split(), why))
