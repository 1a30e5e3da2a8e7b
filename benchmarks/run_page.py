"""``python benchmarks/run_page.py``: what the page of a run of 100 colour pictures of 224×224
weighs, what it costs a browser until it is loaded, and what its checks cost beside explaining.

The pictures are noise over gradients, which compress worse than photographs do. CPU time:
TaskDuration of CDP's Performance.getMetrics at the load event, the median of ``TRIES``.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from relprop.cards.run import run_page
from relprop.data import ImageFolder
from relprop.demo.model import digit_scene_model
from relprop.demo.scene_source import DigitScenes
from relprop.runs import ExplainWork, read_run, run

SAMPLES, SIDE, TRIES = 100, 224, 5


def pictures(folder: Path) -> None:
    random = np.random.default_rng(0)
    ramp = np.linspace(0, 160, SIDE)
    for i in range(SAMPLES):
        coarse = random.normal(0, 30, (28, 28, 3)).repeat(8, 0).repeat(8, 1)
        made = ramp[:, None, None] + coarse + random.normal(0, 12, (SIDE, SIDE, 3)) + 30
        Image.fromarray(made.clip(0, 255).astype(np.uint8)).save(folder / f"picture {i}.png")


def loaded(path: Path) -> list[float]:
    """Seconds of CPU until the load event, of each try."""
    from playwright.sync_api import sync_playwright

    found = []
    with sync_playwright() as playwright:
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        for _ in range(TRIES):
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            session = page.context.new_cdp_session(page)
            session.send("Performance.enable")
            page.goto(path.as_uri(), wait_until="load")
            metrics = {
                m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]
            }
            found.append(metrics["TaskDuration"])
            browser.close()
    return found


def main() -> None:
    import timm

    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pictures").mkdir()
        pictures(folder / "pictures")
        model = timm.models.VisionTransformer(
            embed_dim=48, depth=2, num_heads=2, mlp_ratio=1.0, num_classes=5
        ).eval()
        work = ExplainWork(model, ImageFolder(folder / "pictures"))
        run(work, folder / "run", progress=False)
        path = run_page(read_run(folder / "run"), work, "benchmarks/run_page.py").to_html(
            folder / "page.html"
        )
        seconds = loaded(path)
        print(f"page of {SAMPLES} pictures {SIDE}×{SIDE}: {path.stat().st_size / 1e6:.2f} MB")
        print(
            f"load: {statistics.median(seconds):.3f} s CPU, median of {TRIES} "
            f"({min(seconds):.3f} to {max(seconds):.3f})"
        )
        digits = ExplainWork(digit_scene_model(), DigitScenes(SAMPLES, seed=0))
        began = time.perf_counter()
        run(digits, folder / "digits", progress=False)
        explained = time.perf_counter() - began
        for checks in (False, True):
            began = time.perf_counter()
            run_page(read_run(folder / "digits"), digits, "", checks=checks).to_html(
                folder / "digits.html"
            )
            took = (time.perf_counter() - began) / SAMPLES
            print(
                f"digit scenes, {'with' if checks else 'without'} checks: {1e3 * took:.1f} ms a "
                f"sample; explaining took {1e3 * explained / SAMPLES:.1f} ms"
            )


if __name__ == "__main__":
    main()
