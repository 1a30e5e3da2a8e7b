"""Spellings that are not recognised yet, each with the reason: what the suite holds to be wrong, so
that one that is mended must be taken out."""

EXPERTS = "the products with the experts' weights are one tensor here and one for each expert there"

LEFT: dict[str, str] = {
    "choices-pool-lengths_in_python-padded": "each sample's sum is cut at its own length",
    "choices-experts-all_stacked_and_gathered-experts": EXPERTS,
    "transforms-experts-experts_by_vmap-experts": EXPERTS,
    "positions-position-RowAndColumn-plain": "a sum of two tables of positions is two terms",
    "writes-begin-read_between_writes-start": "a class token that is read between two writes",
}
