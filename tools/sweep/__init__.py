"""The sweep: what relprop makes of every model of timm and Hugging Face, built from configs with
seeded random weights. Nothing is downloaded.

It knows which models there are and how to make them small. It knows nothing of how they are
explained: that is ``relprop.explain``.
"""

from tools.sweep.subject import Built, CannotBuild, Subject
from tools.sweep.subjects import build, subjects

__all__ = ["Built", "CannotBuild", "Subject", "build", "subjects"]
