"""Finding and ordering chats: their words, days, names and pins; and the command palette."""

from __future__ import annotations

import json

from companion import ask
from scripted_backend import ScriptedBackend, serve, text

DAY_MS = 86_400_000


def chat(name, said, days, now):
    at = now - days * DAY_MS
    message = {"id": f"m-{name}", "parent": None, "role": "user", "text": said, "at": at}
    return {"id": name, "title": name, "at": at, "messages": [message], "leaf": message["id"]}


async def bring(page, tmp_path):
    now = await page.evaluate("new Date().setHours(12, 0, 0, 0)")
    chats = [
        chat("Weather", "Will it rain in Oslo?", 0, now),
        chat("Cooking", "How long do lentils need?", 1, now),
        chat("Poetry", "A sonnet on the North Sea", 4, now),
        chat("History", "Who built the Vasa?", 400, now),
    ]
    file = tmp_path / "chats.json"
    file.write_text(json.dumps({"conversations": chats}))
    await page.get_by_label("Import").set_input_files(file)
    await page.get_by_role("button", name="History", exact=True).wait_for()


async def test_chats_are_found_named_pinned_and_ordered_by_day(page, admin, tmp_path):
    async with serve(ScriptedBackend(default=text("ok")), admin=admin) as server:
        await page.goto(server.url)
        await bring(page, tmp_path)
        days = await page.locator(".chats h3").all_inner_texts()
        assert days[:3] == ["Today", "Yesterday", "Last 7 days"]
        assert len(days) == 4
        await page.get_by_label("Search the chats").fill("NORTH sea")
        found = page.locator(".chats li")
        await found.get_by_text("A sonnet on the").wait_for()
        assert await found.count() == 1
        assert await found.locator("mark").inner_text() == "North Sea"
        await page.get_by_label("Search the chats").fill("")

        await page.get_by_label("Pin the chat History").click()
        assert (await page.locator(".chats h3").all_inner_texts())[0] == "Pinned"
        await page.get_by_label("Rename the chat History").click()
        await page.get_by_label("Name of the chat").fill("Ships")
        await page.keyboard.press("Enter")
        await page.get_by_role("button", name="Ships", exact=True).wait_for()
        await page.get_by_label("Rename the chat Ships").click()
        await page.get_by_label("Name of the chat").fill("nonsense")
        await page.keyboard.press("Escape")
        await page.reload()
        await page.get_by_role("button", name="Ships", exact=True).wait_for()
        assert (await page.locator(".chats h3").all_inner_texts())[0] == "Pinned"


async def test_the_palette_goes_anywhere_by_a_few_letters(page, admin, tmp_path):
    async with serve(ScriptedBackend(default=text("ok")), admin=admin) as server:
        await page.goto(server.url)
        await bring(page, tmp_path)
        await page.keyboard.press("Control+k")
        await page.get_by_role("combobox").fill("lentils")
        await page.get_by_role("option", name="Cooking").wait_for()
        await page.keyboard.press("Enter")
        await page.locator(".user", has_text="How long do lentils need?").wait_for()
        await page.keyboard.press("Control+k")
        await page.get_by_role("combobox").fill("go to")
        await page.get_by_role("option", name="Go to Chat").wait_for()
        for _ in range(2):
            await page.keyboard.press("ArrowDown")
        await page.keyboard.press("Enter")
        await page.get_by_role("heading", name="Monitor").wait_for()
        await page.keyboard.press("Control+k")
        await page.get_by_role("combobox").fill("theme: dark")
        await page.get_by_role("option", name="Theme: Dark").click()
        scheme = "getComputedStyle(document.documentElement).colorScheme"
        assert await page.evaluate(scheme) == "dark"
        await page.keyboard.press("Control+k")
        await page.get_by_role("combobox").fill("nothing like this")
        await page.get_by_text("Nothing found.").wait_for()
        await page.keyboard.press("Escape")
        await page.get_by_role("combobox").wait_for(state="detached")


async def test_the_model_writes_the_title_where_that_is_asked_for(page, admin):
    backend = ScriptedBackend(default=text('"Rain in Oslo."'))
    async with serve(backend, admin=admin) as server:
        await page.goto(f"{server.url}/#settings")
        await page.get_by_label("Titles by the model").click()
        await page.goto(f"{server.url}/#chat")
        await ask(page, "Will it rain in the capital of Norway tomorrow?")
        await page.get_by_role("button", name="Rain in Oslo", exact=True).wait_for()
        assert len(backend.requests) == 2
        await ask(page, "And then?")
        await page.locator(".figures").nth(1).wait_for()
        await page.get_by_role("button", name="Rain in Oslo", exact=True).wait_for()
        assert len(backend.requests) == 3
