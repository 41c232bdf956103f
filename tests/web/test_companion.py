"""The companion in a real browser, against a scripted backend."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import live_daemon
import pytest
from fake_admin import READY, FakeAdmin
from scripted_backend import MODEL, ScriptedBackend, serve, text

from swiftlm_proto import messages as m

pytest.importorskip("playwright", reason="playwright is not installed")
from playwright.async_api import async_playwright

CHROMIUM = Path("/usr/bin/chromium")
pytestmark = [
    pytest.mark.skipif(not CHROMIUM.exists(), reason="Chromium is not at /usr/bin/chromium"),
    pytest.mark.timeout(60),
]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-extensions"]

HOSTILE = (
    "<script>window.hit=1</script>",
    "<img src=x onerror='window.hit=1'>",
    "<svg onload='window.hit=1'></svg>",
    "[a](javascript:window.hit=1)",
    "<a href='javascript:window.hit=1'>b</a>",
    "<iframe srcdoc='<script>parent.hit=1</script>'></iframe>",
    "<math><mtext><table><mglyph><style><!--</style><img src onerror=window.hit=1>",
    "<details open ontoggle='window.hit=1'>x</details>",
    "<form action='javascript:window.hit=1'><button>go</button></form>",
    "![x](https://attacker.invalid/leak.png)",
)


@pytest.fixture
async def page():
    async with async_playwright() as driver:
        # The BLAS that tests preload for MLX crashes a browser.
        environ = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
        browser = await driver.chromium.launch(
            executable_path=str(CHROMIUM), args=FLAGS, env=environ
        )
        context = await browser.new_context(viewport={"width": 1440, "height": 900})
        page = await context.new_page()
        page.set_default_timeout(8000)
        yield page
        await browser.close()


@pytest.fixture
def admin():
    fake = FakeAdmin()
    fake.daemon.models = [replace(READY, model=MODEL)]
    return fake


async def ask(page, question):
    await page.get_by_label("Message").fill(question)
    await page.keyboard.press("Enter")


async def shot(page, name):
    """Pictures for the documentation, when a folder for them is named."""
    if folder := os.environ.get("COMPANION_PICTURES"):
        await page.screenshot(path=f"{folder}/{name}.png")


async def test_a_first_question_gets_its_answer_with_figures_and_is_kept(page, admin):
    code = "def squares(n):\n    yield from (i * i for i in range(n))"
    answer = f"Use a **generator**:\n\n```python\n{code}\n```"
    async with serve(ScriptedBackend(default=text(answer)), admin=admin) as server:
        await page.goto(server.url)
        await ask(page, "How do I make squares lazily?")
        await page.get_by_text("50.0 tokens/s").wait_for()
        assert await page.locator(".assistant strong").inner_text() == "generator"
        assert "4 cached" in await page.locator(".figures").inner_text()
        await page.get_by_role("button", name="Copy").wait_for()
        await shot(page, "companion-chat")
        await page.reload()
        await page.locator(".assistant strong").wait_for()


async def test_an_answer_goes_on_after_the_page_was_loaded_again(page, admin):
    held = asyncio.get_running_loop().create_future()
    script = replace(text("one ", "two ", "three"), before=lambda n: held if n == 2 else None)
    async with serve(ScriptedBackend(default=script), admin=admin) as server:
        await page.goto(server.url)
        await ask(page, "Count")
        await page.get_by_text("one two").wait_for()
        await page.reload()
        await page.get_by_text("one two").wait_for()
        held.set_result(None)
        await page.get_by_text("one two three").wait_for()
        await page.get_by_text("50.0 tokens/s").wait_for()
        assert await page.locator(".assistant").count() == 1


async def test_stop_ends_the_generation_and_keeps_what_was_said(page, admin):
    held = asyncio.get_running_loop().create_future()
    script = text("begun", "never", before=lambda number: held if number else None)
    backend = ScriptedBackend(default=script)
    async with serve(backend, admin=admin) as server:
        await page.goto(server.url)
        await ask(page, "go")
        await page.get_by_text("begun").wait_for()
        await page.get_by_role("button", name="Stop").click()
        await page.get_by_text("stopped").wait_for()
        await backend.wait_until(lambda: backend.aborted == 1)
        assert await page.locator(".assistant .text").inner_text() == "begun"


async def test_an_edited_question_makes_a_branch(page, admin):
    async with serve(admin=admin) as server:
        await page.goto(server.url)
        await ask(page, "first")
        await page.get_by_role("button", name="Edit").click()
        await page.get_by_label("Edited question").fill("second")
        await page.locator(".editing").get_by_role("button", name="Send").click()
        await page.get_by_text("2/2").wait_for()
        await page.get_by_label("Earlier version").click()
        await page.locator(".user .text", has_text="first").wait_for()


async def test_hostile_output_and_names_execute_nothing(page, admin):
    admin.daemon.models += [m.ModelStatus(model=name, error=name) for name in HOSTILE]
    requested = []
    page.on("request", lambda request: requested.append(request.url))
    backend = ScriptedBackend(default=text("\n\n".join((*HOSTILE, "the end"))))
    async with serve(backend, admin=admin) as server:
        await page.goto(server.url)
        await ask(page, HOSTILE[1])
        await page.locator(".figures").wait_for()
        for link in await page.locator(".assistant .text a").all():
            assert not (await link.get_attribute("href") or "").startswith("javascript")
        for view in ("models", "monitor", "settings"):
            await page.goto(f"{server.url}/#{view}")
            await page.locator("h1").wait_for()
        assert await page.evaluate("window.hit") is None
        assert all(url.startswith((server.url, "data:")) for url in requested)


async def test_the_shell_opens_when_the_daemon_is_away(page, admin):
    async with serve(admin=admin) as server:
        await page.goto(server.url)
        await page.evaluate("navigator.serviceWorker.ready")
        await page.wait_for_function("caches.match('/web/style.css').then(Boolean)")
    await page.reload()
    await page.get_by_text("Daemon away").wait_for()


@pytest.mark.parametrize(("width", "height"), [(390, 844), (1440, 900)])
async def test_every_view_fits_its_window(page, admin, width, height):
    await page.set_viewport_size({"width": width, "height": height})
    await page.emulate_media(color_scheme="dark" if width < 500 else "light")
    async with serve(admin=admin) as server:
        for view in ("chat", "models", "monitor", "settings"):
            await page.goto(f"{server.url}/#{view}")
            await page.get_by_text("Ready", exact=True).wait_for()
            wide = "document.documentElement.scrollWidth - innerWidth"
            assert await page.evaluate(wide) <= 0
            await shot(page, f"companion-{view}-{width}")


async def test_the_page_and_all_its_files_stay_within_their_budget(page, admin):
    sizes = []
    async with serve(admin=admin) as server:
        page.on("response", lambda response: sizes.append(response))
        await page.goto(server.url)
        await page.get_by_text("Ready", exact=True).wait_for()
        total = sum([(await one.request.sizes())["responseBodySize"] for one in sizes])
        assert 20_000 < total < 250_000


async def test_the_real_daemon_plans_a_load_and_explains_its_settings(page):
    async with live_daemon.home("hollow") as home, live_daemon.daemon(home) as daemon:
        await page.goto(f"{daemon.url}/#models")
        await page.get_by_role("button", name="Plan").click()
        await page.get_by_role("row", name="weights").wait_for()
        await page.goto(f"{daemon.url}/#settings")
        await page.get_by_text("Address that HTTP listens on.").wait_for()
        await page.get_by_text("from default").first.wait_for()
