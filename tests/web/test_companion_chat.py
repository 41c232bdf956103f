"""The chat in a real browser: nothing jumps, nothing is lost, and it can be read while it grows."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from companion import ask, until
from scripted_backend import ScriptedBackend, serve, text

from swiftlm_proto import messages as m
from swiftlmd.config.http import HttpOptions

TALL = "".join(f"Line {n} of an answer that is taller than the window.\n\n" for n in range(80))
DELTAS = 5000
MOST_S = 1.5  # of the page's thread for all of them; rendered anew by each it was a minute
FRAMES = """() => {
    window.seen = [];
    const box = document.querySelector(".messages");
    const look = () => {
        seen.push([box.scrollTop, box.scrollHeight - box.clientHeight]);
        requestAnimationFrame(look);
    };
    look();
}"""


def held_after(number, *pieces):
    """A script that waits before piece `number`, and what lets it go on."""
    gate = asyncio.get_running_loop().create_future()
    return gate, replace(text(*pieces), before=lambda n: gate if n == number else None)


async def done(page):
    await page.locator(".figures").last.wait_for()
    # What draws an answer is loaded with the first one.
    await page.locator(".assistant .text > *").last.wait_for(state="attached")


async def test_the_view_stays_where_it_was_when_an_answer_ends(page, admin):
    gate, script = held_after(1, TALL, "The end.")
    async with serve(ScriptedBackend(default=script), admin=admin) as server:
        await page.goto(server.url)
        await ask(page, "go")
        await page.get_by_text("Line 79").wait_for()
        await page.evaluate(FRAMES)
        gate.set_result(None)
        await done(page)
        await page.wait_for_timeout(200)
        seen = await page.evaluate("seen")
        assert min(top for top, _ in seen) >= seen[0][0] > 1000
        assert seen[-1][0] == pytest.approx(seen[-1][1], abs=2)


async def test_waiting_for_a_load_and_a_prompt_is_counted(page, admin):
    gate, script = held_after(0, "late")
    script = replace(script, progress=(m.Progress(done_tokens=512, total_tokens=2048),))
    options = HttpOptions(port=0, first_comment_s=0.05, comment_s=0.1)
    async with serve(ScriptedBackend(default=script), options, admin=admin) as server:
        await page.goto(server.url)
        await ask(page, "go")
        await page.get_by_text("Reading the prompt: 25 %").wait_for()
        gate.set_result(None)
        await page.get_by_text("late").wait_for()
        await page.get_by_text("Reading the prompt: 25 %").wait_for(state="detached")
        words = "import('/web/format.js').then((format) => format.waitWords({}))"
        for comment, shown in (
            ("load weights 40%, 8 s left", "Loading the model: weights 40 % · 8 s left"),
            ("pull 3/4 bytes", "Fetching the model: 75 %"),
            ("waiting", ""),
        ):
            assert await page.evaluate(words.format(json.dumps(comment))) == shown


async def test_a_burst_of_tokens_leaves_the_page_alive(page, admin):
    words = [f"word{n} " if n % 40 else f"\n\n## Part {n}\n\n" for n in range(DELTAS)]
    gate, script = held_after(0, *words)
    async with serve(ScriptedBackend(default=script), admin=admin) as server:
        await page.goto(server.url)
        chrome = await page.context.new_cdp_session(page)
        await chrome.send("Performance.enable", {"timeDomain": "threadTicks"})
        await ask(page, "go")
        await page.locator(".waiting").wait_for()
        before = await worked_s(chrome)
        gate.set_result(None)
        await done(page)
        assert await page.locator(".assistant h2").count() == DELTAS // 40
        worked = await worked_s(chrome) - before
        print(f"{DELTAS} deltas kept the page's thread busy for {worked:.2f} s")
        assert worked < MOST_S


async def worked_s(chrome) -> float:
    """What the page's main thread has computed, whoever else uses the machine."""
    reply = await chrome.send("Performance.getMetrics")
    return next(one["value"] for one in reply["metrics"] if one["name"] == "TaskDuration")


