"""The built wheel, installed where none of the extras can be imported: a first map, the doctor, and
what each command that needs more says instead of a traceback."""

import os
import subprocess
import sys
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

import relprop

ROOT = Path(__file__).parents[2]
EXTRAS = (
    *("timm", "sklearn", "matplotlib", "captum", "scipy", "pandas", "datasets", "h5py", "pyarrow"),
    *("accelerate", "jinja2", "tqdm", "transformers", "torchvision", "PIL"),
)
WITHOUT = f"""
import sys
class Without:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        hidden = name.split(".")[0] in {EXTRAS!r}
        return None if hidden else self.finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.finder, name)
sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
"""
FIRST_MAP = """
import torch, relprop
layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
class Reader(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(20, 16), torch.nn.Linear(16, 3)
        self.encode = layer
    def forward(self, ids):
        return self.head(self.encode(self.embed(ids)).mean(1))
e = relprop.explain(Reader(), torch.randint(0, 20, (2, 7)), 1)
e.save("first.safetensors")
print(relprop.__file__, relprop.load("first.safetensors").scores.shape, e.ledger.balanced())
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel, built from the repository's files, and the folder it is installed into."""
    folder = tmp_path_factory.mktemp("release")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    build = ["wheel", str(ROOT), "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*pip, *build], check=True, cwd=folder, capture_output=True)
    (wheel,) = folder.glob("relprop-*.whl")
    site = folder / "site"
    install = ["install", str(wheel), "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run([*pip, *install], check=True, cwd=folder, capture_output=True)
    (site / "sitecustomize.py").write_text(WITHOUT)
    return wheel, site


def bare(site, folder, *arguments):
    """A Python that sees the wheel, the core's dependencies, and none of the extras."""
    environment = {**os.environ, "PYTHONPATH": str(site)}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=folder, env=environment
    )


@pytest.mark.slow
def test_the_wheel_has_its_data_and_says_what_it_is(built):
    with zipfile.ZipFile(built[0]) as archive:
        names = set(archive.namelist())
        (about,) = (n for n in names if n.endswith(".dist-info/METADATA"))
        told = message_from_string(archive.read(about).decode())
    for path in (ROOT / "relprop").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            assert path.relative_to(ROOT).as_posix() in names, path
    assert not {n.split("/")[0] for n in names} & {"tests", "tools", "examples", "benchmarks"}
    assert told["Version"] == relprop.__version__ and told["License-Expression"] == "MIT"


@pytest.mark.slow
def test_a_first_map_in_a_bare_environment(built, tmp_path):
    done = bare(built[1], tmp_path, "-W", "ignore", "-c", FIRST_MAP)
    assert done.returncode == 0, done.stderr
    assert str(built[1]) in done.stdout and "torch.Size([2, 7]) True" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--version"], 0, relprop.__version__),
        (["doctor"], None, "timm"),
        (["methods"], 0, "rollout"),
        (["demo"], 1, 'timm, sklearn, matplotlib: pip install "relprop[demo]"'),
        (["evaluate", "--data", "demo:digits", "--samples", "2"], None, ""),
    ],
)
def test_commands_in_a_bare_environment_never_end_in_a_traceback(
    arguments, code, said, built, tmp_path
):
    done = bare(built[1], tmp_path, "-m", "relprop", *arguments)
    assert code is None or done.returncode == code, done.stderr
    assert said in done.stdout + done.stderr and "Traceback" not in done.stderr, done.stderr
