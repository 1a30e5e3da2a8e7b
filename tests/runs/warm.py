"""Imported by the server that test processes are forked from: PyTorch's tracer imports much when it
is first used. No gradients: autograd's threads do not fork."""

import torch

import relprop
from tests.runs.sources import patches

torch.set_num_threads(1)
relprop.trace(patches(), torch.zeros(1, 1, 32, 32))
