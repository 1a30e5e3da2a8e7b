"""The page: one template, one style sheet and one script, inline, allowed by their hashes and by
nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.resources import files
from typing import Any

from relprop.errors import OptionError
from relprop.views.colours import ramps

SCRIPTS = ("text.js", "colour.js", "numbers.js", "field.js", "heads.js", "tables.js", "main.js")


def rendered(data: dict[str, Any], chunks: list[str]) -> str:
    """The file's text. Raises ``OptionError`` where jinja2 is not installed."""
    try:
        from jinja2 import Environment
        from markupsafe import Markup
    except ImportError:
        raise OptionError('reports need jinja2: pip install "relprop[report]"') from None
    script = "\n".join(["", '"use strict";', "(() => {", *map(_asset, SCRIPTS), "})();", ""])
    style = f"\n{_asset('report.css')}\n"
    environment = Environment(autoescape=True, keep_trailing_newline=True)
    return environment.from_string(_asset("report.html.jinja")).render(
        title=data["title"],
        script_hash=_hash(script),
        style_hash=_hash(style),
        style=Markup(style),
        script=Markup(script),
        data=Markup(_json(data | {"colours": ramps()})),
        chunks=[Markup(c) for c in chunks],
    )


def _json(data: Any) -> str:
    """JSON that no HTML parser sees a tag, a comment or an entity in."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return files("relprop.reporting").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
