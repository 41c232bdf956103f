"""A stream that its client asked to keep: it survives the connection and is sent from any event."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

import aiohttp
import pytest
from scripted_backend import MODEL, ScriptedBackend, serve, text

from swiftlmd.config.http import HttpOptions

KEY = "a-key-that-nobody-guesses"
END = b"\n\n"
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "stream": True}


class Gates:
    """Holds the backend before a delta until the test opens it."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    def before(self, number: int):
        return asyncio.ensure_future(self.open.wait()) if number >= 2 else None


def words(raw: bytes) -> str:
    found = re.findall(rb'"content":"([^"]*)"', raw)
    return b"".join(found).decode()


async def test_a_broken_stream_goes_on_where_it_was():
    gates = Gates()
    script = replace(text("one ", "two ", "three ", "four"), before=gates.before)
    async with serve(ScriptedBackend(default=script)) as server, aiohttp.ClientSession() as http:
        url, headers = f"{server.url}/v1/chat/completions", {"X-Keep-Answer": KEY}
        async with http.post(url, json=BODY, headers=headers) as reply:
            got = b""
            while b"two" not in got:
                got += await reply.content.readany()
        assert words(got) == "one two "  # and the client is gone
        gates.open.set()
        async with http.get(f"{server.url}/v1/answers/{KEY}?from={got.count(END)}") as reply:
            rest = await reply.read()
        assert words(got + rest) == "one two three four"
        assert (got + rest).endswith(b"data: [DONE]\n\n")
        async with http.get(f"{server.url}/v1/answers/{KEY}") as reply:
            assert await reply.read() == got + rest


async def test_silence_adds_no_event_to_a_kept_stream():
    """A client that comes back counts what it has seen; other streams hold pings."""
    gates = Gates()
    script = replace(text("one ", "two ", "three"), before=gates.before)
    options = HttpOptions(port=0, first_comment_s=0.02, comment_s=0.02)
    body = {**BODY, "max_tokens": 9}
    async with (
        serve(ScriptedBackend(default=script), options) as server,
        aiohttp.ClientSession() as http,
    ):
        url = f"{server.url}/v1/messages"
        async with http.post(url, json=body, headers={"X-Keep-Answer": KEY}) as reply:
            got = b""
            while got.count(b": waiting") < 2:
                got += await reply.content.readany()
        gates.open.set()
        seen = [event for event in got.split(END)[:-1] if not event.startswith(b":")]
        async with http.get(f"{server.url}/v1/answers/{KEY}?from={len(seen)}") as reply:
            rest = await reply.read()
        assert b"event: ping" not in got + rest
        said = re.findall(rb'"text":"([^"]+)"', b"".join(seen) + rest)
        assert b"".join(said) == b"one two three"


async def test_a_stopped_answer_ends_the_generation_and_is_forgotten():
    gates = Gates()
    script = replace(text("one ", "two ", "three "), before=gates.before)
    backend = ScriptedBackend(default=script)
    async with serve(backend) as server, aiohttp.ClientSession() as http:
        url, headers = f"{server.url}/v1/chat/completions", {"X-Keep-Answer": KEY}
        async with http.post(url, json=BODY, headers=headers) as reply:
            await reply.content.readany()
            async with http.delete(f"{server.url}/v1/answers/{KEY}") as gone:
                assert gone.status == 200
            assert b'"code":"aborted"' in (await reply.read()).split(END)[-2]
        async with http.get(f"{server.url}/v1/answers/{KEY}") as gone:
            assert gone.status == 404


@pytest.mark.parametrize("key", ["short", "x" * 65, "with a space in it.."])
async def test_a_key_that_could_be_guessed_or_is_no_name_is_refused(key):
    async with serve() as server, aiohttp.ClientSession() as http:
        url = f"{server.url}/v1/chat/completions"
        async with http.post(url, json=BODY, headers={"X-Keep-Answer": key}) as reply:
            assert reply.status == 400
            assert "X-Keep-Answer" in await reply.text()


async def test_a_refused_request_is_refused_as_ever_and_a_key_is_used_once():
    kept = {"X-Keep-Answer": KEY}
    async with (
        serve(ScriptedBackend(default=text("a"))) as server,
        aiohttp.ClientSession(headers=kept) as http,
    ):
        url = f"{server.url}/v1/chat/completions"
        async with http.post(url, json={**BODY, "model": "none"}) as reply:
            assert reply.status == 404
        async with http.post(url, json=BODY) as reply:
            assert words(await reply.read()) == "a"
        async with http.post(url, json=BODY) as reply:
            assert reply.status == 409
        async with http.get(f"{server.url}/v1/answers/{KEY}?from=x") as reply:
            assert reply.status == 400


async def test_an_answer_that_was_stopped_before_its_request_came_does_not_run():
    backend = ScriptedBackend(default=text("never"))
    async with serve(backend) as server, aiohttp.ClientSession() as http:
        url, headers = f"{server.url}/v1/chat/completions", {"X-Keep-Answer": KEY}
        async with http.delete(f"{server.url}/v1/answers/{KEY}") as early:
            assert early.status == 404
        async with http.post(url, json=BODY, headers=headers) as reply:
            assert "stopped before its request came" in await reply.text()
        assert backend.requests == []
        async with http.post(url, json=BODY, headers=headers) as reply:  # asked anew
            assert words(await reply.read()) == "never"
