"""What makes and measures relprop and is no part of the package: the sweep over all models, and the
page of the papers' tables."""
