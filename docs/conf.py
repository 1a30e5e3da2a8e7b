"""The documentation site: ``make docs`` builds it into docs/_build/html. The pages are Markdown
that GitHub shows as well."""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS.parent), str(DOCS / "_extensions")]

import relprop  # noqa: E402

project = "relprop"
author = "the relprop contributors"
copyright = "the relprop contributors, MIT licence"
version = release = relprop.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
    "relprop_site",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = [
    "_build",
    "_extensions",
    "gallery/**.ipynb",
    "gallery/**.py",
    "**/sg_execution_times.rst",
    "sg_execution_times.rst",
]
nitpicky = False
highlight_language = "text"

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

autosummary_generate = False  # tables of what stands on the same page
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
autodoc_use_type_comments = False
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 100
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

sphinx_gallery_conf = {
    "examples_dirs": str(DOCS.parent / "examples" / "gallery"),
    "gallery_dirs": "gallery",
    "filename_pattern": r"plot_",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_signature": False,
    "min_reported_time": 0,
    "show_memory": False,
    "remove_config_comments": True,
    "matplotlib_animations": False,
    "backreferences_dir": None,
    "write_computation_times": False,
    "image_scrapers": ("relprop_site.figures",),
    "reset_modules": (),
}

for _page in (DOCS / "gallery").glob("plot_*.rst"):  # of a script that has gone since
    if not (DOCS.parent / "examples" / "gallery" / f"{_page.stem}.py").exists():
        _page.unlink()

html_theme = "furo"
html_title = "relprop"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}

html_math_renderer = "mathml"
