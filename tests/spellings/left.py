"""Spellings that are not recognised yet, each with the reason: what the suite holds to be wrong, so
that one that is mended must be taken out. By ``python -m tests.spellings.table``, all of it."""

OTHER_POOLS = (
    "a mean of picked tokens has the authors' rule of a mean, a sum that is divided has not"
)
OTHER_FORM = "not brought to the base's form"
REFUSED = "refused by the operation's name, where an answer could be had"

LEFT: dict[str, str] = dict.fromkeys(
    (
        "contractions-contract-all_heads_with_all_heads_masked-plain",
        "contractions-contract-all_values_of_every_head-plain",
        "contractions-contract-product_and_nanmean-plain",
        "loops-blocks-samples_twice-plain",
    ),
    OTHER_FORM,
)
LEFT |= dict.fromkeys(
    (
        "cuts-share-kron-grouped",
        "masks-hide-minimum-causal",
    ),
    REFUSED,
)
LEFT |= dict.fromkeys(
    (
        "choices-pool-a_branch_without_padding-padded",
        "choices-pool-lengths_in_python-padded",
        "choices-pool-picked-padded",
        "choices-pool-picked_and_convolved-padded",
        "choices-pool-picked_by_nonzero-padded",
        "choices-pool-split_by_lengths-padded",
    ),
    OTHER_POOLS,
)
LEFT["writes-begin-read_between_writes-start"] = (
    "a tensor less itself stays, as it may be its batch's mean"
)
