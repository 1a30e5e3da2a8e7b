"""The environment of the oldest versions: each bound as a version, made once, made anew when a
bound changes."""

import tomllib

from packaging.requirements import Requirement

from tools import lower_bounds


def test_the_environment_is_made_once_for_the_same_versions(tmp_path, monkeypatch):
    asked = []

    def uv(*arguments):
        asked.append(arguments)
        (tmp_path / "low").mkdir(exist_ok=True)
        return "torch==2.11.0\n# a comment\nnumpy==1.26.0\n"

    monkeypatch.setattr(lower_bounds, "_uv", uv)
    pins = lower_bounds.lowest()
    assert pins == ["torch==2.11.0", "numpy==1.26.0"]
    python = lower_bounds.made(tmp_path / "low", pins)
    assert python == tmp_path / "low" / "bin" / "python"
    assert [a[:2] for a in asked[1:]] == [("venv", "-q"), ("pip", "install"), ("pip", "install")]
    assert lower_bounds.made(tmp_path / "low", pins) == python and len(asked) == 4
    lower_bounds.made(tmp_path / "low", ["torch==2.12.0"])
    assert len(asked) == 7
    kept = (tmp_path / "low" / "lower_bounds.txt").read_text()
    assert kept.splitlines()[0] == "torch==2.12.0"


def test_every_requirement_names_its_oldest_version():
    project = tomllib.loads((lower_bounds.ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    for line in [*project["dependencies"], *(r for extra in extras for r in extra)]:
        wanted = Requirement(line)
        assert wanted.name == "relprop" or any(s.operator == ">=" for s in wanted.specifier), line
