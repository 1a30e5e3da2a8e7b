"""Spellings that are not recognised yet, each with the reason: what the suite holds to be wrong, so
that one that is mended must be taken out."""

LEFT: dict[str, str] = {}
