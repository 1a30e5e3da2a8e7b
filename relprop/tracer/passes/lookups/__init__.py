"""Lookups and positions: rows of tables by ids, in whichever way they are fetched; tokens that a
mask picks; positions that are put in another order."""
