"""What a stream's reader sees, and what it can hold: alike for plain and kept answers and `/admin`.

One terminal event whatever happens, a bound on the bytes, and no reader that stays for ever.
"""

from __future__ import annotations

import asyncio
import gc
import json
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import aiohttp
import pytest
from scripted_backend import MODEL, Script, ScriptedBackend, Server, serve, text

from swiftlm_proto import messages as m
from swiftlmd.config.http import HttpOptions
from swiftlmd.faults import Kind, ServiceError
from swiftlmd.http.context import CONTEXT
from swiftlmd.http.event_log import EventLog, Forgotten

KEY = "a-key-that-nobody-guesses"
KEPT = {"X-Keep-Answer": KEY}
USER = [{"role": "user", "content": "x"}]
BODY = {"model": MODEL, "messages": USER, "stream": True}
MESSAGES = {"model": MODEL, "messages": USER, "stream": True, "max_tokens": 9}
QUICK = HttpOptions(port=0, first_comment_s=0.05, comment_s=0.05, stall_s=0.3)
STALLING = HttpOptions(port=0, first_comment_s=0.05, comment_s=20.0, stall_s=0.3)


class Late(ScriptedBackend):
    """Waits for `release`, then raises `error` or ends by a fault."""

    def __init__(self, error: Exception | None = None, fault: m.Fault | None = None) -> None:
        super().__init__()
        self.release = asyncio.Event()
        self.error = error
        self.fault = fault

    async def generate(self, model, request, *, route, client=""):
        await self.release.wait()
        if self.error is not None:
            raise self.error
        finished = m.Finished(reason=m.FinishedReason.ERROR, fault=self.fault)
        yield m.SequenceEvent(request_id=request.request_id, finished=finished)


def late_failures() -> list[Late]:
    fault = m.Fault(kind=Kind.SHUTTING_DOWN, message="it ended")
    return [
        Late(error=ServiceError(Kind.NOT_ENOUGH_MEMORY, "it ended")),
        Late(fault=fault),
        Late(error=RuntimeError("it ended")),
    ]


@pytest.mark.parametrize("headers", [{}, KEPT], ids=["plain", "kept"])
@pytest.mark.parametrize("number", range(3), ids=["refused", "fault", "bug"])
async def test_what_fails_after_a_comment_is_told_in_the_stream(http, headers, number):
    backend = late_failures()[number]
    async with serve(backend, QUICK) as server:
        url = server.url + "/v1/chat/completions"
        async with http.post(url, json=BODY, headers=headers) as reply:
            assert (await reply.content.readline()).startswith(b": ")
            backend.release.set()
            raw = await reply.read()
    assert raw.count(b'data: {"error"') == 1
    assert b"[DONE]" not in raw


async def test_a_stopped_service_tells_the_reader_of_a_kept_answer(http):
    backend = Late()
    async with (
        serve(backend, QUICK) as server,
        http.post(server.url + "/v1/chat/completions", json=BODY, headers=KEPT) as reply,
    ):
        await reply.content.readline()
        await server.app[CONTEXT].answers.close()
        assert b'"code":"aborted"' in await reply.read()


async def test_a_very_long_kept_answer_is_answered_to_its_end(http):
    words = 25_000
    async with serve(ScriptedBackend(default=text(*[" word"] * words))) as server:
        url = server.url + "/v1/chat/completions"
        async with http.post(url, json=BODY, headers=KEPT) as reply:
            raw = await reply.read()
        assert raw.count(b'"content":" word"') == words
        assert raw.endswith(b"data: [DONE]\n\n")
        assert b'"error"' not in raw
        assert server.app[CONTEXT].answers.find(KEY).num_bytes < 1 << 20
        async with http.get(f"{server.url}/v1/answers/{KEY}?from=20000") as reply:
            events = raw.split(b"\n\n")
            assert (await reply.read()).split(b"\n\n") == events[20000:]


def test_a_log_forgets_its_oldest_events_only_beyond_its_bound_and_says_so():
    events = EventLog(max_bytes=4000)
    sent = [f"data: {number * 7919 % 100_003} {number}\n\n".encode() for number in range(20_000)]
    for event in sent:
        events.append(event)
        while events.is_over:
            events.forget_oldest()
    assert 0 < events.first < 20_000
    assert events.num_bytes <= 4000 + (1 << 16) + 100
    with pytest.raises(Forgotten):
        events.read(0)
    at, read = events.first, b""
    while at < events.num_events:
        data, at = events.read(at)
        read += data
    assert read == b"".join(sent[events.first :])
    assert events.read(20_000) == (b"", 20_000)


