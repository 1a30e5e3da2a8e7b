"""Whole models as people write them from memory, each beside a twin: the same function with the
same weights in a library's or the plainest spelling. A map must not depend on which of the two it
is."""
