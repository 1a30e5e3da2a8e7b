"""Imported by the server that test processes are forked from: PyTorch's tracer imports much when it is first used."""

import torch

import relprop
from tests.runs.sources import patches

torch.set_num_threads(1)
relprop.explain(patches(), torch.zeros(1, 1, 32, 32))
