"""The site is whole: every page is in its table of contents and every public name in its reference.
That the gallery's scripts run, draw and print is held where they run: ``make docs``."""

import importlib
import importlib.util
import re
from pathlib import Path

import pytest
from matplotlib.figure import Figure

import relprop

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PUBLIC = (
    "relprop",
    *(
        f"relprop.{name}"
        for name in (
            "rules",
            "methods",
            "targets",
            "adapters",
            "evaluation",
            "interop",
            "testing",
            "data",
            "runs",
            "errors",
        )
    ),
)
GALLERY = sorted((ROOT / "examples/gallery").glob("*.py"))


def contents(page: Path) -> list[str]:
    """What the page's toctrees list, as paths without a suffix."""
    text = page.read_text()
    trees = re.findall(r"```\{toctree\}\n(.*?)```", text, re.DOTALL) + re.findall(
        r"\.\. toctree::\n(.*)", text, re.DOTALL
    )
    lines = [line.strip() for tree in trees for line in tree.splitlines()]
    return [re.sub(r".*<(.*)>", r"\1", line) for line in lines if line and not line.startswith(":")]


def test_every_page_is_in_the_table_of_contents_once():
    listed = contents(DOCS / "index.md")
    assert sorted(listed) == sorted(
        {
            *(p.stem for p in DOCS.glob("*.md") if p.stem != "index"),
            "gallery/index",
            "reference/index",
        }
    )


def test_the_reference_has_a_page_for_every_public_module():
    listed = contents(DOCS / "reference/index.rst")
    assert sorted(listed) == sorted(
        p.stem for p in (DOCS / "reference").glob("*.rst") if p.stem != "index"
    )
    listed = set(listed) - {"results", "plot"}  # parts of what is public, held below
    assert {f"relprop.{name}".removesuffix(".relprop") for name in listed} == set(PUBLIC)
    for name in PUBLIC:
        assert (
            f".. automodule:: {name}\n   :members:"
            in (DOCS / "reference" / f"{name.split('.')[-1]}.rst").read_text()
        )


def test_what_the_readme_shows_is_in_the_reference():
    """Every function and class of the package in a table by what it is for, what results hold on a
    page, and ``relprop.plot``."""
    pages = {p.stem: p.read_text() for p in (DOCS / "reference").glob("*.rst")}
    summed = re.findall(r"^   relprop\.(\w+)$", pages["relprop"], re.MULTILINE)
    elsewhere = {"Rule", "RuleSet", "register_rule", "RelpropError", "RelpropWarning"}
    things = {*relprop.__all__, *relprop._RESULTS} - elsewhere
    assert sorted(summed) == sorted(things)
    for name in relprop._RESULTS:
        assert f".. autoclass:: relprop.{name}\n   :members:" in pages["relprop"]
    readme = (ROOT / "README.md").read_text()
    for name in set(re.findall(r"relprop\.(\w+)\(", readme)):
        assert name in summed, name
    for name in set(re.findall(r"relprop\.(\w+)\.\w+\(", readme)) - {"cli"}:
        assert name in pages, name
    for name in ("TokenScores", "Prediction", "Block", "Ledger", "Account", "Sinks"):
        assert re.search(
            rf"^\.\. autoclass:: relprop\.[\w.]+\.{name}$", pages["results"], re.MULTILINE
        )
    assert ".. automodule:: relprop.views.plot\n   :members:" in pages["plot"]


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_function_and_class_says_what_it_is(module):
    """So that the reference, which lists what has a docstring, leaves nothing out."""
    names = getattr(importlib.import_module(module), "__all__", [])
    assert names or module == "relprop.errors"
    for name in names:
        thing = getattr(importlib.import_module(module), name)
        if isinstance(thing, type) or callable(thing):
            assert thing.__doc__, f"{module}.{name}"


PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)]*)\)")


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted(DOCS.glob("*.md"))], ids=str)
def test_every_picture_says_in_words_what_it_shows(page):
    """Several words, which are not those of its file's name."""
    for says, path in PICTURE.findall(page.read_text(encoding="utf-8")):
        words, name = (set(re.findall(r"\w+", t.lower())) for t in (says, Path(path).stem))
        assert len(words) >= 4 and len(words - name) >= 3, f"{page.name}: {path}"


@pytest.mark.parametrize("folder", [ROOT / "relprop", DOCS, ROOT / "examples"], ids=str)
def test_no_picture_is_made_without_an_alternative(folder):
    """Pictures that code writes into pages, and directives of reST."""
    for path in folder.rglob("*"):
        if path.suffix not in (".py", ".js", ".jinja", ".rst", ".txt") or "_build" in path.parts:
            continue
        text = path.read_text(encoding="utf-8")
        assert all(" alt=" in tag for tag in re.findall(r"<img\b[^>]*>", text)), path
        made = re.findall(r'make\("img", null, \{([^}]*)\}', text)
        assert text.count('make("img"') == len(made) and all("alt:" in m for m in made), path
        assert path.parent.name == "gallery" or ".. image::" not in text, path


def test_a_figure_of_the_gallery_says_what_it_shows(tmp_path):
    """The script's heading and what stands over its panels, not the name of its file."""
    pytest.importorskip("sphinx_gallery")
    spec = importlib.util.spec_from_file_location("site", DOCS / "_extensions/relprop_site.py")
    site = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(site)
    figure = Figure()
    for axes, title in zip(figure.subplots(1, 2), ("gae", "rollout"), strict=True):
        axes.set_title(title)
    paths = iter([tmp_path / "images/sphx_glr_plot_04_compare_001.png"])
    (tmp_path / "images").mkdir()
    variables = {"example_globals": {"figure": figure}, "image_path_iterator": paths}
    variables["src_file"] = str(ROOT / "examples/gallery/plot_04_compare.py")
    text = site.figures(("code", "", 1), variables, {"src_dir": str(tmp_path)})
    assert ":alt: Several methods side by side: gae, rollout\n" in text


def test_the_gallery_is_what_the_site_builds():
    assert len(GALLERY) >= 15 and all(p.stem.startswith("plot_") for p in GALLERY)