async def test_the_reader_goes_back_while_it_writes(page, admin):
    first, second = asyncio.get_running_loop().create_future(), None
    gates = {1: first}
    script = replace(text(TALL, TALL, "The end."), before=gates.get)
    async with serve(ScriptedBackend(default=script), admin=admin) as server:
        await page.goto(server.url)
        await ask(page, "go")
        await page.get_by_text("Line 79").wait_for()
        await page.locator(".messages").hover()
        await page.mouse.wheel(0, -900)
        await page.get_by_role("button", name="To the end").wait_for()
        await page.evaluate("""() => {
            const lines = [...document.querySelectorAll(".assistant p")];
            getSelection().selectAllChildren(lines.find((p) => p.innerText.includes("Line 3 ")));
        }""")
        top = await page.evaluate("document.querySelector('.messages').scrollTop")
        first.set_result(second)
        await page.get_by_text("The end.").wait_for()
        assert await page.evaluate("document.querySelector('.messages').scrollTop") == top
        assert "Line 3 of" in await page.evaluate("getSelection().toString()")
        await page.get_by_role("button", name="To the end").click()
        await page.get_by_role("button", name="To the end").wait_for(state="detached")


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("Use Vec<String>, Option<T>; if a<b and c>d.", "Vec<String>, Option<T>; if a<b and c>d"),
        ("The <input> tag, <b>not bold</b>.", "The <input> tag, <b>not bold</b>."),
        ("<!doctype html>\n<html><body><h1>Page</h1></body></html>", "<h1>Page</h1>"),
        ("Press <kbd>Esc</kbd>, H<sub>2</sub>O<br>new line", "Press Esc, H2O\nnew line"),
        ("![a cat](https://cats.example/1.png)", "[a cat from cats.example, not loaded]"),
    ],
)  # fmt: skip
async def test_what_stands_in_angle_brackets_is_shown(said, shown, page, admin):
    async with serve(ScriptedBackend(default=text(said)), admin=admin) as server:
        await page.goto(server.url)
        await ask(page, "go")
        await done(page)
        assert shown in await page.locator(".assistant .text").inner_text()


async def test_an_answer_streamed_looks_like_the_same_loaded_again(page, admin):
    said = (
        "# Title\n\nText with [a link][1] and\nmore.\n\n- one\n\n- two\n  - deep\n\n1. a\n2. b\n\n"
        "| a | b |\n|---|---|\n| 1 | 2 |\n\n> quote\n\n- [x] done\n- [ ] open\n\n"
        "```python\ndef f(): pass\n```\n\nend\n===\n\n[1]: https://example.com\n"
    )
    async with serve(ScriptedBackend(default=text(*said)), admin=admin) as server:
        await page.goto(server.url)
        await ask(page, "go")
        coloured = page.locator(".hljs-keyword").first  # by what is loaded with the first code
        await done(page)
        await coloured.wait_for(state="attached")
        streamed = await page.locator(".assistant .text").inner_html()
        await page.reload()
        await done(page)
        await coloured.wait_for(state="attached")
        assert await page.locator(".assistant .text").inner_html() == streamed
        for part in (
            "h1",
            "h1 >> nth=1",
            "a[href='https://example.com']",
            "td",
            "blockquote",
            "input",
        ):
            await page.locator(f".assistant .text {part}").first.wait_for(state="attached")


async def test_other_acts_wait_until_the_answer_of_their_chat_is_complete(page, admin):
    gate, script = held_after(1, "begun ", "over")
    backend = ScriptedBackend(default=text("first"))
    async with serve(backend, admin=admin) as server:
        await page.goto(server.url)
        await ask(page, "hello")
        await done(page)
        backend.default = script
        await ask(page, "slow")
        await page.get_by_text("begun").wait_for()
        assert await page.get_by_role("button", name="Retry").is_disabled()
        assert await page.get_by_role("button", name="Edit").first.is_disabled()
        gate.set_result(None)
        await page.get_by_text("begun over").wait_for()
        assert await page.get_by_role("button", name="Retry").last.is_enabled()


