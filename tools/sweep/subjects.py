"""All subjects of a source, read from the library, and how each is built."""

from __future__ import annotations

from fnmatch import fnmatch

from relprop.errors import OptionError
from tools.sweep.huggingface_models import build_huggingface, huggingface_subjects
from tools.sweep.subject import Built, Subject
from tools.sweep.timm_models import build_timm, timm_subjects

SOURCES = {"timm": (timm_subjects, build_timm), "hf": (huggingface_subjects, build_huggingface)}


def subjects(source: str, pattern: str = "") -> tuple[Subject, ...]:
    """The subjects of ``"timm"`` or ``"hf"`` whose name holds ``pattern`` (or fits it, where it has
    a ``*``), in order of their names."""
    if source not in SOURCES:
        raise OptionError(f"source {source!r}: there are {', '.join(SOURCES)}")
    found = SOURCES[source][0]()
    return tuple(
        s
        for s in found
        if not pattern or (fnmatch(s.name, pattern) if "*" in pattern else pattern in s.name)
    )


def build(subject: Subject, batch: int = 3) -> Built:
    """The subject's model with calls for it. Raises ``CannotBuild``."""
    return SOURCES[subject.source][1](subject, batch)
