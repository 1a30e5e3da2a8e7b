"""Trials: parts of a graph as functions that are run on numbers of our own, in double precision.
What a part is (a norm, a softmax, an attention) is asked of what comes out, not of how it is
written."""
