"""A page in headless Chromium; tests that open one are skipped where there is none."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Page, sync_playwright

CHROMIUM = shutil.which("chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")


@contextmanager
def browser_page(width: int = 1280, height: int = 720) -> Iterator[Page]:
    """Open an empty page, whose browser is closed when the block ends."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser.new_page(viewport={"width": width, "height": height})
        browser.close()
