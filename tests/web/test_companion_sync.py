"""Chats kept by the daemon: another device goes on where this one stopped."""

from __future__ import annotations

from companion import ask, until
from scripted_backend import ScriptedBackend, serve, text

from swiftlmd.http.chats.store import ChatStore

LOOK = "dispatchEvent(new Event('focus'))"


async def looks(page, locator, state="visible"):
    """Until it is so: each look asks the daemon for changes."""
    for _ in range(60):
        await page.evaluate(LOOK)
        await page.wait_for_timeout(250)
        if await locator.count() == (state == "visible"):
            return
    raise AssertionError(f"{locator} is not {state}")


async def test_another_device_goes_on_and_what_is_deleted_is_gone_everywhere(page, admin, tmp_path):
    store = ChatStore(tmp_path / "chats.sqlite3")
    async with serve(ScriptedBackend(default=text("ok")), admin=admin, chats=store) as server:
        await page.goto(server.url)
        await ask(page, "from the Mac")
        await page.locator(".figures").wait_for()
        assert store.changes("owner", 0).chats == []  # off until it is asked for
        await page.goto(f"{server.url}/#settings")
        await page.get_by_label("Keep chats on this machine").click()
        device = await page.context.browser.new_context()
        await device.add_cookies(await page.context.cookies())
        phone = await device.new_page()
        await phone.goto(f"{server.url}/#settings")
        await phone.get_by_label("Keep chats on this machine").click()
        await phone.goto(f"{server.url}/#chat")
        chat = phone.get_by_role("button", name="from the Mac", exact=True)
        await looks(phone, chat)
        await chat.click()
        await phone.locator(".user", has_text="from the Mac").wait_for()
        await ask(phone, "from the phone")
        await phone.locator(".figures").nth(1).wait_for()
        await page.goto(f"{server.url}/#chat")
        await looks(page, page.locator(".user", has_text="from the phone"))
        said = await page.locator(".user .text").all_inner_texts()
        assert said == ["from the Mac", "from the phone"]

        await page.get_by_label("Delete the chat from the Mac").click()
        await page.get_by_role("button", name="Undo").click()
        await page.locator(".user", has_text="from the phone").wait_for()
        await page.get_by_label("Delete the chat from the Mac").click()
        await looks(phone, chat, "gone")
        assert store.changes("owner", 0).chats[-1]["gone"]
        await ask(page, "from the Mac")
        await page.locator(".figures").wait_for()

        await page.goto(f"{server.url}/#settings")
        await page.get_by_label("Keep chats on this machine").click()
        await page.get_by_role("button", name="Delete them").click()
        await until(page, "localStorage.getItem('keep-chats') !== 'yes'")
        assert store.changes("owner", 0).chats == []
        assert b"from the" not in (tmp_path / "chats.sqlite3").read_bytes()
        await page.goto(f"{server.url}/#chat")
        await page.get_by_role("button", name="from the Mac", exact=True).wait_for()
        await device.close()


async def test_what_is_written_without_the_daemon_arrives_later(page, admin, tmp_path):
    store = ChatStore(tmp_path / "chats.sqlite3")
    async with serve(ScriptedBackend(default=text("ok")), admin=admin, chats=store) as server:
        await page.goto(f"{server.url}/#settings")
        await page.get_by_label("Keep chats on this machine").click()
        await page.goto(f"{server.url}/#chat")
        await page.route("**/chats/*", lambda route: route.abort())
        await ask(page, "written on a train")
        await page.locator(".figures").wait_for()
        assert store.changes("owner", 0).chats == []
        await page.unroute("**/chats/*")
        for _ in range(60):
            await page.evaluate(LOOK)
            await page.wait_for_timeout(250)
            if store.changes("owner", 0).chats:
                break
        [chat] = store.changes("owner", 0).chats
        assert [one["text"] for one in chat["messages"]] == ["written on a train", "ok"]
        assert "pending" not in chat
