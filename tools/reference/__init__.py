"""Reference scores: what relprop says of some thousand models, kept as numbers and sentences, and
compared after every step that should change none of them.

``make`` writes one file a family into ``tests/reference``; ``compare`` says what is otherwise now.
Weights and inputs are drawn by numpy's ``Generator``, whose numbers are the same on every
processor; scores are kept, never rows, in which the identity hides them.
"""
