"""The calls of the public door, and the one place where adapter, plan, interpreter and method
meet."""

import relprop.methods  # noqa: F401  -- every method is known wherever the door is opened
