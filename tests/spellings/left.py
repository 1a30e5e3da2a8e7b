"""Spellings that are not recognised yet, each with the reason: what the suite holds to be wrong, so
that one that is mended must be taken out. By ``python -m tests.spellings.table``, all of it."""

OTHER_FORM = "not brought to the base's form"
OTHER_SUMS = "a sum, a join or a product is not brought to the base's form: a rule sees other terms"
REFUSED = "refused by the operation's name, where an answer could be had"

LEFT: dict[str, str] = dict.fromkeys(
    (
        "attentions-attend-heads_as_blocks_of_one_map-plain",
        "biases-attend-bias_as_a_factor-relative",
        "biases-hide-shifted-relative",
        "loops-blocks-samples_twice-plain",
        "scores-scores-einsum_with_a_scale_per_feature-plain",
        "scores-scores-feature_by_feature-plain",
    ),
    OTHER_FORM,
)
LEFT |= dict.fromkeys(
    (
        "contractions-contract-all_heads_with_all_heads-plain",
        "contractions-contract-convolution_by_weights-plain",
        "contractions-contract-product_and_nansum-plain",
        "cuts-attention-GroupsAsLongerSequences-grouped",
        "cuts-attention-GroupsByEinsum-grouped",
    ),
    OTHER_SUMS,
)
LEFT |= dict.fromkeys(
    ("scores-scores-convolution_by_keys-plain",),
    REFUSED,
)
