"""Keys, access from the network and pairing, in a browser; and who is turned away."""

from __future__ import annotations

import hashlib

import aiohttp
import live_daemon
import pytest
from scripted_backend import serve

from swiftlm_proto import messages as m
from swiftlmd.config.http import HttpOptions
from swiftlmd.http.certificates import Authority, fingerprint, own_names

# As Python's `qrcode` draws these texts (error correction M, byte mode): size, sha256 of the rows.
QR_CODES = {
    "A": (21, "bc9009ae87ca68f1d256b69eb26362086d73d9f0b95f1e9f3dccae752626c3b6"),
    "http://192.168.1.20:5413/#pair=abcdefghijklmnopqrstuv": (
        33,
        "d6816b95b81356c2bb752b9d573e142c165e212e381b9f140b0c55b6782bd909",
    ),
    "w" * 106: (41, "d70cc1ee8e64ed2bfaad0c838317c2fdd6daa5f23ee36b812df02ea551d127b8"),
}


async def test_a_key_is_shown_once_and_can_be_revoked(page, admin):
    async with serve(admin=admin) as server:
        await page.goto(f"{server.url}/#settings")
        await page.get_by_role("button", name="Keys").click()
        await page.get_by_label("Name of the new key").fill("laptop")
        await page.get_by_role("button", name="Add a key").click()
        await page.get_by_text("sk-of-laptop").wait_for()
        # The first key shuts out who has none; the page that made it stays in.
        assert await page.evaluate("localStorage.getItem('key')") == "sk-of-laptop"
        await page.get_by_role("button", name="Done").click()
        await page.get_by_text("sk-of-laptop").wait_for(state="detached")
        await page.get_by_role("button", name="Revoke laptop").click()
        await page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
        await page.get_by_text("None yet.").wait_for()


async def test_a_phone_pairs_with_the_real_daemon_by_the_code_of_a_trusted_screen(page):
    async with live_daemon.home("hollow") as home, live_daemon.daemon(home) as daemon:
        await page.goto((await daemon.admin.open_session(m.OpenSessionRequest())).url)
        await page.goto(f"{daemon.url}/#settings")
        await page.get_by_role("button", name="Network").click()
        await page.get_by_role("switch").click()
        await page.get_by_text("This holds after a restart of the daemon.").wait_for()
        await page.get_by_role("button", name="Revoke this browser").wait_for()
        key = await page.evaluate("localStorage.getItem('key')")
        offer = await page.evaluate("import('/web/api.js').then((api) => api.call('pair_offer'))")
        phone = await page.context.browser.new_context(viewport={"width": 390, "height": 844})
        other = await phone.new_page()
        await other.goto(f"{daemon.url}/#chat")
        await other.get_by_text("This service needs a key").wait_for()
        await other.goto(f"{daemon.url}/#pair={offer['token']}")
        await other.get_by_label("Name of this device").fill("my phone")
        await other.get_by_role("button", name="Pair").click()
        await other.get_by_label("Message").wait_for()
        assert await other.evaluate("localStorage.getItem('key')") not in (None, key)
        wide = "document.documentElement.scrollWidth - innerWidth"
        assert await other.evaluate(wide) <= 0
        await page.reload()
        await page.get_by_role("button", name="Network").click()
        await page.get_by_role("button", name="Revoke my phone").wait_for()
        await page.get_by_role("button", name="Revoke my phone").click()
        await page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
        await other.get_by_text("This service needs a key").wait_for()


@pytest.mark.parametrize(("text", "known"), QR_CODES.items())
async def test_a_qr_code_is_drawn_as_the_standard_says(page, admin, text, known):
    async with serve(admin=admin) as server:
        await page.goto(server.url)
        draw = "(text) => import('/web/qr.js').then((qr) => qr.qrCode(text))"
        rows = await page.evaluate(draw, text)
        joined = "\n".join("".join(map(str, row)) for row in rows)
        assert (len(rows), hashlib.sha256(joined.encode()).hexdigest()) == known


async def test_the_network_page_shows_a_code_where_the_network_is_let_in(page, admin):
    admin.let_the_network_in("this browser")
    options = HttpOptions(api_key_hashes=(hashlib.sha256(b"k").hexdigest(),))
    await page.add_init_script("localStorage.setItem('key', 'k')")
    async with serve(admin=admin, options=options) as server:
        await page.goto(f"{server.url}/#settings")
        await page.get_by_role("button", name="Network").click()
        await page.get_by_role("button", name="Show a code").click()
        await page.get_by_label("QR code to pair a device").wait_for()
        await page.get_by_text(f"{server.url}/#pair=").wait_for()


async def test_an_encrypted_network_page_says_what_a_device_must_trust(page, admin, tmp_path):
    admin.let_the_network_in("this browser")
    authority = Authority(tmp_path)
    authority.certificate(own_names())
    options = HttpOptions(
        api_key_hashes=(hashlib.sha256(b"k").hexdigest(),), tls_port=5414, authority=authority.file
    )
    await page.add_init_script("localStorage.setItem('key', 'k')")
    async with serve(admin=admin, options=options) as server:
        await page.goto(f"{server.url}/#settings")
        await page.get_by_role("button", name="Network").click()
        await page.get_by_label("Encrypted (HTTPS)").check()
        await page.get_by_text("after a restart").wait_for()
        assert admin.config["http.tls"].value == "auto"
        admin.daemon.https_address = "0.0.0.0:5414"
        await page.get_by_text("after a restart").wait_for(state="hidden")
        await page.get_by_role("button", name="Show a code").click()
        await page.get_by_text("https://127.0.0.1:5414/#pair=").wait_for()
        await page.get_by_text("let the device trust").click()
        await page.get_by_text(fingerprint(authority.file)).wait_for()


@pytest.mark.parametrize("path", ["/admin/status", "/admin/add_key", "/admin/pair_offer", "/pair"])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://attacker.invalid"}, 403),
        ({"Host": "rebound.attacker.invalid"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),  # what a form of another page can send
    ],
)
async def test_other_pages_and_names_are_turned_away(admin, path, headers, status):
    async with serve(admin=admin) as server, aiohttp.ClientSession() as http:
        given = {"Content-Type": "application/json", **headers}
        async with http.post(server.url + path, data="{}", headers=given) as answer:
            assert answer.status == status
    assert not admin.keys
