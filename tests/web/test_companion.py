"""The companion in a real browser, against a scripted backend."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import live_daemon
from companion import ask, until
from fake_store import FakeStore, offered
from scripted_backend import ScriptedBackend, serve, text

from swiftlm_proto import messages as m
from swiftlmd.faults import ServiceError

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


async def test_a_first_question_gets_its_answer_with_figures_and_is_kept(page, admin):
    code = "def squares(n):\n    yield from (i * i for i in range(n))"
    answer = f"Use a **generator**:\n\n```python\n{code}\n```"
    async with serve(ScriptedBackend(default=text(answer)), admin=admin) as server:
        await page.goto(server.url)
        await ask(page, "How do I make squares lazily?")
        await page.get_by_text("50.0 tokens/s").wait_for()
        assert await page.locator(".assistant strong").inner_text() == "generator"
        assert "4 cached" in await page.locator(".figures").inner_text()
        await page.get_by_role("button", name="Copy", exact=True).first.wait_for()
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


async def test_conversations_leave_by_a_file_and_come_back(page, admin, tmp_path):
    async with serve(ScriptedBackend(default=text("Seven.")), admin=admin) as server:
        await page.goto(server.url)
        await ask(page, "How many days has a week?")
        await page.get_by_text("50.0 tokens/s").wait_for()
        async with page.expect_download() as leaving:
            await page.get_by_role("button", name="Export").click()
        file = tmp_path / "conversations.json"
        await (await leaving.value).save_as(file)
        await page.get_by_label("Delete the chat How many days has a week?").click()
        await page.get_by_label("Delete the chat").wait_for(state="detached")
        await page.get_by_label("Import").set_input_files(file)
        await page.get_by_role("button", name="How many days has a week?", exact=True).click()
        await page.locator(".assistant").get_by_text("Seven.").wait_for()
        file.write_text('{"conversations": [{"id": 1}]}')
        await page.get_by_label("Import").set_input_files(file)
        await page.get_by_text("Nothing imported: not a conversation").wait_for()


async def test_hostile_output_and_names_execute_nothing(page, admin):
    admin.daemon.models += [m.ModelStatus(model=name, error=name) for name in HOSTILE]
    requested = []
    page.on("request", lambda request: requested.append(request.url))
    admin.daemon.downloads = [m.DownloadStatus(model=HOSTILE[1], total_bytes=9, error=HOSTILE[2])]
    store = FakeStore([offered(name, name, 10**9, title=name) for name in HOSTILE])
    backend = ScriptedBackend(default=text("\n\n".join((*HOSTILE, "the end"))))
    async with serve(backend, admin=admin, store=store) as server:
        await page.goto(server.url)
        await ask(page, HOSTILE[1])
        await page.locator(".figures").wait_for()
        for link in await page.locator(".assistant .text a").all():
            assert not (await link.get_attribute("href") or "").startswith("javascript")
        for view in ("models", "monitor", "settings"):
            await page.goto(f"{server.url}/#{view}")
            await page.locator("h1").wait_for()
            if view == "models":
                await page.locator(".offer").nth(len(HOSTILE) - 1).wait_for()
        assert await page.evaluate("window.hit") is None
        assert all(url.startswith((server.url, "data:")) for url in requested)


async def test_the_shell_opens_when_the_daemon_is_away(page, admin):
    async with serve(admin=admin) as server:
        await page.goto(server.url)
        await page.evaluate("navigator.serviceWorker.ready")
        await until(page, "caches.match('/web/style.css').then(Boolean)")
    await page.reload()
    await page.get_by_text("Daemon away").wait_for()


async def test_a_picture_is_offered_to_models_that_see_and_only_to_them(page, admin):
    paste = """(() => {
        const canvas = document.createElement("canvas");
        return new Promise((done) => canvas.toBlob((blob) => {
            const clipboardData = new DataTransfer();
            clipboardData.items.add(new File([blob], "a.png", { type: "image/png" }));
            document.querySelector("[aria-label=Message]").dispatchEvent(
                new ClipboardEvent("paste", { clipboardData, bubbles: true }));
            done();
        }));
    })()"""
    async with serve(admin=admin) as server:
        await page.goto(server.url)
        await page.get_by_text("Ready", exact=True).wait_for()
        await page.evaluate(paste)
        await page.get_by_text("This model cannot see pictures").wait_for()
        admin.daemon.models[0].vision = True
        await page.get_by_label("Add a picture").wait_for(state="attached")
        await page.evaluate(paste)
        await page.get_by_alt_text("Picture 1").wait_for()
        await ask(page, "What is this?")
        await page.locator(".figures").wait_for()
        [request] = server.backend.requests
        assert request.chat.messages[-1].parts[1].image.content.startswith(b"\x89PNG")


async def test_a_question_while_a_model_loads_shows_its_stage(page, admin):
    loading = replace(admin.cached, state=m.ModelStatusState.LOADING)
    admin.daemon.models[1] = replace(loading, load_stage="weights", load_fraction=0.25)
    async with serve(admin=admin) as server:
        await page.goto(server.url)
        await page.get_by_text("Loading qwen3-14b · weights 25 %").wait_for()
        admin.daemon.state = "draining"
        await page.get_by_text("The daemon restarts.").wait_for()


async def test_an_answer_refused_for_memory_says_the_sum_and_where_to_mend_it(page, admin):
    message = "needs 21.4 GB, 17.9 GB available, 3.5 GB short; smallest change that fits: --ctx 512"
    backend = ScriptedBackend(refusal=ServiceError(m.FaultKind.NOT_ENOUGH_MEMORY, message))
    async with serve(backend, admin=admin) as server:
        await page.goto(server.url)
        await ask(page, "go")
        await page.get_by_text("3.5 GB short").wait_for()
        await page.get_by_role("link", name="See what fits in Models").click()
        await page.get_by_role("heading", name="Models").wait_for()


async def test_an_address_that_changes_while_the_page_starts_is_followed(page, admin):
    # The scripts of the page have run by then; what it does after its first picture has not.
    early = "addEventListener('DOMContentLoaded', () => { location.hash = 'settings'; })"
    await page.add_init_script(early)
    async with serve(admin=admin) as server:
        await page.goto(server.url)
        await page.get_by_role("button", name="Network").wait_for()


async def test_the_keyboard_alone_reaches_everything(page, admin):
    async with serve(admin=admin) as server:
        await page.goto(server.url)
        await ask(page, "hello")
        await page.locator(".figures").wait_for()
        await page.keyboard.press("Alt+n")
        await page.get_by_text("What is on your mind?").wait_for()
        await page.keyboard.press("Alt+3")
        await page.get_by_role("heading", name="Monitor").wait_for()
        await page.keyboard.press("Alt+1")
        await page.get_by_role("button", name="Export").focus()
        await page.keyboard.press("/")
        assert await page.evaluate("document.activeElement.ariaLabel") == "Message"


async def test_the_real_daemon_plans_a_load_and_explains_its_settings(page):
    async with live_daemon.home("hollow") as home, live_daemon.daemon(home) as daemon:
        await page.goto(f"{daemon.url}/#models")
        await page.get_by_role("button", name="Plan").click()
        await page.get_by_role("row", name="weights").wait_for()
        await page.goto(f"{daemon.url}/#settings")
        await page.get_by_text("Address that HTTP listens on.").wait_for()
        await page.get_by_text("from default").first.wait_for()
