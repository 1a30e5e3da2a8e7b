"""Functions of one tensor, however they are written out: activations, softmax, norms with their
scale and bias, and pools."""
