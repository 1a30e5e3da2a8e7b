"""The spellings, one file per family."""
