"""The calls of the public door, and the one place where adapter, plan, interpreter and method
meet."""
