"""What happens to a request that does not simply end: left, stalled, faulty, slow."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest
from scripted_backend import Script, ScriptedBackend, Server, serve, text

from swiftlm_proto import messages as m
from swiftlmd.config.http import HttpOptions
from swiftlmd.faults import Kind, MemoryFull, ServiceError
from swiftlmd.http.context import CONTEXT

USER = [{"role": "user", "content": "hi"}]
# path, and a body that the path accepts
GENERATING = [
    ("/v1/chat/completions", {"messages": USER}),
    ("/v1/completions", {"prompt": "hi"}),
    ("/v1/completions", {"prompt": ["hi", "hi"]}),
    ("/v1/messages", {"messages": USER, "max_tokens": 100}),
    ("/v1/responses", {"input": "hi"}),
]
IMPATIENT = HttpOptions(port=0, first_comment_s=0.01, comment_s=0.01)


def never(number: int) -> asyncio.Future[None] | None:
    """Holds a script before its third delta for ever."""
    return asyncio.get_running_loop().create_future() if number == 2 else None


def held() -> ScriptedBackend:
    return ScriptedBackend(default=text("one", "two", "three", before=never))


def broken(kind: m.FaultKind = Kind.INTERNAL, **changes: object) -> Script:
    fault = m.Fault(kind=kind, message="the engine died", retry_after_s=3)
    return text("some", "text", fault=fault, **changes)


async def nothing_runs(server: Server) -> None:
    """Waits until the backend and the gate are empty."""
    await server.backend.wait_until(lambda: server.backend.running == 0)
    await until(lambda: not server.app[CONTEXT].gate.inside)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0)


@pytest.mark.parametrize(("path", "body"), GENERATING)
async def test_a_client_that_leaves_a_stream_ends_its_generation(http, path, body):
    async with serve(held()) as server:
        async with http.post(server.url + path, json={**body, "stream": True}) as reply:
            await reply.content.readany()
        await nothing_runs(server)
        assert server.backend.aborted >= 1


@pytest.mark.parametrize(("path", "body"), GENERATING)
async def test_a_client_that_leaves_a_whole_answer_ends_its_generation(http, path, body):
    async with serve(held()) as server:
        post = asyncio.ensure_future(http.post(server.url + path, json=body))
        await server.backend.wait_until(lambda: server.backend.running > 0)
        post.cancel()
        await nothing_runs(server)
        assert server.backend.aborted >= 1


@pytest.mark.parametrize(("path", "body"), GENERATING)
async def test_a_fault_after_text_is_an_error_event_and_never_a_clean_end(http, path, body):
    async with serve(ScriptedBackend(default=broken())) as server:
        async with http.post(server.url + path, json={**body, "stream": True}) as reply:
            assert reply.status == 200
            raw = (await reply.read()).decode()
        assert "the engine died" in raw
        for clean_end in ("[DONE]", "message_stop", "response.completed", '"finish_reason":"'):
            assert clean_end not in raw


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), GENERATING)
@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (Kind.CONTEXT_TOO_LONG, 400),
        (Kind.BUSY, 429),
        (Kind.NOT_ENOUGH_MEMORY, 507),
        (Kind.SHUTTING_DOWN, 503),
        (Kind.DEADLINE, 504),
        (Kind.INTERNAL, 500),
    ],
)
async def test_a_fault_before_any_text_is_an_http_error(http, kind, status, path, body, stream):
    fault = m.Fault(kind=kind, message="no", retry_after_s=7)
    backend, body = ScriptedBackend(default=Script(fault=fault)), {**body, "stream": stream}
    async with serve(backend) as server, http.post(server.url + path, json=body) as reply:
        assert reply.status == status
        answer = await reply.json()
    assert "no" in answer["error"]["message"]
    if status in (429, 503):
        assert reply.headers["Retry-After"] == "7"
    assert (reply.headers.get("x-should-retry") == "false") == (status == 507)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_backend_that_refuses_is_an_http_error(http, stream):
    refusal = ServiceError(Kind.BUSY, "queue is full", retry_after_s=2)
    async with serve(ScriptedBackend(refusal=refusal)) as server:
        body = {"messages": USER, "stream": stream}
        async with http.post(server.url + "/v1/chat/completions", json=body) as reply:
            assert reply.status == 429
            assert reply.headers["Retry-After"] == "2"


@pytest.mark.parametrize("kind", [Kind.MODEL_BROKEN, Kind.NO_DEVICE, Kind.NOT_ENOUGH_MEMORY])
async def test_what_asking_again_does_not_help_names_no_time_to_ask_again(http, kind):
    refusal = ServiceError(kind, "the weights are damaged", retry_after_s=3)
    async with serve(ScriptedBackend(refusal=refusal)) as server:
        body = {"messages": USER}
        async with http.post(server.url + "/v1/chat/completions", json=body) as reply:
            assert reply.headers["x-should-retry"] == "false"
            assert "Retry-After" not in reply.headers


@pytest.mark.parametrize("stream", [False, True])
async def test_no_memory_now_is_told_apart_from_what_never_fits(http, stream):
    never = ServiceError(Kind.NOT_ENOUGH_MEMORY, "needs 40 GB")
    not_now = MemoryFull("needs 4 GB, 2 GB available", retry_after_s=9)
    for refusal, status, code in ((never, 507, "cannot_fit"), (not_now, 503, "memory_full")):
        async with serve(ScriptedBackend(refusal=refusal)) as server:
            body = {"messages": USER, "stream": stream}
            async with http.post(server.url + "/v1/chat/completions", json=body) as reply:
                assert reply.status == status
                assert (await reply.json())["error"]["code"] == code
                is_final = reply.headers.get("x-should-retry") == "false"
                assert (is_final, reply.headers.get("Retry-After")) == (
                    (True, None) if status == 507 else (False, "9")
                )


async def test_an_engine_that_goes_silent_early_is_an_error_not_a_short_answer(http):
    class Silent(ScriptedBackend):
        async def generate(self, model, request, *, route, client=""):
            yield m.SequenceEvent(request_id=request.request_id, delta=m.Delta(content="half"))

    async with serve(Silent()) as server:
        body = {"messages": USER}
        async with http.post(server.url + "/v1/chat/completions", json=body) as reply:
            assert reply.status == 500
        body["stream"] = True
        async with http.post(server.url + "/v1/chat/completions", json=body) as reply:
            raw = (await reply.read()).decode()
        assert '"error"' in raw
        assert "[DONE]" not in raw


async def test_a_bug_in_the_backend_is_answered_and_logged_with_its_stack(http, caplog):
    class Buggy(ScriptedBackend):
        async def generate(self, model, request, *, route, client=""):
            yield m.SequenceEvent(request_id=request.request_id, delta=m.Delta(content="half"))
            raise RuntimeError("a bug")

    async with serve(Buggy()) as server:
        body = {"messages": USER, "stream": True}
        async with http.post(server.url + "/v1/chat/completions", json=body) as reply:
            raw = (await reply.read()).decode()
    assert "internal_error" in raw
    assert "a bug" not in raw
    assert "RuntimeError: a bug" in caplog.text


async def test_comments_with_prefill_progress_come_while_nothing_else_does(http):
    release: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    script = text(
        "late",
        before=lambda number: release,
        progress=(m.Progress(done_tokens=512, total_tokens=4096),),
    )
    async with serve(ScriptedBackend(default=script), IMPATIENT) as server:
        body = {"messages": USER, "stream": True}
        async with http.post(server.url + "/v1/chat/completions", json=body) as reply:
            assert reply.status == 200
            for _ in range(3):
                assert await reply.content.readline() == b": prefill 512/4096\n"
                assert await reply.content.readline() == b"\n"
            release.set_result(None)
            rest = (await reply.read()).decode()
    assert "late" in rest
    assert rest.endswith("data: [DONE]\n\n")


async def test_a_fault_after_a_comment_is_an_error_event(http):
    release: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    script = broken(before=lambda number: release)
    async with serve(ScriptedBackend(default=script), IMPATIENT) as server:
        body = {"messages": USER, "stream": True}
        async with http.post(server.url + "/v1/chat/completions", json=body) as reply:
            assert (await reply.content.readline()).startswith(b": ")
            release.set_result(None)
            raw = (await reply.read()).decode()
    error = json.loads(raw.split("data: ")[-1])["error"]
    assert error["code"] == "internal_error"


async def test_anthropic_streams_ping_once_they_have_begun(http):
    async with serve(held(), IMPATIENT) as server:
        body = {"messages": USER, "max_tokens": 5, "stream": True}
        async with http.post(server.url + "/v1/messages", json=body) as reply:
            async with asyncio.timeout(5):
                while await reply.content.readline() != b"event: ping\n":
                    pass
            assert await reply.content.readline() == b'data: {"type":"ping"}\n'


async def test_a_reader_that_takes_nothing_is_dropped(http):
    class Endless(ScriptedBackend):
        async def generate(self, model, request, *, route, client=""):
            self.running += 1
            self.changed.set()
            try:
                while True:
                    delta = m.Delta(content="x" * 10_000)
                    yield m.SequenceEvent(request_id=request.request_id, delta=delta)
                    await asyncio.sleep(0)
            finally:
                self.running -= 1
                self.changed.set()

    options = HttpOptions(port=0, first_comment_s=0.05, comment_s=0.05, stall_s=0.2)
    async with serve(Endless(), options) as server:
        host, port = server.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1024)
        body = json.dumps({"messages": USER, "stream": True})
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        writer.transport.pause_reading()
        await server.backend.wait_until(lambda: server.backend.running > 0)
        await server.backend.wait_until(lambda: server.backend.running == 0, 10)
        writer.close()


async def test_more_generations_than_allowed_are_told_to_come_back(http):
    async with serve(held(), HttpOptions(port=0, max_generations=1)) as server:
        url, body = server.url + "/v1/chat/completions", {"messages": USER, "stream": True}
        async with http.post(url, json=body) as first:
            await first.content.readany()
            async with http.post(url, json={"messages": USER}) as second:
                assert second.status == 429
                assert "Retry-After" in second.headers
            async with http.get(server.url + "/health") as health:
                assert health.status == 200


async def test_a_cancelled_request_is_not_answered_as_a_finished_one(http):
    script = text("half", reason=m.FinishedReason.ABORT)
    async with serve(ScriptedBackend(default=script)) as server:
        body = {"messages": USER}
        async with http.post(server.url + "/v1/chat/completions", json=body) as reply:
            assert reply.status == 499
            assert (await reply.json())["error"]["code"] == "aborted"


async def test_twenty_disconnects_at_once_leave_nothing_behind(http):
    async with serve(held()) as server:

        async def leave_early() -> None:
            body = {"messages": USER, "stream": True}
            async with http.post(server.url + "/v1/chat/completions", json=body) as reply:
                await reply.content.readany()

        before = asyncio.all_tasks()
        await asyncio.gather(*(leave_early() for _ in range(20)))
        await server.backend.wait_until(lambda: server.backend.aborted == 20)
        await nothing_runs(server)
        await until(lambda: not any("tick" in repr(t) for t in asyncio.all_tasks() - before))


@pytest.mark.parametrize("whole", [True, False])
async def test_the_log_tells_a_client_that_left_early_from_one_that_had_its_answer(
    http, caplog, whole
):
    caplog.set_level("INFO", "swiftlmd.access")
    backend = ScriptedBackend() if whole else held()
    async with serve(backend) as server:
        body = {"messages": USER, "stream": True}
        async with http.post(server.url + "/v1/chat/completions", json=body) as reply:
            raw = b""
            while (b"[DONE]" if whole else b"two") not in raw:
                raw += await reply.content.readany()
        await nothing_runs(server)
        await until(lambda: bool(caplog.records))
    [record] = [r for r in caplog.records if r.name == "swiftlmd.access"]
    assert record.fields["status"] == (200 if whole else 499)
    assert record.fields["outcome"] == ("ok" if whole else "client_left")
