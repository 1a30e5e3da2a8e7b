"""Synthetic speech of which it is known when each word is spoken: the speech synthesiser eSpeak NG,
asked through ctypes.

Its library and data are files of the PyPI package ``espeakng-loader``: they are unpacked into the
cache folder; the package is neither installed nor imported. eSpeak NG is GPL-3: a tool of these
measurements, never a requirement of ``relprop``.
"""

from __future__ import annotations

import ctypes
import tempfile
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from examples.wheels import WHEELS, folder, wheel

PACKAGE = "espeakng-loader"
SYNCHRONOUS, NO_EXIT = 2, 0x8000
UTF8 = 1
RATE_PARAMETER = 1
LIST_ENDED, WORD = 0, 1


class _Event(ctypes.Structure):
    """``espeak_EVENT`` of speak_lib.h."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),  # milliseconds
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", ctypes.c_char * 8),
    )


_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
)


@dataclass(frozen=True, eq=False)
class Spoken:
    """A text as sound. ``words``: where in the text a word stands (from 0), how many letters it has
    and at which second the synthesiser says it starts."""

    sound: np.ndarray
    rate: int
    words: tuple[tuple[int, int, float], ...]


@cache
def _library() -> tuple[Any, int]:
    """The library, set up, and the sampling rate that it speaks with."""
    where = folder() / f"espeakng-{WHEELS[PACKAGE].sha256[:12]}"
    found = where / "espeakng_loader" / "libespeak-ng.so"
    if not where.exists():
        with (
            zipfile.ZipFile(wheel(PACKAGE)) as files,
            tempfile.TemporaryDirectory(dir=folder()) as unfinished,
        ):
            files.extractall(unfinished)
            Path(unfinished).rename(where)
            Path(unfinished).mkdir()  # for the context to remove
    library = ctypes.CDLL(str(found))
    data = str(Path(found).with_name("espeak-ng-data")).encode()
    rate = library.espeak_Initialize(SYNCHRONOUS, 0, data, NO_EXIT)
    if rate <= 0:
        raise OSError(f"eSpeak NG does not start: {rate}")
    return library, int(rate)


def speak(text: str, voice: str = "en-us", speed: int = 150) -> Spoken:
    """A text (ASCII) spoken by a voice at a speed in words per minute."""
    library, rate = _library()
    heard: list[np.ndarray] = []
    words: list[tuple[int, int, float]] = []

    def received(samples: Any, count: int, events: Any) -> int:
        if samples and count:
            heard.append(np.ctypeslib.as_array(samples, (count,)).copy())
        at = 0
        while events[at].type != LIST_ENDED:
            event = events[at]
            if event.type == WORD:
                words.append((event.text_position - 1, event.length, event.audio_position / 1000))
            at += 1
        return 0

    kept = _CALLBACK(received)
    library.espeak_SetSynthCallback(kept)
    if library.espeak_SetVoiceByName(voice.encode()):
        raise ValueError(f"eSpeak NG has no voice {voice!r}")
    library.espeak_SetParameter(RATE_PARAMETER, speed, 0)
    said = text.encode("ascii")
    library.espeak_Synth(said, ctypes.c_size_t(len(said) + 1), 0, 0, 0, UTF8, None, None)
    library.espeak_Synchronize()
    sound = np.concatenate(heard).astype(np.float32) / 32768
    return Spoken(sound, rate, tuple(words))
