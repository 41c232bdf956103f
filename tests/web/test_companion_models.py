"""Models and the monitor in a browser: loading, planning, finding, watching."""

from __future__ import annotations

import asyncio

from fake_store import FakeStore, offered
from scripted_backend import serve

from swiftlm_proto import messages as m


async def test_a_load_shows_its_progress_until_the_model_is_ready(page, admin):
    admin.loading = asyncio.Event()
    async with serve(admin=admin) as server:
        await page.goto(f"{server.url}/#models")
        await page.get_by_role("button", name="Load", exact=True).click()
        await page.get_by_text("weights 40 %").wait_for()
        admin.cached.state = m.ModelStatusState.READY
        admin.loading.set()
        await page.get_by_role("button", name="Unload").nth(1).wait_for()


async def test_a_refused_load_shows_the_sum_and_a_fix_that_makes_it_fit(page, admin):
    admin.refusal = "needs 9.5 GB, 8.0 GB available (budget), 1.5 GB short"
    async with serve(admin=admin) as server:
        await page.goto(f"{server.url}/#models")
        await page.get_by_text("4 bits · tools · apache-2.0").wait_for()
        await page.get_by_role("button", name="Load", exact=True).click()
        await page.get_by_role("alert").get_by_text("1.5 GB short").wait_for()
        await page.get_by_role("button", name="See what fits").click()
        await page.get_by_role("row", name="needed").get_by_text("9.5 GB").wait_for()
        load = page.get_by_role("button", name="Load with this")
        assert await load.is_disabled()
        await page.get_by_role("button", name="--kv turbo").click()
        await page.get_by_text("resident, needs 7.8 GB of 8.0 GB").wait_for()
        admin.refusal = ""
        await load.click()
        await page.get_by_text("Load with this").wait_for(state="detached")
        loads = [one for one in admin.asked if isinstance(one, m.LoadModelRequest)]
        assert loads[-1].options.kv == "turbo"


async def test_the_plan_follows_its_sliders(page, admin):
    async with serve(admin=admin) as server:
        await page.goto(f"{server.url}/#models")
        await page.get_by_role("button", name="Plan").click()
        await page.get_by_text("8,192 tokens").wait_for()
        await page.get_by_label("Context").press("ArrowRight")
        await page.get_by_text("16,384 tokens").wait_for()
        await page.get_by_label("KV format").press("ArrowRight")
        await page.get_by_text("resident, needs 7.8 GB").wait_for()
        asked = [one for one in admin.asked if isinstance(one, m.PlanModelRequest)]
        assert (asked[-1].options.context, asked[-1].options.kv) == (16384, "turbo")


async def test_a_search_says_what_fits_and_downloads_it(page, admin):
    store = FakeStore()
    async with serve(admin=admin, store=store) as server:
        await page.goto(f"{server.url}/#models")
        await page.get_by_text("too large · 40.7 GB").wait_for()
        await page.get_by_label("Search the hub").fill("qwen3-4b")
        await page.keyboard.press("Enter")
        await page.get_by_text("too large").wait_for(state="detached")
        assert store.asked[-1].text == "qwen3-4b"
        await page.get_by_role("button", name="Download mlx-community/Qwen3-4B-4bit").click()
        assert (await admin.pulls.get()).model == "mlx-community/Qwen3-4B-4bit"


async def test_the_best_models_for_this_machine_lead_and_are_fetched_from_there(page, admin):
    fast, large = offered("org/fast", "fits", 10**9), offered("org/large", "streams", 9 * 10**9)
    fast.fit.decode_low, fast.fit.decode_high = 40.0, 90.0
    fast.best_for, large.best_for = ["fastest", "agents"], ["largest"]
    async with serve(admin=admin, store=FakeStore([fast, large])) as server:
        await page.goto(f"{server.url}/#models")
        rows = page.get_by_label("Best models for this machine").locator("li")
        await rows.first.wait_for()
        assert [one.split("\n")[:2] for one in await rows.all_inner_texts()] == [
            ["Largest that runs well here", "org/large"],
            ["Fastest here", "org/fast"],
            ["Best for agents here", "org/fast"],
        ]
        assert "40 to 90 tokens/s" in await rows.nth(1).inner_text()
        await rows.first.get_by_role("button").click()
        assert (await admin.pulls.get()).model == "org/large"


