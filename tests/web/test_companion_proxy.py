"""The page behind a proxy: below a path of its own, and while the daemon behind it is away."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from aiohttp import web
from companion import Machine, ask, until
from scripted_backend import Server, serve

import swiftlmd

PLACE = "/swiftlm"
_SINGLE = ("Content-Encoding", "Content-Length", "Transfer-Encoding", "Connection")


@dataclass
class Proxy:
    """Takes `/swiftlm` off each path, as nginx, Caddy and `tailscale serve` are told to."""

    daemon: Server
    port: int = 0
    away: re.Pattern[str] = re.compile("(?!)")  # paths that the daemon no longer answers
    version: str = ""  # as if the daemon were a newer one
    asked: list[str] = field(default_factory=list)
    lost: dict[str, int] = field(default_factory=dict)  # how many of the first never arrive

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{PLACE}/"

    async def pass_on(self, request: web.Request) -> web.Response:
        if not request.path.startswith(f"{PLACE}/"):
            return web.Response(status=404, text="another program's")
        path = request.raw_path.removeprefix(PLACE)
        self.asked.append(path)
        if self.away.search(path) or self.asked.count(path) <= self.lost.get(path, 0):
            return web.Response(status=502, text="<h1>Bad Gateway</h1>", content_type="text/html")
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                request.method,
                self.daemon.url + path,
                headers=request.headers,
                data=await request.read(),
                allow_redirects=False,
            ) as answer,
        ):
            headers = {k: v for k, v in answer.headers.items() if k not in _SINGLE}
            if path == "/" and self.version:
                headers["X-Page-Version"] = self.version
                headers.pop("ETag", None)
            return web.Response(status=answer.status, body=await answer.read(), headers=headers)


@asynccontextmanager
async def proxied(admin: Machine) -> AsyncIterator[Proxy]:
    async with serve(admin=admin) as server:
        proxy = Proxy(server)
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", proxy.pass_on)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        proxy.port = runner.addresses[0][1]
        yield proxy
        await runner.cleanup()


async def opened(page, proxy: Proxy) -> None:
    """The page, with its files kept by the worker."""
    await page.goto(proxy.url)
    await page.get_by_text("Ready", exact=True).wait_for()
    await page.evaluate("navigator.serviceWorker.ready")
    await until(page, "navigator.serviceWorker.controller !== null")


async def test_page_and_api_work_below_a_path(page, admin, sessions):
    async with proxied(admin) as proxy:
        wrong = []
        page.on("response", lambda answer: answer.status == 404 and wrong.append(answer.url))
        await opened(page, proxy)
        assert wrong == []
        assert {"/admin/status", "/web/app.js", "/sw.js"} <= set(proxy.asked)
        await page.goto(f"{proxy.url}open?token={sessions.offer()}")  # leads to the page again
        await page.get_by_text("Ready", exact=True).wait_for()


async def test_every_file_of_the_page_is_kept(page, admin):
    root = Path(swiftlmd.__file__).parent / "web"
    async with proxied(admin) as proxy:
        await opened(page, proxy)
        names = "caches.keys().then(([n]) => caches.open(n)).then(c => c.keys())"
        kept = await page.evaluate(f"{names}.then(all => all.map(r => r.url))")
    there = {
        f"web/{path.relative_to(root).as_posix()}"
        for path in root.rglob("*.*")
        if path.suffix in (".js", ".css", ".svg") and path.name != "sw.js"
    }
    assert {url.removeprefix(proxy.url) for url in kept} == there | {"", "manifest.webmanifest"}


async def test_a_daemon_that_is_away_behind_its_proxy_leaves_the_page(page, admin):
    async with proxied(admin) as proxy:
        await opened(page, proxy)
        proxy.away = re.compile(".")
        await page.reload()
        await page.get_by_text("Daemon away").wait_for()


async def test_a_page_has_files_of_one_version_only(page, admin):
    async with proxied(admin) as proxy:
        await opened(page, proxy)
        proxy.version = "another"
        proxy.asked.clear()
        await page.reload()
        await page.get_by_text("Ready", exact=True).wait_for()
        assert "/web/chat.js" in proxy.asked  # none from what was kept
        proxy.away = re.compile("chat.js|composer.js|talklist.js")
        await page.evaluate("caches.keys()")
        await page.reload()
        await page.wait_for_load_state("load")
        assert await page.get_by_text("Ready", exact=True).count() == 0  # no mixture runs
        proxy.away = re.compile(".")
        await page.reload()
        await page.get_by_text("Daemon away").wait_for()  # all of what was kept


async def test_a_question_that_never_arrived_is_sent_again(page, admin):
    async with proxied(admin) as proxy:
        proxy.lost["/v1/chat/completions"] = 1
        await opened(page, proxy)
        await ask(page, "are you there?")
        await page.locator(".figures").wait_for()
        assert proxy.asked.count("/v1/chat/completions") == 2
