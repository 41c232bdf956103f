"""A page of Debian's Chromium, and a scripted daemon for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from companion import Machine

from swiftlmd.http.sessions import COOKIE, Sessions

playwright = pytest.importorskip("playwright.async_api", reason="playwright is not installed")

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-extensions"]


def pytest_collection_modifyitems(items):
    missing = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"Chromium is not at {CHROMIUM}")
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(missing)
            item.add_marker(pytest.mark.timeout(150))


@pytest.fixture
def sessions(monkeypatch):
    """Those of every scripted daemon of the test."""
    shared = Sessions()
    monkeypatch.setattr("scripted_backend.Sessions", lambda: shared)
    return shared


@pytest.fixture
async def page(sessions):
    """The owner's browser, as `swiftlmctl open` leaves it."""
    async with playwright.async_playwright() as driver:
        # The BLAS that tests preload for MLX crashes a browser.
        environ = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
        browser = await driver.chromium.launch(
            executable_path=str(CHROMIUM), args=FLAGS, env=environ
        )
        context = await browser.new_context(viewport={"width": 1440, "height": 900})
        value = sessions.begin(sessions.offer())
        await context.add_cookies([{"name": COOKIE, "value": value, "url": "http://127.0.0.1"}])
        page = await context.new_page()
        page.set_default_timeout(30_000)
        yield page
        await browser.close()


@pytest.fixture
def admin():
    return Machine()
