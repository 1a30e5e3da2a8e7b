"""The calls of the public door, and the one place where adapter, plan, interpreter and method
meet."""

import relprop.methods  # noqa: F401  fills the table of methods, whichever call is imported first
