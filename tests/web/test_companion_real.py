"""The companion with nothing scripted behind it: the daemon, a hub on loopback, SmolLM2."""

from __future__ import annotations

import shutil

import live_daemon
import pytest
from companion import ask
from fake_hub import FakeHub, Stall, model_files

NAME = "org/tiny-mlx"
MODEL = "smollm2-135m"


async def test_a_download_that_stalls_goes_on_to_its_end(page):
    async with FakeHub() as hub, live_daemon.home("hollow") as home:
        hub.add(NAME, model_files(400_000))
        hub.misbehave("model.safetensors", Stall(after=250_000))
        home.environ |= {
            "HF_HOME": str(home.root / "hf"),
            "HF_ENDPOINT": hub.url,
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DOWNLOAD_TIMEOUT": "1",
        }
        async with live_daemon.daemon(home) as daemon:
            await page.goto(f"{daemon.url}/#models")
            await page.get_by_label("Search the hub").fill("tiny")
            await page.keyboard.press("Enter")
            await page.locator(".offer", has_text=NAME).get_by_text("fits").wait_for()
            await page.get_by_role("button", name=f"Download {NAME}").click()
            await page.locator("article", has_text=NAME).locator("svg.ring").wait_for()
            cards = page.locator(".cards .card").filter(has_text=NAME)
            await cards.get_by_role("button", name="Load").wait_for(timeout=30_000)
        assert len([one for one in hub.log if one.path.endswith("model.safetensors")]) > 1


@pytest.mark.real_model
@pytest.mark.timeout(180)  # a busy machine loads slowly
async def test_from_the_first_run_to_the_first_answer(page, smollm2):
    async with live_daemon.home() as home:
        shutil.copytree(smollm2, home.paths.models / MODEL)
        async with live_daemon.daemon(home, real=True) as daemon:
            await page.goto(daemon.url)
            await page.get_by_text("The model loads with your first question.").wait_for()
            await page.get_by_role("button", name="System prompt and sampling").click()
            await page.get_by_label("Temperature", exact=True).fill("0")
            await page.get_by_label("Max tokens").fill("24")
            await page.keyboard.press("Escape")
            await ask(page, "What is the capital of France?")
            await page.locator(".assistant .figures").wait_for(timeout=150_000)
            answer = await page.locator(".assistant").inner_text()
            assert "Paris" in answer
            assert "tokens/s" in answer
            await page.get_by_text("Ready", exact=True).wait_for()
