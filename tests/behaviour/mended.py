"""Calls whose answers changed on purpose since the record was made, each with its reason; they were
recorded anew."""

BY_NAME = "check called relprop's own operations by their address in memory: now by their name"
MENDED: dict[str, str] = {
    "DETR/check": BY_NAME,
    "parallel, written out/check": BY_NAME,
}