async def test_a_reader_that_asks_for_what_is_forgotten_is_told_where_to_begin(http, monkeypatch):
    monkeypatch.setattr("swiftlmd.http.resumable_streams._MAX_BYTES", 2000)
    async with serve(ScriptedBackend(default=text(*[" word"] * 5000))) as server:
        url = server.url + "/v1/chat/completions"
        async with http.post(url, json=BODY, headers=KEPT) as reply:
            assert (await reply.read()).endswith(b"[DONE]\n\n")
        first = server.app[CONTEXT].answers.find(KEY).first_event
        assert first > 0
        async with http.get(f"{server.url}/v1/answers/{KEY}?from=0") as reply:
            assert reply.status == 410
            assert str(first) in (await reply.json())["error"]["message"]
        async with http.get(f"{server.url}/v1/answers/{KEY}?from={first}") as reply:
            assert reply.status == 200
            assert (await reply.read()).endswith(b"[DONE]\n\n")


class Talkative(m.AdminBase):
    """Its status is large; its list of requests fails after one event."""

    def __init__(self, error: Exception | None = None) -> None:
        self.watching = 0
        self.error = error

    async def watch_status(self, message: m.WatchStatusRequest) -> AsyncIterator[m.DaemonStatus]:
        self.watching += 1
        try:
            while True:
                yield m.DaemonStatus(warnings=["x" * 50_000])
                if self.error is not None:
                    raise self.error
                await asyncio.sleep(0)
        finally:
            self.watching -= 1


@asynccontextmanager
async def stalled(server: Server, head: str, body: str = "") -> AsyncIterator[None]:
    """A client that sends a request and never reads."""
    host, port = server.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port), limit=1024)
    writer.transport.pause_reading()
    lines = (f"{head} HTTP/1.1", f"Host: {host}", f"Content-Length: {len(body)}")
    writer.write("\r\n".join([*lines, "Content-Type: application/json", "", body]).encode())
    try:
        yield
    finally:
        writer.close()


async def gone(server: Server, within_s: float = 3.0) -> None:
    """Every connection is done with its request."""
    async with asyncio.timeout(within_s):
        await server.app[CONTEXT].exchanges.idle.wait()


async def under_way(server: Server) -> None:
    async with asyncio.timeout(3):
        while server.app[CONTEXT].exchanges.idle.is_set():  # noqa: ASYNC110 - no event for it
            await asyncio.sleep(0)


async def test_a_stalled_reader_of_a_kept_answer_is_dropped_and_holds_one_piece(http):
    async with serve(ScriptedBackend(default=text(*["x" * 50_000] * 80)), STALLING) as server:
        url = server.url + "/v1/chat/completions"
        async with http.post(url, json=BODY, headers=KEPT) as reply:
            await reply.read()
        gc.collect()
        tracemalloc.start()
        async with stalled(server, f"GET /v1/answers/{KEY}?from=0"):
            await under_way(server)
            held = tracemalloc.get_traced_memory()[0]
            tracemalloc.stop()
            assert held < 1_500_000
            await gone(server)


async def test_a_stalled_reader_of_an_admin_stream_is_dropped():
    admin = Talkative()
    async with (
        serve(options=STALLING, admin=admin) as server,
        stalled(server, "POST /admin/watch_status", "{}"),
        asyncio.timeout(4),
    ):
        while not admin.watching:  # noqa: ASYNC110 - no event for it
            await asyncio.sleep(0)
        while admin.watching:  # noqa: ASYNC110 - no event for it
            await asyncio.sleep(0.01)


async def test_a_stalled_reader_of_a_whole_answer_is_dropped():
    async with serve(ScriptedBackend(default=text("x" * 8_000_000)), STALLING) as server:
        body = json.dumps({"model": MODEL, "messages": USER})
        async with stalled(server, "POST /v1/chat/completions", body):
            await under_way(server)
            await gone(server)


