"""A browser for what is shown in one; tests of it are skipped, aloud, where there is none."""

import os
import shutil

import pytest

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def missing(why):
    if os.environ.get("RELPROP_BROWSER") == "required":
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture(scope="session")
def browser():
    path = next(
        (
            found
            for name in ("chromium", "chromium-browser", "google-chrome")
            if (found := shutil.which(name))
        ),
        None,
    )
    if path is None:
        missing(
            "no chromium on the PATH: apt-get install chromium; the report is not looked "
            "at in a browser"
        )
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing(
            "playwright is not installed: pip install playwright; the report is not "
            "looked at in a browser"
        )
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield running
        running.close()
