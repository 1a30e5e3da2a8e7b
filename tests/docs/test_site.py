"""The site is whole: every page is in its table of contents and every public name in its reference.
That the gallery's scripts run, draw and print is held where they run: ``make docs``."""

import importlib
import re
from pathlib import Path

import pytest

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
    assert {f"relprop.{name}".removesuffix(".relprop") for name in listed} == set(PUBLIC)
    for name in PUBLIC:
        assert (
            f".. automodule:: {name}\n   :members:"
            in (DOCS / "reference" / f"{name.split('.')[-1]}.rst").read_text()
        )


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_function_and_class_says_what_it_is(module):
    """So that the reference, which lists what has a docstring, leaves nothing out."""
    names = getattr(importlib.import_module(module), "__all__", [])
    assert names or module == "relprop.errors"
    for name in names:
        thing = getattr(importlib.import_module(module), name)
        if isinstance(thing, type) or callable(thing):
            assert thing.__doc__, f"{module}.{name}"


def test_the_gallery_is_what_the_site_builds():
    assert len(GALLERY) >= 15 and all(p.stem.startswith("plot_") for p in GALLERY)