async def test_two_tabs_keep_each_others_messages(page, admin):
    async with serve(ScriptedBackend(default=text("ok")), admin=admin) as server:
        await page.goto(server.url)
        await ask(page, "one")
        await done(page)
        other = await page.context.new_page()
        await other.goto(page.url)
        await other.locator(".user", has_text="one").wait_for()
        await ask(page, "from the first tab")
        await other.locator(".figures").nth(1).wait_for()  # it is seen there
        await ask(other, "from the second tab")
        await other.locator(".figures").nth(2).wait_for()
        await page.reload()
        await page.locator(".figures").nth(2).wait_for()
        said = await page.locator(".user .text").all_inner_texts()
        assert said == ["one", "from the first tab", "from the second tab"]
        await other.close()


async def test_a_look_elsewhere_costs_no_draft_and_no_choice(page, admin):
    admin.daemon.models.append(replace(admin.daemon.models[0], model="other"))
    async with serve(ScriptedBackend(default=text("ok")), admin=admin) as server:
        await page.goto(server.url)
        for question in ("older", "newer"):
            await ask(page, question)
            await done(page)
            await page.keyboard.press("Alt+n")
        await page.get_by_role("button", name="older", exact=True).click()
        await page.get_by_role("button", name="Model: ").click()
        await page.get_by_role("dialog").get_by_role("button", name="other").click()
        await page.get_by_label("Message").fill("half a thou")
        await page.keyboard.press("Alt+3")
        await page.get_by_role("heading", name="Monitor").wait_for()
        await page.keyboard.press("Alt+1")
        assert await page.get_by_label("Message").input_value() == "half a thou"
        await page.get_by_role("button", name="Model: other").wait_for()
        await page.locator(".user", has_text="older").wait_for()
        address = page.url
        assert "#chat/" in address
        await page.get_by_role("button", name="newer", exact=True).click()
        await page.locator(".user", has_text="newer").wait_for()
        assert await page.get_by_label("Message").input_value() == ""
        await page.goto(address)
        await page.locator(".user", has_text="older").wait_for()


async def test_a_deleted_chat_comes_back_when_asked_and_only_then(page, admin):
    _, script = held_after(1, "begun ", "over")
    backend = ScriptedBackend(default=text("ok"))
    async with serve(backend, admin=admin) as server:
        await page.goto(server.url)
        await ask(page, "keep me")
        await done(page)
        await page.get_by_label("Delete the chat keep me").click()
        await page.get_by_role("button", name="Undo").click()
        await page.locator(".user", has_text="keep me").wait_for()
        await page.reload()
        await page.locator(".user", has_text="keep me").wait_for()
        backend.default = script
        await ask(page, "slow")
        await page.get_by_text("begun").wait_for()
        await page.get_by_label("Delete the chat keep me").click()
        await backend.wait_until(lambda: backend.aborted == 1)
        await page.reload()
        await page.get_by_text("What is on your mind?").wait_for()
        assert await page.get_by_label("Delete the chat keep me").count() == 0


async def test_without_storage_it_answers_and_says_what_will_be_lost(page, admin):
    await page.add_init_script("indexedDB.open = () => { throw new Error('denied'); }")
    async with serve(ScriptedBackend(default=text("an answer")), admin=admin) as server:
        await page.goto(server.url)
        await ask(page, "go")
        await done(page)
        await page.get_by_text("lost when the page is closed").wait_for()
        await ask(page, "again")
        await page.locator(".figures").nth(1).wait_for()
        [*_, request] = server.backend.requests
        roles = [message.role for message in request.chat.messages]
        assert roles == ["user", "assistant", "user"]


