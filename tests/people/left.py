"""What model and twin do not say alike yet, by pair and method, each with the reason: held to be
wrong, so that what is mended must be taken out."""

LEFT: dict[str, dict[str, str]] = {}