async def test_a_download_shows_its_ring_speed_and_time_left(page, admin):
    admin.daemon.downloads = [
        m.DownloadStatus("big/model", 3 * 10**9, 12 * 10**9, 75e6, 120.0, "fetching")
    ]
    async with serve(admin=admin) as server:
        await page.goto(f"{server.url}/#models")
        await page.get_by_label("25 %").wait_for()
        await page.get_by_text("75 MB/s · 2 min left").wait_for()
        await page.get_by_role("button", name="Pause").click()
        assert (await admin.pulls.get()).cancel
        admin.daemon.downloads[0].state = "failed"
        admin.daemon.downloads[0].error = "the network went away"
        await page.get_by_role("button", name="Resume").click()
        assert (await admin.pulls.get()).model == "big/model"
        admin.daemon.downloads[0].state = "queued"
        await page.get_by_text("waiting for its turn").wait_for()


async def test_a_loaded_model_is_pinned_and_unpinned(page, admin):
    async with serve(admin=admin) as server:
        await page.goto(f"{server.url}/#models")
        await page.get_by_role("button", name="Pin", exact=True).click()
        await page.get_by_role("button", name="Unpin").click()
        await page.get_by_role("button", name="Pin", exact=True).wait_for()


async def test_the_monitor_shows_memory_by_kind_disk_and_requests(page, admin):
    async with serve(admin=admin) as server:
        await page.goto(f"{server.url}/#monitor")
        await page.get_by_label("Memory: weights 1.0 GB, kv 600 MB").wait_for()
        await page.get_by_text("pressure normal").wait_for()
        await page.get_by_text("thermal nominal").wait_for()
        await page.get_by_label("SSD: 0.0 GB/s").wait_for()
        await page.get_by_label("Tokens per second: 61.5").wait_for()
        await page.get_by_role("button", name="1 h").click()
        chart = page.get_by_label("Tokens per second: 61.5")
        assert (await chart.locator(".axis").inner_text()).split() == ["80.0", "40.0", "0.0"]
        assert (await chart.locator(".times").inner_text()).split("\n")[-1] == "now"
        await chart.hover()
        await chart.locator(".tip").get_by_text("61.5").wait_for()
        await page.mouse.move(0, 0)
        await chart.locator(".tip").wait_for(state="detached")
        await chart.focus()
        await page.keyboard.press("ArrowLeft")
        await chart.locator(".tip").get_by_text("61.5").wait_for()
        await page.get_by_role("row", name="decode").get_by_role("button", name="Cancel").wait_for()


async def test_samples_thin_out_and_counters_become_rates(page, admin):
    async with serve(admin=admin) as server:
        await page.goto(server.url)
        answer = await page.evaluate("""async () => {
            const { sampleOf, thinned } = await import("/web/samples.js");
            const status = (bytes, hits, misses) => ({ models: [{ stats: {
              stream: { bytes, hits, misses } } }] });
            const first = sampleOf(status(1e9, 10, 10), undefined, 100);
            const second = sampleOf(status(5e9, 19, 11), first, 102);
            const all = Array.from({ length: 2000 }, (_, i) => ({ at: 2 * i }));
            return [second.ssd, second.ssd_hit_rate, thinned(all, 4000).length];
        }""")
        assert answer == [2, 0.9, 331 + 149]


async def test_a_download_goes_on_when_the_page_is_loaded_again(page, admin, monkeypatch):
    gate, whole = asyncio.Event(), asyncio.Event()

    async def pull(message):
        yield m.OperationEvent(stage="fetching", fraction=0.3)
        await gate.wait()
        yield m.OperationEvent(stage="done", fraction=1.0, done=True)
        whole.set()

    monkeypatch.setattr(admin, "pull", pull)
    async with serve(admin=admin, store=FakeStore([offered("org/m", "m", 10**9)])) as server:
        await page.goto(f"{server.url}/#models")
        await page.get_by_role("button", name="Download org/m").click()
        await page.get_by_text("fetching 30 %").wait_for()
        await page.reload()
        await page.get_by_role("button", name="Download org/m").wait_for()
        gate.set()
        await asyncio.wait_for(whole.wait(), 5)


async def test_what_a_download_has_left_is_gone_on_with(page, admin):
    reason = "not complete (1 MB are here); `swiftlmctl pull org/m` goes on"
    admin.cached.state, admin.cached.source, admin.cached.error = (
        m.ModelStatusState.BROKEN,
        "hub",
        reason,
    )
    async with serve(admin=admin) as server:
        await page.goto(f"{server.url}/#models")
        await page.get_by_text("not complete").wait_for()
        await page.get_by_role("button", name="Resume").click()
        assert (await asyncio.wait_for(admin.pulls.get(), 5)).model == admin.cached.model