async def test_other_chats_are_open_while_one_answers(page, admin):
    gate, script = held_after(1, "begun ", "over")
    backend = ScriptedBackend(default=script)
    async with serve(backend, admin=admin) as server:
        await page.goto(server.url)
        await ask(page, "slow")
        await page.get_by_text("begun").wait_for()
        await page.keyboard.press("Alt+n")
        await page.get_by_text("What is on your mind?").wait_for()
        backend.default = text("quick answer")
        await ask(page, "quick")
        await page.get_by_text("quick answer").wait_for()
        gate.set_result(None)
        await page.get_by_role("button", name="slow", exact=True).click()
        await page.get_by_text("begun over").wait_for()


async def test_a_screen_reader_hears_that_it_answers_and_that_it_has(page, admin):
    gate, script = held_after(1, "begun ", "over")
    async with serve(ScriptedBackend(default=script), admin=admin) as server:
        await page.goto(server.url)
        await ask(page, "go")
        await page.get_by_role("status").get_by_text("Answering").wait_for(state="attached")
        assert await page.locator("[aria-live] .assistant").count() == 0
        gate.set_result(None)
        await page.get_by_role("status").get_by_text("Answer complete").wait_for(state="attached")


async def test_an_answer_that_was_cut_is_continued_in_its_place(page, admin):
    cut = text("The first half", reason=m.FinishedReason.LENGTH)
    backend = ScriptedBackend(default=cut)
    async with serve(backend, admin=admin) as server:
        await page.goto(server.url)
        await ask(page, "go")
        await page.get_by_text("cut at the limit").wait_for()
        backend.default = text(" and the second")
        await page.get_by_role("button", name="Continue").click()
        await page.get_by_text("The first half and the second").wait_for()
        await page.get_by_role("button", name="Continue").wait_for(state="detached")
        assert backend.requests[-1].chat.continue_final_message
        assert await page.locator(".assistant").count() == 1


async def test_an_answer_of_a_daemon_that_was_restarted_is_kept_and_can_go_on(page, admin):
    _, script = held_after(1, "what was seen ", "never")
    async with serve(ScriptedBackend(default=script), admin=admin) as server:
        await page.goto(server.url)
        await ask(page, "go")
        await page.get_by_text("what was seen").wait_for()
        port = server.port
    async with serve(
        ScriptedBackend(default=text("and the rest")), admin=admin, port=port
    ) as server:
        await page.get_by_text(
            "The daemon was restarted before this answer was complete."
        ).wait_for()
        await page.get_by_text("what was seen").wait_for()
        await page.get_by_role("button", name="Continue").click()
        await page.get_by_text("what was seen and the rest").wait_for()


async def test_a_text_file_goes_before_the_question(page, admin):
    drop = """([name, type, body]) => {
        const dataTransfer = new DataTransfer();
        dataTransfer.items.add(new File([body], name, { type }));
        const how = { dataTransfer, bubbles: true, cancelable: true };
        document.body.dispatchEvent(new DragEvent("drop", how));
    }"""
    async with serve(ScriptedBackend(default=text("ok")), admin=admin) as server:
        await page.goto(server.url)
        await page.evaluate(drop, ["notes.md", "", "# Notes\n```\ncode\n```"])
        await page.get_by_text("notes.md").wait_for()
        await page.evaluate(drop, ["a.pdf", "application/pdf", "%PDF"])
        await page.get_by_text("a.pdf is no text file").wait_for()
        await ask(page, "Summarize")
        await done(page)
        [request] = server.backend.requests
        said = request.chat.messages[-1].parts[0].text
        assert said == "File notes.md:\n````\n# Notes\n```\ncode\n```\n````\n\nSummarize"


