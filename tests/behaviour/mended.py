"""Calls whose answers changed on purpose since the record was made, each with its reason; they were
recorded anew."""

BY_NAME = "check called relprop's own operations by their address in memory: now by their name"
MEMORY = "check says how much memory an explanation takes"
PYTORCHS = "of an error of the model, what PyTorch said is that of its version, and left out"
LISTED = "lrp_gamma is in the lists of methods and rule sets"
CHECKED = (
    "ViT",
    "Swin",
    "BERT",
    "Llama",
    "T5",
    "CLIP",
    "DETR",
    "class token",
    "tied, shared, post",
    "parallel, written out",
    "convolved",
    "masked",
)
FAILED = (
    "callable uses item",
    "callable branches on values",
    "wrong number of features",
    "missing axis",
    "wrong dtype",
    "ints where floats belong",
    "floats where ids belong",
)
NAMED = ("DETR", "parallel, written out")
LISTING = (
    *(f"{n}/rules epsilon_lrp" for n in ("class token", "masked", "ViT", "BERT", "Swin")),
    *(
        f"refused/{n}"
        for n in (
            "unknown method",
            "unknown rule set",
            "rule set of a wrong type",
            "model without attention",
            "attention without softmax",
            "softmax over features",
        )
    ),
)
MENDED: dict[str, str] = {
    **dict.fromkeys(LISTING, LISTED),
    **{
        f"{n}/check": f"{BY_NAME}; {MEMORY}; {LISTED}" if n in NAMED else f"{MEMORY}; {LISTED}"
        for n in CHECKED
    },
    **{f"refused/{n}": PYTORCHS for n in FAILED},
}
