"""What relprop gets wrong today of these models. The list only gets shorter: a fault that is gone
fails its test, which says to remove the line."""

#: The reason; the models; the checks that fail; and, where they do not fail by an assertion of
#: their own, what the error says.
KNOWN = [
    ("a learned class token that is several tokens wide: its axis is taken for features",
     "vit.jumbo", "identity"),
    ("one minus a gate is read from before the gate's sigmoid, past the value that is set",
     "graph", "settings"),
    ("how many tokens stay depends on the values, and the graph has as many as at first",
     "vit.sampled", "settings", "is invalid for input of size"),
]  # fmt: skip

FAULTS = {
    (name, check): (reason, *words)
    for reason, names, checks, *words in KNOWN
    for name in names.split()
    for check in checks.split()
}
