"""Lookups: rows of tables by ids, in whichever way they are fetched; tokens that a mask picks."""
