"""Writes: what a model writes in place, through views or by index becomes a new tensor, in which
what was there and what is written stand beside each other or are added."""