async def test_a_slow_reader_that_goes_on_reading_is_not_dropped(http):
    async with serve(ScriptedBackend(default=text(*["x" * 50_000] * 60)), STALLING) as server:
        body = {"model": MODEL, "messages": USER, "stream": True}
        read = 0
        async with http.post(server.url + "/v1/chat/completions", json=body) as reply:
            for _ in range(12):  # longer than a stall, a little at a time
                await asyncio.sleep(0.05)
                read += len(await reply.content.read(200_000))
            read += len(await reply.read())
    assert read > 3_000_000


async def test_ended_answers_make_room_whoever_still_reads_them(http, monkeypatch):
    monkeypatch.setattr("swiftlmd.http.resumable_streams._MAX_ANSWERS", 2)
    async with serve(ScriptedBackend(default=text(*["x" * 50_000] * 80))) as server:
        url = server.url + "/v1/chat/completions"
        for number in range(2):
            headers = {"X-Keep-Answer": f"{KEY}-{number}"}
            async with http.post(url, json=BODY, headers=headers) as reply:
                await reply.read()
        async with stalled(server, f"GET /v1/answers/{KEY}-0?from=0"):
            await under_way(server)
            async with http.post(url, json=BODY, headers=KEPT) as reply:
                assert reply.status == 200


async def test_a_refused_request_may_use_its_key_again(http):
    backend = ScriptedBackend(refusal=ServiceError(Kind.BUSY, "full", retry_after_s=1))
    async with serve(backend) as server:
        url = server.url + "/v1/chat/completions"
        async with http.post(url, json=BODY, headers=KEPT) as reply:
            assert reply.status == 429
        async with http.get(f"{server.url}/v1/answers/{KEY}") as reply:
            assert reply.status == 429  # for one whose connection broke before it read this
        backend.refusal = None
        async with http.post(url, json=BODY, headers=KEPT) as reply:
            assert reply.status == 200


@pytest.mark.parametrize(
    ("headers", "line"),
    [({}, b"event: ping\n"), (KEPT, b": waiting\n")],  # who comes back to a kept one counts events
    ids=["plain", "kept"],
)
async def test_silence_is_filled_in_plain_and_kept_streams(http, headers, line):
    def never(number: int) -> asyncio.Future[None] | None:
        return asyncio.get_running_loop().create_future() if number == 1 else None

    backend = ScriptedBackend(default=text("one", "two", before=never))
    options = replace(QUICK, comment_s=0.1, first_comment_s=0.02)
    async with serve(backend, options) as server:
        url = server.url + "/v1/messages"
        async with http.post(url, json=MESSAGES, headers=headers) as reply:
            async with asyncio.timeout(5):
                while await reply.content.readline() != line:
                    pass


async def test_a_stalled_reader_is_dropped_after_its_own_limit_not_after_a_comments(http):
    """comment_s is 20 s here."""
    async with (
        serve(ScriptedBackend(default=text(*["x" * 50_000] * 200)), STALLING) as server,
        stalled(server, "POST /v1/chat/completions", json.dumps(BODY)),
    ):
        await under_way(server)
        await gone(server)


@pytest.mark.parametrize(
    "error", [OSError("disk"), ServiceError(Kind.INVALID, "bad"), ValueError("x")], ids=repr
)
async def test_an_admin_stream_that_fails_ends_with_an_event_and_the_connection_goes_on(error):
    admin = Talkative(error)
    async with serve(admin=admin) as server:
        host, port = server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /admin/watch_status HTTP/1.1\r\nHost: {host}\r\nContent-Length: 2\r\n"
        get = f"GET /ready HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        writer.write(f"{head}Content-Type: application/json\r\n\r\n{{}}{get}".encode())
        raw = await reader.read()
        writer.close()
    first, _, second = raw.partition(b"\r\n0\r\n\r\n")
    assert first.count(b"HTTP/1.1") == 1
    assert first.count(b'data: {"error"') == 1
    assert second.startswith(b"HTTP/1.1 200 OK")


