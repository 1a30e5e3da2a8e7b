"""One function, written in many ways, must give one map.

``model.py`` is a small transformer made of parts, ``bases.py`` are the functions it computes, and
``families/`` hold the spellings. To add one, write it there under ``spell`` or ``spells``, with the
part it replaces and the bases it computes. ``python -m tests.spellings.table`` prints what relprop
makes of each.
"""
