"""The settings: each option has the field that its type asks for; theme and language."""

from __future__ import annotations

from companion import until
from scripted_backend import serve

from swiftlm_proto import messages as m


def option(key, value, form):
    return m.ConfigEntry(key, value, "default", f"Help of {key}.", type=form)


OPTIONS = (
    option("http.web", "true", "true or false"),
    option("engine.kv", "auto", "auto | fp16 | turbo"),
    option("engine.parallel", "4", "integer"),
    option("engine.context", "0", "integer"),
    option("engine.prefix_disk", "auto", '"auto", "off", bytes, "24GB" or "60%"'),
    option("engine.gpu_layers", "auto", "text"),
)


async def test_each_option_has_the_field_of_its_type_and_saves(page, admin):
    admin.config |= {one.key: one for one in OPTIONS}
    async with serve(admin=admin) as server:
        await page.goto(f"{server.url}/#settings")
        groups = page.locator(".settings-page h2")
        await groups.get_by_text("Engine").wait_for()
        assert await groups.all_inner_texts() == ["Appearance", "Server", "Engine"]
        await page.get_by_role("switch", name="http.web").click()
        await page.get_by_text("Saved").first.wait_for()
        assert admin.config["http.web"].value == "false"
        await page.get_by_label("KV engine.kv").select_option("turbo")
        await until(page, "document.getElementById('engine.kv').value === 'turbo'")
        await page.get_by_label("Slider: engine.parallel").fill("8")
        await page.get_by_label("Context engine.context").fill("4096")
        await page.keyboard.press("Enter")
        await page.get_by_label("Filter the settings").fill("gpu")
        await groups.get_by_text("Server").wait_for(state="detached")
        await page.get_by_label("GPU layers engine.gpu_layers").fill("12")
        await page.keyboard.press("Enter")
        await page.get_by_text("Saved").first.wait_for()
        found = {key: entry.value for key, entry in admin.config.items()}
        assert found["engine.kv"] == "turbo"
        assert found["engine.parallel"] == "8"
        assert found["engine.context"] == "4096"
        assert found["engine.gpu_layers"] == "12"


async def test_theme_and_language_are_chosen_and_kept(page, admin):
    async with serve(admin=admin) as server:
        await page.goto(f"{server.url}/#settings")
        await page.get_by_role("button", name="Dark").click()
        assert await page.evaluate("document.documentElement.dataset.theme") == "dark"
        await page.get_by_label("Language").select_option("de")
        await page.get_by_role("heading", name="Einstellungen").wait_for()
        assert await page.evaluate("document.documentElement.lang") == "de"
        assert await page.evaluate("document.documentElement.dataset.theme") == "dark"
        await page.get_by_role("button", name="System").click()
        for tag, heading in (("ja", "設定"), ("fr", "Réglages"), ("en", "Settings")):
            await page.locator("#language").select_option(tag)
            await page.get_by_role("heading", name=heading, exact=True).wait_for()
        assert await page.evaluate("document.documentElement.dataset.theme") is None
