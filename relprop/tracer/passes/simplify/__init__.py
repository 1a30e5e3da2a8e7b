"""What cancels, cancelled, until nothing does: moves that undo each other, numbers that change
nothing, tensors that are cut and joined again. It runs after every pass that may leave such things
behind."""
