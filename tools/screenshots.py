"""Pictures of the site, a report and cards as a reader sees them: wide and on a phone, light and
dark.

    make screenshots
    make docs && python -m tools.screenshots --docs    # those that the documentation shows

Also says which page can be scrolled sideways, which none should.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from PIL import Image

import relprop
from relprop.demo.lookup_model import lookup_model, lookup_tokenizer
from relprop.demo.model import digit_scene_model
from relprop.demo.scenes import make_scenes

WIDTHS, SCHEMES, HEIGHT, TALL = (1280, 390), ("light", "dark"), 900, 1960
SITE = Path(__file__).parents[1] / "docs/_build/html"
PICTURES = Path(__file__).parents[1] / "docs/pictures"
PAGES = {
    "site": "index.html",
    "gallery": "gallery/index.html",
    "methods": "methods.html",
    "sound": "gallery/plot_14_sound.html",
    "table": "gallery/plot_16_table.html",
}


def report(folder: Path) -> Path:
    """A report of one scene for both of its digits and by a second method."""
    model, scenes = digit_scene_model(), make_scenes(1, seed=8)
    keep = ("blocks", "matrix")
    found = relprop.explain_many(model, scenes.images, scenes.digits[0].tolist(), keep=keep)
    found.append(relprop.explain(model, scenes.images, found[0].target[0], method="rollout"))
    return relprop.report(found, folder / "report.html", model=model, pictures=scenes.images)


def cards(folder: Path) -> dict[str, Path]:
    """A card of each kind, and the page of a run: what ``tools/looks.json`` asks about."""
    model, scenes = digit_scene_model(), make_scenes(16, seed=8)
    model.config = SimpleNamespace(problem_type="multi_label_classification")  # type: ignore[assignment]
    text = "Boris paints rusty bottles. It rained all day. Anna likes amber kites. Anna likes what?"
    reader, tokenizer = lookup_model(), lookup_tokenizer()
    chat = [{"role": "user", "content": text}]
    prompt = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    (folder / "scenes").mkdir()
    for k, (image, digits) in enumerate(zip(scenes.images, scenes.digits.tolist(), strict=True)):
        pixels = (255 * image[0]).round().byte().numpy()
        name = f"{k:02} a {digits[0]} and a {digits[1]}.png"
        Image.fromarray(pixels).save(folder / "scenes" / name)
    command = ["explain", "--data", "scenes", "--model", "demo:digits", "--out", "run"]
    subprocess.run([sys.executable, "-m", "relprop", *command], cwd=folder, check=True)
    made = {
        "picture": relprop.card(model, scenes.images[:1], 2),
        "answer": relprop.card(reader, prompt, processor=tokenizer, max_new_tokens=6),
        "heads": relprop.head_view(reader, f"{prompt}Anna likes", processor=tokenizer),
    }
    pages = {name: card.to_html(folder / f"{name}.html") for name, card in made.items()}
    return pages | {"run": folder / "run/index.html"}


def taken(browser: Any, pages: dict[str, Path], out: Path) -> Iterator[tuple[str, int]]:
    """Take each page's pictures; each one's name, and by how many pixels it can be scrolled
    sideways."""
    for width in WIDTHS:
        for scheme in SCHEMES:
            context = browser.new_context(
                viewport={"width": width, "height": HEIGHT}, color_scheme=scheme
            )
            page = context.new_page()
            for name, path in pages.items():
                page.goto(path.resolve().as_uri())
                page.wait_for_load_state("load")
                page.wait_for_timeout(300)
                if page.locator("[data-said='2']").count():
                    page.locator("[data-said='2']").click()
                whole = path.parent.name != "html"  # not the site's long pages
                page.screenshot(path=out / f"{name}-{width}-{scheme}.png", full_page=whole)
                root = "document.documentElement"
                beyond = page.evaluate(f"{root}.scrollWidth - {root}.clientWidth")
                yield f"{name}-{width}-{scheme}", int(beyond)
            context.close()


def for_docs(browser: Any, report: Path, out: Path) -> None:
    """The report for its first target, light, and for its second one, dark; the site's first
    page."""
    for target, scheme in enumerate(SCHEMES):
        page = browser.new_page(viewport={"width": 1100, "height": TALL}, color_scheme=scheme)
        page.goto(report.resolve().as_uri())
        page.locator("#target").select_option(index=target)
        page.wait_for_timeout(300)
        page.screenshot(path=out / f"report-{scheme}.png")
        page.close()


def main() -> None:
    """Take all pictures; exit code 1 if a page can be scrolled sideways."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/screenshots"))
    parser.add_argument("--site", type=Path, default=SITE, help="what make docs built")
    parser.add_argument("--docs", action="store_true", help="write docs/pictures alone")
    given = parser.parse_args()
    from playwright.sync_api import sync_playwright

    given.out.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        if given.docs:
            for_docs(browser, report(Path(folder)), PICTURES)
            browser.close()
            return
        pages = {name: given.site / page for name, page in PAGES.items()}
        there = {name: path for name, path in pages.items() if path.exists()}
        there |= {"report": report(Path(folder))} | cards(Path(folder))
        found = dict(taken(browser, there, given.out))
        browser.close()
    print(f"{len(found)} pictures in {given.out}")
    beyond = [f"{name} can be scrolled sideways by {n} pixels" for name, n in found.items() if n]
    if beyond:
        raise SystemExit("\n".join(beyond))


if __name__ == "__main__":
    main()
