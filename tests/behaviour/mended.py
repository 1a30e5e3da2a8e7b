"""Calls whose answers changed on purpose since the record was made, each with its reason."""

MENDED: dict[str, str] = {}
