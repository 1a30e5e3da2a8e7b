"""Lanes: the same computation several times side by side (heads, queries, experts, samples), made
one computation with one more axis or a longer one."""
