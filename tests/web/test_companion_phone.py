"""The page on a phone: within reach of a thumb, one row of controls, nothing that zooms in."""

from __future__ import annotations

import pytest
from companion import ask, until
from fake_store import FakeStore
from scripted_backend import ScriptedBackend, serve, text

SMALL = """() => [...document.querySelectorAll("button, a, select, input, label.icon-button")]
    .filter((one) => !one.closest(".text") && !one.closest("dialog:not([open])"))
    .map((one) => [one, one.getBoundingClientRect()])
    .filter(([one, box]) => box.width > 1 && box.height > 0
        && !one.matches(".link, .brand, [type=checkbox], [type=file]"))
    .filter(([, box]) => Math.min(box.width, box.height) < 44)
    .map(([one, box]) => `${one.outerHTML.slice(0, 90)} ${box.width}x${box.height}`)"""
ZOOMS = """() => [...document.querySelectorAll("input, textarea, select")]
    .filter((one) => parseFloat(getComputedStyle(one).fontSize) < 16).map((one) => one.outerHTML)"""
WIDE = "document.documentElement.scrollWidth - innerWidth"


@pytest.fixture
async def phone(page):
    await page.set_viewport_size({"width": 360, "height": 800})
    return page


async def test_a_thumb_reaches_everything_in_every_view(phone, admin):
    admin.daemon.models[0].reasoning = True
    async with serve(ScriptedBackend(default=text("ok")), admin=admin, store=FakeStore()) as server:
        await phone.goto(server.url)
        await ask(phone, "hello")
        await phone.locator(".figures").wait_for()
        for view in ("chat", "models", "monitor", "settings"):
            await phone.get_by_role("navigation").get_by_role("link", name=view).click()
            await phone.locator(f"main.{view}").wait_for()
            assert await phone.evaluate(WIDE) <= 0
            assert await phone.evaluate(SMALL) == []
            assert await phone.evaluate(ZOOMS) == []
        tabs = await phone.get_by_role("navigation").bounding_box()
        assert tabs["y"] + tabs["height"] == 800
        assert tabs["height"] < 64


async def test_a_chat_has_one_row_of_controls_and_its_lists_come_as_sheets(phone, admin):
    async with serve(ScriptedBackend(default=text("ok")), admin=admin) as server:
        await phone.goto(server.url)
        await ask(phone, "hello")
        await phone.locator(".figures").wait_for()
        box = await phone.locator(".messages").bounding_box()
        assert box["y"] < 60
        assert box["height"] > 540
        await phone.get_by_role("button", name="Chats").click()
        drawer = phone.get_by_role("dialog", name="Chats")
        await drawer.get_by_role("button", name="Delete the chat hello").wait_for()
        await drawer.get_by_role("button", name="Export").wait_for()
        assert await phone.evaluate(SMALL) == []
        await drawer.get_by_role("button", name="New chat").click()
        await drawer.wait_for(state="detached")
        await phone.get_by_text("What is on your mind?").wait_for()
        await phone.get_by_role("button", name="System prompt and sampling").click()
        sheet = phone.get_by_role("dialog", name="System prompt and sampling")
        await sheet.wait_for()
        await phone.wait_for_timeout(400)  # its way up
        found = await sheet.bounding_box()
        assert found["y"] + found["height"] == pytest.approx(800, abs=1)
        assert found["width"] == 360
        assert await phone.evaluate(SMALL) == []
        await phone.keyboard.press("Escape")
        await sheet.wait_for(state="detached")


async def test_the_page_can_be_installed(phone, admin):
    async with serve(admin=admin) as server:
        await phone.goto(server.url)
        manifest = await phone.evaluate(
            "fetch(document.querySelector('link[rel=manifest]').href).then((one) => one.json())"
        )
        assert manifest["display"] == "standalone"
        sizes = {icon["sizes"] for icon in manifest["icons"]}
        assert {"192x192", "512x512"} <= sizes
        assert any("maskable" in icon.get("purpose", "") for icon in manifest["icons"])
        assert manifest["shortcuts"][0]["url"].endswith("#chat/new")
        head = await phone.evaluate("document.head.innerHTML")
        assert "apple-touch-icon" in head
        assert "viewport-fit=cover" in head


async def test_what_another_app_shares_becomes_a_draft_and_is_not_sent(phone, admin):
    async with serve(ScriptedBackend(default=text("ok")), admin=admin) as server:
        await phone.goto(f"{server.url}/?title=Look&text=at%20this&url=https%3A%2F%2Fexample.org")
        await until(phone, "document.querySelector('.writer textarea')?.value")
        said = await phone.get_by_label("Message").input_value()
        assert said == "Look\nat this\nhttps://example.org"
        assert "?" not in phone.url
        assert server.backend.requests == []
