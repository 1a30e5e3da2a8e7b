"""Calls whose answers changed on purpose since the record was made, each with its reason; they were
recorded anew."""

BY_NAME = "check called relprop's own operations by their address in memory: now by their name"
MEMORY = "check says how much memory an explanation takes"
PYTORCHS = "of an error of the model, what PyTorch said is that of its version, and left out"
LISTED = "lrp_gamma is in the lists of methods and rule sets, leave_one_out in that of methods"
NEAREST = "what is nearest to a misspelt name is asked for"
CALLABLES = "methods without a start of relevance take callables with values read by Python"
VOCABULARY = "ids beyond the vocabulary are said by name"
FROZEN = "a frozen batch norm that is written out is a batch norm"
UNSTABILISED = "a division without a stabiliser books nothing to one: rounding is residual"
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
    "wrong number of features",
    "missing axis",
    "wrong dtype",
    "ints where floats belong",
    "floats where ids belong",
)
NAMED = ("DETR", "parallel, written out")
MISSPELT = (
    *(f"{n}/rules epsilon_lrp" for n in ("class token", "masked", "ViT", "BERT", "Swin")),
    *(f"refused/unknown {n}" for n in ("method", "rule set", "option", "keep")),
)
LISTING = (
    "rule set of a wrong type",
    "model without attention",
    "attention without softmax",
    "softmax over features",
)
MADE_OF = ("inputs a string", "inputs a list of lists")
CALLED = ("uses item", "branches on values", "out of range", "ignores the output")
LOOKED_UP = ("ids out of range", "ids out of range in a later sample")
MENDED: dict[str, str] = {
    **{f"refused/{n}": LISTED for n in LISTING},
    **{f"refused/{n}": "what is no tensor is told how to become one" for n in MADE_OF},
    **dict.fromkeys(MISSPELT, f"{LISTED}; {NEAREST}"),
    "masked/value_zeroing": "scores that no relevance made are no overflow of relevance",
    **{f"refused/{n}": VOCABULARY for n in LOOKED_UP},
    **{
        f"{n}/check": f"{BY_NAME}; {MEMORY}; {LISTED}" if n in NAMED else f"{MEMORY}; {LISTED}"
        for n in CHECKED
    },
    "DETR/check": f"{BY_NAME}; {MEMORY}; {LISTED}; {FROZEN}",
    **{f"DETR/{n}": FROZEN for n in ("attnlrp", "cp_lrp", "epsilon_lrp")},
    **{f"{n}/lrp": UNSTABILISED for n in CHECKED},
    **{f"{n}/rules lrp": UNSTABILISED for n in ("class token", "masked", "ViT", "BERT", "Swin")},
    "DETR/lrp": f"{FROZEN}; {UNSTABILISED}",
    **{f"refused/{n}": PYTORCHS for n in FAILED},
    **{f"refused/callable {n}": CALLABLES for n in CALLED},
}
