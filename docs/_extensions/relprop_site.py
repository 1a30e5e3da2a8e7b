"""What the site needs and Sphinx does not have: formulas without scripts, docstrings taken
literally, relprop's figures in the gallery."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from matplotlib.figure import Figure
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.writers.html5 import HTML5Translator
from sphinx_gallery.scrapers import figure_rst

from relprop.cards.base import Card

_MARKUP = re.compile(
    r"(``.*?``|`[^`]+`|(?<![\w*])\*[^\s*][^*]*\*(?![\w*]))"
)  # ``code``, `title`, *emphasis*
_DOCTEST = re.compile(r"^\s*(>>>|\.\.\.) ")


def escape(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """|R|, f(*x) and x_ in a docstring are what they look like, not markup; tables, examples and
    ``code`` stay."""
    in_example = False
    for i, line in enumerate(lines):
        in_example = bool(_DOCTEST.match(line)) or (in_example and bool(line.strip()))
        if in_example or set(line.strip()) <= set("= "):
            continue
        parts = _MARKUP.split(line)
        lines[i] = "".join(
            part if k % 2 else re.sub(r"(?<!\\)([|*])|(?<=\w)_(?!\w)", lambda m: "\\" + m[0], part)
            for k, part in enumerate(parts)
        )


def shapes(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """A property's "(batch, tokens): ..." begins with a shape, which Napoleon has taken for its
    type and put last: back to the front."""
    types = [line for line in lines if line.startswith(":type: ")]
    if what == "property" and types:
        rest = [line for line in lines if line not in types]
        lines[:] = [f"{types[0].removeprefix(':type: ')}: {rest[0]}", *rest[1:]]


def defaults(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, signature: str, returns: str
) -> tuple[str, str] | None:
    """A field's default that is made anew is shown as three dots: ``<factory>`` is no Python."""
    return (signature.replace("<factory>", "..."), returns) if signature else None


def titles(app: Sphinx, tree: nodes.document, page: str) -> None:
    """Links that GitHub shows as ``methods.md`` have the page's title here."""
    for link in tree.findall(nodes.reference):
        name = link.astext().removesuffix(".md")
        if name != link.astext() and name in app.env.titles:
            link.children = [nodes.inline("", app.env.titles[name].astext())]


def mathml(latex: str, display: str) -> str:
    """Formulas as MathML, which browsers draw themselves: pages need no script and no network."""
    return convert(latex, display=display)


def inline_math(translator: HTML5Translator, node: nodes.math) -> None:
    """A formula in a line."""
    translator.body.append(mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def display_math(translator: HTML5Translator, node: nodes.math_block) -> None:
    """A formula on a line of its own."""
    translator.body.append(f'<div class="math">{mathml(node.astext(), "block")}</div>')
    raise nodes.SkipNode


def figures(block: Any, variables: dict[str, Any], settings: dict[str, Any]) -> str:
    """The figures that a block of a gallery script made, as files: relprop's are no part of pyplot,
    so sphinx-gallery does not see them."""
    shown = variables.setdefault("figures shown", set())
    every = {id(f): f for f in variables["example_globals"].values()}
    made = [f for k, f in every.items() if isinstance(f, (Figure, Card)) and k not in shown]
    shown.update(map(id, made))
    paths = []
    for fig, path in zip(made, variables["image_path_iterator"], strict=False):
        if isinstance(fig, Card):
            fig.to_png(path)
        else:
            fig.savefig(path, dpi=110)
        paths.append(path)
    says = "; ".join(dict.fromkeys(_alternative(f, variables["src_file"]) for f in made))
    return figure_rst(paths, settings["src_dir"], says)


def _alternative(figure: Figure | Card, script: str) -> str:
    """What a figure shows, for who does not see it: the script's heading, and what stands over the
    panels."""
    heading = Path(script).read_text(encoding="utf-8").strip().splitlines()[1].strip()
    if isinstance(figure, Card):
        return f"{figure.title} {figure.said}"
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    return heading + (f": {', '.join(dict.fromkeys(titles))}" if titles else "")


def drawn(app: Sphinx, page: str, source: list[str]) -> None:
    """A script of the gallery draws something and prints something; else there is no site."""
    shown = all(mark in source[0] for mark in ("image-sg::", "sphx-glr-script-out"))
    if page.startswith("gallery/plot_") and not shown:
        raise ExtensionError(f"{page} draws nothing, or prints nothing")


def setup(app: Sphinx) -> dict[str, bool]:
    """Hooks of this site."""
    app.add_html_math_renderer("mathml", (inline_math, None), (display_math, None))
    app.connect("autodoc-process-docstring", escape, priority=100)
    app.connect("autodoc-process-docstring", shapes, priority=900)
    app.connect("autodoc-process-signature", defaults)
    app.connect("doctree-resolved", titles)
    app.connect("source-read", drawn)
    logging.getLogger("torch.utils._pytree").setLevel(
        logging.ERROR
    )  # what imports say of each other is not an example's output
    return {"parallel_read_safe": True}
