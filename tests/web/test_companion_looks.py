"""How the companion looks and what it weighs: every view in both sizes and both schemes."""

from __future__ import annotations

import hashlib
import statistics
from pathlib import Path

import pytest
from companion import ask, shot
from fake_store import FakeStore
from scripted_backend import ScriptedBackend, serve, text

from swiftlmd.config.http import HttpOptions

VIEWS = ("welcome", "chat", "picker", "models", "monitor", "settings", "keys", "network")
USUAL = {"390x844": (390, 844), "1440x900": (1440, 900)}
RARE = {"360x800": (360, 800), "820x1180": (820, 1180)}
SIZES = USUAL | RARE
SLOW = pytest.mark.slow  # for the pictures
AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text()
BUDGET_BYTES = 90_000
FIRST_PAINT_S = 1.0
PLACES = {"welcome": "chat/new", "picker": "chat"}
# Samples as an hour of work leaves them; the next status draws them.
AN_HOUR = """() => {
    const now = Date.now() / 1000;
    const wave = (i, by) => 0.5 + 0.5 * Math.sin(i / by) * Math.cos(i / (3 * by));
    sessionStorage.setItem("samples", JSON.stringify(Array.from({ length: 150 }, (_, i) => ({
        at: now - 300 + 2 * i, speed: 20 + 55 * wave(i, 9), running: Math.round(3 * wave(i, 14)),
        waiting: Math.round(2 * wave(i, 5)), hit_rate: 0.4 + 0.5 * i / 150,
        used: 2e9 + 1e9 * wave(i, 30),
        streams: true, ssd: 3 * wave(i, 7), ssd_hit_rate: 0.6 + 0.3 * i / 150,
        ssd_bytes: 4e9, ssd_hits: 90, ssd_misses: 10 }))));
}"""
ANSWER = """Use a **generator**; it makes each square when somebody asks for it:

```python
def squares(n: int):
    # nothing is computed yet
    for i in range(n):
        yield i ** 2  # "lazy"
```

| way | memory |
|---|---|
| list | all of it |
| generator | one number |

The sum of the first $n$ squares is $\\frac{n(n+1)(2n+1)}{6}$.
"""


async def show(page, server, view):
    await page.goto(f"{server.url}/#{PLACES.get(view, view)}")
    await page.get_by_text("Ready", exact=True).wait_for()
    if view == "welcome":
        await page.get_by_text("What is on your mind?").wait_for()
    if view == "picker":
        await page.get_by_role("button", name="Model: ").click()
        await page.get_by_role("dialog", name="Model").wait_for()
    if view == "chat":
        await ask(page, "How do I make squares lazily?")
        await page.get_by_text("50.0 tokens/s").wait_for()
        await page.locator("math").last.wait_for()
        await page.locator(".hljs-keyword").first.wait_for()
    if view == "models":
        await page.get_by_role("button", name="Plan").click()
        await page.get_by_role("row", name="needed").wait_for()
        await page.locator(".offer").first.wait_for()
    if view == "monitor":
        await page.evaluate(AN_HOUR)
        await page.get_by_label("Tokens per second: 61.5, at most 7").wait_for()
        await page.get_by_label("Memory: weights").wait_for()
    if view == "network":
        await page.goto(f"{server.url}/#settings")
        await page.get_by_role("button", name="Network").click()
        await page.get_by_role("button", name="Show a code").click()
        await page.get_by_label("QR code to pair a device").wait_for()
    if view == "keys":
        await page.goto(f"{server.url}/#settings")
        await page.get_by_role("button", name="Keys").click()
        await page.get_by_label("Name of the new key").fill("laptop")
        await page.get_by_role("button", name="Add a key").click()
        await page.get_by_text("This key is shown once.").wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [*USUAL, *(pytest.param(s, marks=SLOW) for s in RARE)])
async def test_every_view_fits_its_window_and_bars_nobody(page, admin, size, scheme):
    width, height = SIZES[size]
    await page.set_viewport_size({"width": width, "height": height})
    # A panel on its way in has other colours, and no picture is of half a panel.
    await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    backend = ScriptedBackend(default=text(ANSWER))
    admin.let_the_network_in("this browser", "my phone")
    options = HttpOptions(api_key_hashes=(hashlib.sha256(b"k").hexdigest(),))
    await page.add_init_script("localStorage.setItem('key', 'k')")
    async with serve(backend, options, admin, FakeStore()) as server:
        await page.goto(server.url)
        await page.evaluate(AXE)
        for view in VIEWS:
            await show(page, server, view)
            wide = "document.documentElement.scrollWidth - innerWidth"
            assert await page.evaluate(wide) <= 0
            assert await barriers(page) == []
            await shot(page, f"companion-{view}-{size}-{scheme}")
            await page.keyboard.press("Escape")


async def barriers(page) -> list[str]:
    """What axe calls serious or worse: rule, place, and its own words."""
    found = await page.evaluate("axe.run({ resultTypes: ['violations'] })")
    return [
        f"{rule['id']}: {node['target']} {node['failureSummary']}"
        for rule in found["violations"]
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]


async def test_the_page_and_all_its_files_stay_within_their_budget(page, admin):
    sizes = []
    async with serve(admin=admin) as server:
        page.on("response", lambda response: sizes.append(response))
        await page.goto(server.url)
        await page.get_by_text("Ready", exact=True).wait_for()
        total = sum([(await one.request.sizes())["responseBodySize"] for one in sizes])
        print(f"{len(sizes)} answers, {total} bytes")
        assert 20_000 < total < BUDGET_BYTES


@pytest.mark.slow
async def test_something_is_painted_within_a_second(page, admin):
    paints = []
    async with serve(admin=admin) as server:
        for _ in range(9):
            await page.goto("about:blank")
            await page.goto(server.url)
            await page.get_by_text("Ready", exact=True).wait_for()
            paints.append(
                await page.evaluate(
                    "performance.getEntriesByName('first-contentful-paint')[0].startTime / 1000"
                )
            )
    print(f"first paint {statistics.median(paints):.3f} s, {min(paints):.3f} to {max(paints):.3f}")
    assert statistics.median(paints) < FIRST_PAINT_S
