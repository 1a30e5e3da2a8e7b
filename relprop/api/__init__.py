"""The public API: one page for each thing a user may ask for. Importing it puts the shipped
methods into their table."""

import relprop.methods as methods

__all__ = ["methods"]
