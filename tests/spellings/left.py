"""Spellings that are not recognised yet, each with the reason: what the suite holds to be wrong, so
that one that is mended must be taken out."""

EXPERTS = "the products with the experts' weights are one tensor here and one for each expert there"

LEFT: dict[str, str] = {
    "choices-pool-lengths_in_python-padded": "each sample's sum is cut at its own length",
    "choices-experts-all_stacked_and_gathered-experts": EXPERTS,
    "transforms-experts-experts_by_vmap-experts": EXPERTS,
    "masks-normalise-numbers_times_mask-causal": "numbers times a mask, divided by their sum",
    "norms-norm-affine_by_a_grouped_convolution-plain": "a scale as a grouped convolution",
    "positions-position-RowAndColumn-plain": "a sum of two tables of positions is two terms",
    "projections-project-conv_transpose1d-plain": "a linear map as a transposed convolution",
    "residuals-residual-token_by_token-plain": "sums token by token are not joined",
    "writes-begin-read_between_writes-start": "a class token that is read between two writes",
}
