"""Forward with autograd, the backward walk, and the ledger. Knows no op and no transformer."""
