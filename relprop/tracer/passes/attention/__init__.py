"""Attention in other words: in one call, in parts, key by key; means of what a mask leaves; rotary
positions; shares by which what a mask picks is weighed."""
