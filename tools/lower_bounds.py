"""The fast suite with the oldest versions that pyproject.toml names, so that its bounds are real.

    python -m tools.lower_bounds                        # an environment, and the whole fast suite
    python -m tools.lower_bounds --list                 # the versions alone
    python -m tools.lower_bounds tests/rules tests/e2e  # a part of the suite

Every requirement of relprop and of its extra ``test`` takes the lowest release that its bound
allows; what these need in turn is as new as they let it be. If two of them cannot be installed
together, the resolver says which, and one of the bounds is too low. An environment that has these
versions is used again. The exit code is pytest's.

Old releases warn of new releases of what they need. That is no fault of relprop, so that here only
its own warnings are errors. Needs uv: ``pip install uv``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
#: Reads the oldest versions and installs them: built packages only, for old sources build nowhere.
BUILT = ("--only-binary", ":all:")
#: relprop's own warnings are errors, as in pyproject.toml.
FILTERS = "error::relprop.errors.RelpropWarning\nignore:all scores of"


def lowest() -> list[str]:
    """``name==version`` of every direct requirement, each by itself the lowest."""
    command = ["pip", "compile", "-q", "--no-deps", "--no-header", "--no-annotate", *BUILT]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    where = ["--resolution", "lowest", "--python-version", version]
    said = _uv(*command, *where, "--extra", "test", str(ROOT / "pyproject.toml"))
    return [line for line in said.splitlines() if "==" in line]


def made(folder: Path, pins: list[str]) -> Path:
    """The Python of an environment with these versions."""
    python, kept = folder / "bin" / "python", folder / "lower_bounds.txt"
    wanted = "\n".join([*pins, "torchvision", "setuptools"])  # the suite has models of torchvision
    if not kept.exists() or kept.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        _uv("venv", "-q", "--python", sys.executable, str(folder))
        asked = folder / "asked.txt"
        asked.write_text(wanted)
        install = ["pip", "install", "-q", "--python", str(python), "--compile-bytecode"]
        _uv(*install, *BUILT, "-r", str(asked))
        _uv("pip", "install", "-q", "--python", str(python), "--no-deps", "-e", str(ROOT))
        asked.rename(kept)
    return python


def _uv(*arguments: str) -> str:
    """What uv prints. Ends the command with what it says where it refuses."""
    uv = shutil.which("uv") or sys.exit("lower_bounds needs uv: pip install uv")
    done = subprocess.run([uv, *arguments], capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        sys.exit(f"uv {' '.join(arguments[:2])}: {done.stderr.strip()}")
    return done.stdout


def main() -> int:
    """List the versions, install them, and run the suite."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tests", nargs="*", default=["tests"])
    parser.add_argument("--list", action="store_true", help="print the versions, and no more")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "lower_bounds")
    parser.add_argument("--processes", default="2", help="of pytest-xdist")
    given = parser.parse_args()
    pins = lowest()
    print("\n".join(pins), flush=True)
    if given.list:
        return 0
    python = made(given.out, pins)
    suite = ["-m", "pytest", "-m", "not slow", "-n", given.processes, "--dist", "loadfile"]
    warnings = ["-o", f"filterwarnings={FILTERS}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run([python, *suite, *warnings, *given.tests], cwd=ROOT, env=environment)
    return ran.returncode


if __name__ == "__main__":
    sys.exit(main())