async def test_http_1_0_clients_see_the_end_of_a_stream():
    async with serve() as server:
        host, port = server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        body = json.dumps(BODY)
        head = "POST /v1/chat/completions HTTP/1.0\r\nConnection: keep-alive\r\n"
        writer.write(f"{head}Host: {host}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        async with asyncio.timeout(3):
            raw = await reader.read()  # to the end of the connection
        writer.close()
    assert raw.endswith(b"data: [DONE]\n\n")


# -- what the books say


@dataclass(frozen=True, slots=True)
class Books:
    """Samples of /metrics."""

    samples: dict[str, float]

    def of(self, name: str, **labels: str) -> float:
        wanted = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
        return self.samples.get(f"{name}{{{wanted}}}" if labels else name, 0.0)


async def books(http: aiohttp.ClientSession, server: Server) -> Books:
    async with http.get(server.url + "/metrics") as reply:
        lines = (await reply.text()).splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    found = {}
    for name, _, value in pairs:
        head, brace, labels = name.partition("{")
        ordered = ",".join(sorted(labels.rstrip("}").split(","))) if brace else ""
        found[f"{head}{{{ordered}}}" if brace else head] = float(value)
    return Books(found)


def tokens(found: Books) -> tuple[float, float]:
    prompt = found.of("swiftlm_prompt_tokens_total", model=MODEL)
    return prompt, found.of("swiftlm_tokens_generated_total", model=MODEL)


def outcome(found: Books, name: str, route: str = "chat") -> float:
    return found.of("swiftlm_generations_total", outcome=name, route=route)


async def settled(server: Server) -> None:
    await server.backend.wait_until(lambda: server.backend.running == 0)
    async with asyncio.timeout(3):
        while server.app[CONTEXT].gate.inside:  # noqa: ASYNC110 - no event for it
            await asyncio.sleep(0)
    await gone(server)


def held_at(last: int, release: asyncio.Event) -> Script:
    def before(number: int) -> asyncio.Future[None] | None:
        return asyncio.ensure_future(release.wait()) if number == last else None

    return text(*[" word"] * 100, before=before)


async def test_a_kept_answer_whose_client_comes_back_is_booked_whole(http, caplog):
    release = asyncio.Event()
    caplog.set_level("INFO", logger="swiftlmd.access")
    async with serve(ScriptedBackend(default=held_at(50, release))) as server:
        url = server.url + "/v1/chat/completions"
        async with http.post(url, json=BODY, headers=KEPT) as reply:
            await reply.content.readany()
        await gone(server)
        release.set()
        async with http.get(f"{server.url}/v1/answers/{KEY}") as reply:
            await reply.read()
        found = await books(http, server)
    assert tokens(found) == (12, 100)
    assert outcome(found, "ok") == 1
    lines = [r.fields for r in caplog.records if hasattr(r, "fields")]
    assert sum(line["completion"] for line in lines) == 100


async def test_tokens_of_a_stream_whose_client_leaves_are_booked(http, caplog):
    release = asyncio.Event()
    caplog.set_level("INFO", logger="swiftlmd.access")
    async with serve(ScriptedBackend(default=held_at(50, release))) as server:
        async with http.post(server.url + "/v1/chat/completions", json=BODY) as reply:
            raw = b""
            while raw.count(b" word") < 50:
                raw += await reply.content.readany()
        await settled(server)
        found = await books(http, server)
    assert tokens(found) == (12, 50)
    assert outcome(found, "client_left") == 1
    assert [r.fields["completion"] for r in caplog.records if hasattr(r, "fields")] == [50]


async def test_an_outage_is_no_success(http):
    fault = m.Fault(kind=Kind.INTERNAL, message="the engine died")
    async with serve(ScriptedBackend(default=text(*["x"] * 100, fault=fault))) as server:
        for headers in ({}, KEPT):
            url = server.url + "/v1/chat/completions"
            async with http.post(url, json=BODY, headers=headers) as reply:
                assert b"the engine died" in await reply.read()
        found = await books(http, server)
    assert tokens(found) == (24, 200)
    assert outcome(found, "internal_error") == 2
    assert outcome(found, "ok") == 0


async def test_refusals_and_embeddings_have_their_outcome(http):
    backend = ScriptedBackend()
    async with serve(backend) as server:
        embed = {"model": MODEL, "input": ["a", "b"]}
        async with http.post(server.url + "/v1/embeddings", json=embed) as reply:
            assert reply.status == 200
        backend.refusal = ServiceError(Kind.BUSY, "full")
        async with http.post(server.url + "/v1/chat/completions", json=BODY) as reply:
            assert reply.status == 429
        found = await books(http, server)
    assert outcome(found, "ok", "embeddings") == 1
    assert outcome(found, "queue_full") == 1
    assert tokens(found)[0] == 6