@pytest.mark.parametrize(
    "messages",
    [
        [{"id": "a", "role": "user", "parent": "b"}, {"id": "b", "role": "user", "parent": "a"}],
        [{"id": "a", "role": "user", "parent": None, "text": 12345}],
        [{"id": "a", "role": "system", "parent": None}],
        [{"id": "a", "role": "user", "parent": None}] * 2,
    ],
)
async def test_an_import_that_would_hang_or_throw_is_refused(messages, page, admin, tmp_path):
    file = tmp_path / "talks.json"
    talk = {"id": "x", "title": "bad", "at": 9e12, "leaf": "a", "messages": messages}
    file.write_text(json.dumps({"conversations": [talk]}))
    async with serve(admin=admin) as server:
        await page.goto(server.url)
        await page.get_by_label("Import").set_input_files(file)
        await page.get_by_text("Nothing imported: not a conversation").wait_for()


async def test_chats_of_the_first_kind_of_store_are_taken_over(page, admin):
    old = {"id": "t", "title": "Old chat", "at": 1, "leaf": "b", "system": "", "sampling": {}}
    messages = [
        {"id": "a", "parent": None, "role": "user", "text": "old question"},
        {"id": "b", "parent": "a", "role": "assistant", "text": "old answer"},
    ]
    async with serve(admin=admin) as server:
        await page.goto(f"{server.url}/web/icon.svg")  # the same origin, without the page
        await page.evaluate(
            """(talk) => new Promise((done) => {
                const request = indexedDB.open("swiftlm", 1);
                request.onupgradeneeded = () => {
                    request.result.createObjectStore("talks", { keyPath: "id" });
                };
                request.onsuccess = () => {
                    const work = request.result.transaction("talks", "readwrite");
                    work.objectStore("talks").put(talk);
                    work.oncomplete = () => { request.result.close(); done(); };
                };
            })""",
            {**old, "messages": messages},
        )
        await page.goto(server.url)
        await page.locator(".assistant", has_text="old answer").wait_for()


async def test_an_empty_edit_is_not_sent_and_keys_work_in_the_editor(page, admin):
    async with serve(ScriptedBackend(default=text("ok")), admin=admin) as server:
        await page.goto(server.url)
        await ask(page, "first")
        await done(page)
        await page.get_by_role("button", name="Edit").click()
        await page.get_by_label("Edited question").fill("   ")
        await page.keyboard.press("Enter")
        assert await page.locator(".editing").get_by_role("button", name="Send").is_disabled()
        await page.keyboard.press("Escape")
        await page.locator(".editing").wait_for(state="detached")
        await page.get_by_role("button", name="Edit").click()
        await page.get_by_label("Edited question").fill("second")
        await page.keyboard.press("Enter")
        await page.get_by_text("2/2").wait_for()
        assert len(server.backend.requests) == 2


async def test_views_that_were_opened_while_the_daemon_was_away_recover(page, admin):
    async with serve(admin=admin) as server:
        await page.goto(f"{server.url}/#models")
        await page.evaluate("navigator.serviceWorker.ready")
        await until(page, "caches.match('/web/style.css').then(Boolean)")
        port = server.port
    await page.reload()
    await page.get_by_text("Daemon away").wait_for()
    assert await page.get_by_text("Nothing here yet").count() == 0
    await page.evaluate("location.hash = 'settings'")
    async with serve(admin=admin, port=port) as server:
        await page.locator(".entry").first.wait_for()
        assert await page.get_by_text("Failed to fetch").count() == 0


async def test_a_new_chat_stays_open_after_one_that_was_opened_from_the_list(page, admin):
    async with serve(ScriptedBackend(default=text("ok")), admin=admin) as server:
        await page.goto(server.url)
        await ask(page, "older")
        await done(page)
        await page.keyboard.press("Alt+n")
        await page.get_by_text("What is on your mind?").wait_for()
        await page.get_by_role("button", name="older", exact=True).click()
        await page.locator(".user", has_text="older").wait_for()
        await page.keyboard.press("Alt+n")
        await page.get_by_text("What is on your mind?").wait_for()
        await ask(page, "newer")
        await done(page)
        assert await page.locator(".user .text").all_inner_texts() == ["newer"]
        await page.go_back()
        await page.locator(".user", has_text="older").wait_for()
