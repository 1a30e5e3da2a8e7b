"""What a type checker knows of methods' options: every name that a method of relprop's takes, so
that ``methd="gae"`` is an error before anything runs. Which method takes which is checked at the
call; options of a method of your own are given as ``**{"mine": 1}``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict


class SeedlessOptions(TypedDict, total=False):
    """Those of what has a ``seed=`` of its own."""

    average: object
    baseline: object
    baselines: object
    conv_gamma: float | None
    discard_ratio: float
    gamma: float
    gradient: object
    groups: object
    head_fusion: str
    layers: object
    n_samples: int
    n_steps: int
    noise: float
    normalize_rows: bool
    part: str | None
    positions: bool
    stdev: float | Mapping[str, float]
    stdevs: float | Mapping[str, float]
    stride: object
    target_layers: object
    threshold: float
    use_gradient: bool
    variant: str
    weights: str
    window: object


class MethodOptions(SeedlessOptions, total=False):
    """Options by name; ``relprop.methods.available()`` says which method takes which."""

    seed: int


class ProcessorOptions(TypedDict, total=False):
    """What a call hands on to the processor beside the inputs."""

    add_special_tokens: bool
    do_normalize: bool
    do_rescale: bool
    do_resize: bool
    max_length: int
    padding: bool | str
    sampling_rate: int
    size: object
    truncation: bool | str


class CallOptions(MethodOptions, ProcessorOptions, total=False):
    """Those of ``explain``."""


class GenerationOptions(SeedlessOptions, ProcessorOptions, total=False):
    """Those of ``explain_generation``."""
