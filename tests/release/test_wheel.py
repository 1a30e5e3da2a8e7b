"""The built wheel and source distribution, installed where none of the extras can be imported: a
first map, the demo, the doctor, what each command that needs more says instead of a traceback; and
where they can: picture, report and comparison."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

import relprop
from relprop.commands.doctor import BRINGS

ROOT = Path(__file__).parents[2]
EXTRAS = (
    *("timm", "sklearn", "matplotlib", "captum", "scipy", "pandas", "datasets", "h5py", "pyarrow"),
    *("accelerate", "jinja2", "tqdm", "transformers", "torchvision"),
)
WITHOUT = f"""
import sys
class Without:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        hidden = name.split(".")[0] in {EXTRAS!r}
        return None if hidden else self.finder.find_spec(name, path, target)
    def find_distributions(self, context):
        hidden = context.name and context.name.lower() in {(*EXTRAS, "scikit-learn")!r}
        find = getattr(self.finder, "find_distributions", lambda context: [])
        return [] if hidden else find(context)
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
        (["demo"], 0, "picture: demo.png"),
        (["evaluate", "--data", "demo:digits", "--samples", "2"], None, ""),
    ],
)
def test_commands_in_a_bare_environment_never_end_in_a_traceback(
    arguments, code, said, built, tmp_path
):
    done = bare(built[1], tmp_path, "-m", "relprop", *arguments)
    assert code is None or done.returncode == code, done.stderr
    assert said in done.stdout + done.stderr and "Traceback" not in done.stderr, done.stderr


@pytest.mark.slow
def test_from_install_to_picture_report_and_comparison(built, tmp_path):
    """A new user's path: the demo and its map need the core alone; the rest two extras."""
    done = bare(built[1], tmp_path, "-W", "ignore", "-m", "relprop", "demo")
    assert done.returncode == 0, done.stderr
    on, beside = map(int, re.findall(r"(\d+)% of the score lies on the \d, (\d+)%", done.stdout)[0])
    assert on > 70 > 25 > beside, "the map does not lie on the digit it is about"
    assert np.asarray(PIL.Image.open(tmp_path / "demo.png")).std() > 20
    said = bare(built[1], tmp_path, "-m", "relprop", "doctor").stdout
    for extra, what in BRINGS.items():
        assert extra == "minilm" or f"missing      {what}: " in said, extra
    site = tmp_path / "site"
    shutil.copytree(built[1], site)
    hidden = [name for name in EXTRAS if name not in ("matplotlib", "jinja2")]
    without = WITHOUT.replace(repr(EXTRAS), repr(tuple(hidden)))
    (site / "sitecustomize.py").write_text(without)
    scene = "from relprop.demo.scenes import make_scenes; from PIL import Image; "
    scene += "x = make_scenes(1, seed=8).images[0, 0]; "
    scene += "Image.fromarray((x * 255).round().byte().numpy()).save('scene.png')"
    assert bare(site, tmp_path, "-c", scene).returncode == 0
    shared = ["-W", "ignore", "-m", "relprop"]
    model = ["scene.png", "--model", "demo:digits"]
    outs = ["--out", "map.png", "--out", "map.html"]
    for command in (["explain", *model, *outs], ["compare", *model, "--out", "all.html"]):
        done = bare(site, tmp_path, *shared, *command)
        assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert np.asarray(PIL.Image.open(tmp_path / "map.png")).std() > 20
    for page in ("map.html", "all.html"):
        assert "Content-Security-Policy" in (tmp_path / page).read_text(encoding="utf-8")
    assert "rollout" in (tmp_path / "all.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_source_distribution_builds_the_same_wheel(built, tmp_path):
    code = "from setuptools.build_meta import build_sdist; import sys; build_sdist(sys.argv[1])"
    source = tmp_path / "source"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".git", "build", "*.egg-info"))
    made = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=source, capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    (archive,) = tmp_path.glob("relprop-*.tar.gz")
    with tarfile.open(archive) as files:
        held = {name.partition("/")[2] for name in files.getnames()}
    assert {str(p.relative_to(source)) for p in source.glob("tests/**/*.py")} <= held
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "wheel", str(archive)]
    done = subprocess.run(
        [*pip, "--no-deps", "--no-build-isolation", "-w", str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("relprop-*.whl")
    with zipfile.ZipFile(wheel) as again, zipfile.ZipFile(built[0]) as first:
        contents = {n: again.read(n) for n in again.namelist() if ".dist-info" not in n}
        assert contents == {n: first.read(n) for n in first.namelist() if ".dist-info" not in n}
