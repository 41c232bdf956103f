"""HTTP streams under everything that readers and engines do, and what the books say afterwards.

Each example is one request: a dialect, kept or not, streamed or not; an engine that answers, dies,
goes silent or has a bug; a reader that reads, is slow, leaves, comes back, closes its half,
vanishes or stops the answer. Always: a reader that reads to the end sees one terminal event; every
request is booked once, with its outcome and all its tokens; nothing is held once all are gone.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import aiohttp
import pytest
from scripted_backend import MODEL, ScriptedBackend, Server, prompt_text, serve

from swiftlm_proto import messages as m
from swiftlmd.config.http import HttpOptions
from swiftlmd.faults import Kind, ServiceError
from swiftlmd.http.context import CONTEXT

OPTIONS = HttpOptions(
    port=0, first_comment_s=0.03, comment_s=0.03, stall_s=0.3, max_generations=10_000
)
PROMPT = 7
ENDS = ("ok", "ok", "ok", "fault", "refused", "bug", "silent", "cut")
READERS = ("whole", "whole", "slow", "leaves", "back", "half", "gone", "stops")
CODES = {"fault": "internal_error", "refused": "queue_full", "bug": "internal_error",
         "cut": "internal_error"}  # fmt: skip
TERMINAL = (b"data: [DONE]", b'"type":"message_stop"', b'"type":"response.completed"',
            b'data: {"error"', b'"type":"error"')  # fmt: skip


@dataclass(slots=True)
class Example:
    number: int
    path: str
    streamed: bool
    kept: bool
    end: str
    reader: str
    deltas: int
    at: int  # the delta before which the engine stops, the event after which the reader does
    emitted: int = 0
    started: bool = False

    @property
    def key(self) -> str:
        return f"key-of-example-{self.number:06d}"

    @property
    def body(self) -> dict[str, object]:
        words = f"example {self.number}"
        body: dict[str, object] = {"model": MODEL, "stream": self.streamed}
        if self.path == "/v1/completions":
            return {**body, "prompt": words}
        if self.path == "/v1/responses":
            return {**body, "input": words}
        return {**body, "messages": [{"role": "user", "content": words}], "max_tokens": 99}

    @property
    def is_sure(self) -> bool:
        """Whether its outcome depends on the engine alone: its reader stays, or the answer is kept
        and nobody stops it."""
        return self.end != "silent" and (
            self.reader in ("whole", "slow", "back")
            or (self.kept and self.reader in ("leaves", "half", "gone"))
        )


def example(number: int, choose: random.Random) -> Example:
    path = choose.choice(
        ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")
    )
    reader = choose.choice(READERS)
    needs_kept = reader in ("back", "stops")
    streamed = needs_kept or choose.random() < 0.8
    kept = needs_kept or (streamed and choose.random() < 0.5)
    end, deltas = choose.choice(ENDS), choose.randint(0, 30)
    if end == "silent" and reader in ("whole", "slow", "back"):
        reader = "leaves"  # it would read for ever
    return Example(number, path, streamed, kept, end, reader, deltas, choose.randint(0, 12))


@dataclass(slots=True)
class Engine(ScriptedBackend):
    examples: dict[str, Example] = field(default_factory=dict)

    async def generate(
        self, model: str, request: m.GenerateRequest, *, route: str, client: str = ""
    ) -> AsyncIterator[m.SequenceEvent]:
        self.running += 1
        one = self.examples[prompt_text(request)]
        try:
            async for event in self._events(one, request.request_id):
                yield event
        finally:
            self.running -= 1
            self.changed.set()

    async def _events(self, one: Example, name: str) -> AsyncIterator[m.SequenceEvent]:
        if one.end == "refused":
            raise ServiceError(Kind.BUSY, "full", retry_after_s=1)
        one.started = True
        yield m.SequenceEvent(request_id=name, started=m.Started(prompt_tokens=PROMPT))
        for number in range(one.deltas):
            if number == one.at and one.end != "ok":
                break
            if number % 3 == 0:
                await asyncio.sleep(0.001 * (one.number % 4))
            one.emitted += 1
            yield m.SequenceEvent(request_id=name, delta=m.Delta(content=f"w{number} "))
        if one.end == "silent":
            await asyncio.get_running_loop().create_future()
        if one.end == "bug":
            raise RuntimeError("a bug")
        if one.end == "cut":
            return
        fault = m.Fault(kind=Kind.INTERNAL, message="it died") if one.end == "fault" else None
        reason = m.FinishedReason.ERROR if fault else m.FinishedReason.STOP
        usage = m.Usage(prompt_tokens=PROMPT, completion_tokens=one.emitted)
        finished = m.Finished(reason=reason, fault=fault, usage=usage)
        yield m.SequenceEvent(request_id=name, finished=finished)


def terminals(raw: bytes) -> int:
    return sum(raw.count(mark) for mark in TERMINAL)


async def play(server: Server, http: aiohttp.ClientSession, one: Example) -> None:
    try:
        async with asyncio.timeout(10):
            await _play(server, http, one)
    except TimeoutError:
        raise AssertionError(f"never ends: {one}") from None


async def _play(server: Server, http: aiohttp.ClientSession, one: Example) -> None:
    if one.reader in ("half", "gone") or (one.end == "silent" and not one.streamed):
        await vanish(server, one)
        return
    headers = {"X-Keep-Answer": one.key} if one.kept else {}
    url = server.url + one.path
    async with http.post(url, json=one.body, headers=headers) as reply:
        if one.reader in ("whole", "slow"):
            raw = await read(reply, slow=one.reader == "slow")
        else:
            raw = await some(reply, one.at)
            if one.reader == "stops":
                async with http.delete(f"{server.url}/v1/answers/{one.key}"):
                    raw += await reply.read()
    status = reply.status
    if one.reader == "back" and status == 200:
        seen = sum(not event.startswith(b":") for event in raw.split(b"\n\n")[:-1])
        whole = [event for event in raw.split(b"\n\n")[:-1] if not event.startswith(b":")]
        async with http.get(f"{server.url}/v1/answers/{one.key}?from={seen}") as again:
            raw = b"\n\n".join([*whole, await again.read()])
            status = again.status  # of a request that was refused after a comment
    if one.reader != "leaves":
        check(one, status, raw)


def check(one: Example, status: int, raw: bytes) -> None:
    if status != 200:
        assert one.end != "ok" or one.reader == "stops", (one, raw)
        assert b'"error"' in raw or one.reader not in ("whole", "slow")
    elif one.streamed:
        assert terminals(raw) == 1, (one, raw)
    elif one.end == "ok":
        assert raw.count(b"w") >= one.deltas
    if one.end == "ok" and one.reader in ("whole", "slow", "back"):
        words = b"".join(f"w{number} ".encode() for number in range(one.deltas))
        assert joined(one, raw) == words.decode()


def joined(one: Example, raw: bytes) -> str:
    """The text of an answer, whatever the dialect."""
    if not one.streamed:
        bodies = [json.loads(raw)]
    else:
        lines = (line[6:] for line in raw.decode().splitlines() if line.startswith("data: "))
        bodies = [json.loads(line) for line in lines if line != "[DONE]"]
    return "".join(text_of(body) for body in bodies)


def text_of(body: dict[str, object]) -> str:
    match body:
        case {"choices": [{"delta": {"content": str(text)}}, *_]}:
            return text
        case {"choices": [{"message": {"content": text}}, *_]}:
            return text or ""
        case {"choices": [{"text": str(text)}, *_]}:
            return text
        case {"type": "content_block_delta", "delta": {"text": str(text)}}:
            return text
        case {"type": "response.output_text.delta", "delta": str(text)}:
            return text
        case {"type": "message", "content": list(blocks)}:
            return "".join(block.get("text", "") for block in blocks)
        case {"object": "response", "output": list(items)}:
            blocks = [block for item in items for block in item.get("content", ())]
            return "".join(block.get("text", "") for block in blocks)
    return ""


async def read(reply: aiohttp.ClientResponse, *, slow: bool) -> bytes:
    raw = b""
    while piece := await reply.content.readany():
        raw += piece
        await asyncio.sleep(0.01 if slow else 0)
    return raw


async def some(reply: aiohttp.ClientResponse, events: int) -> bytes:
    """Reads about so many events; to the end where there are fewer."""
    raw = b""
    while raw.count(b"\n\n") < events and (piece := await reply.content.readany()):
        raw += piece
        if piece.startswith(b":"):
            break  # a silent engine
    return raw


async def vanish(server: Server, one: Example) -> None:
    """Sends the request and closes its half, or resets the connection."""
    host, port = server.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps(one.body).encode()
    keep = f"X-Keep-Answer: {one.key}\r\n" if one.kept else ""
    head = f"POST {one.path} HTTP/1.1\r\nHost: {host}\r\n{keep}Content-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    while not one.started and one.end != "refused":  # noqa: ASYNC110 - no event for it
        await asyncio.sleep(0.001)
    if one.reader == "half":
        writer.write_eof()
    else:
        writer.transport.abort()
    await asyncio.sleep(0)
    writer.close()


async def books(server: Server, http: aiohttp.ClientSession) -> tuple[Counter[str], int, int]:
    """Generations by outcome, and the prompt and completion tokens."""
    outcomes: Counter[str] = Counter()
    prompt = completion = 0
    async with http.get(server.url + "/metrics") as reply:
        for line in (await reply.text()).splitlines():
            name, _, value = line.rpartition(" ")
            if name.startswith("swiftlm_generations_total"):
                outcomes[name.partition('outcome="')[2].partition('"')[0]] += int(float(value))
            elif name.startswith("swiftlm_prompt_tokens_total"):
                prompt = int(float(value))
            elif name.startswith("swiftlm_tokens_generated_total"):
                completion = int(float(value))
    return outcomes, prompt, completion


async def settled(server: Server) -> None:
    """Connections are done; what goes on without one is stopped, and then nothing is under way."""
    parts = server.app[CONTEXT]
    async with asyncio.timeout(10):
        await parts.exchanges.idle.wait()
        for answer in list(parts.answers._answers.values()):
            if not answer.ended and answer.task is not None:
                answer.task.cancel()
        while parts.gate.inside or server.backend.running:  # noqa: ASYNC110 - no event for it
            await asyncio.sleep(0.01)


async def run(seed: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swiftlmd.http.resumable_streams._MAX_ANSWERS", count + 1)
    choose = random.Random(seed)
    examples = [example(number, choose) for number in range(count)]
    engine = Engine(examples={f"example {one.number}": one for one in examples})
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with (
        serve(engine, OPTIONS) as server,
        aiohttp.ClientSession(connector=connector) as http,
    ):
        for start in range(0, count, 25):
            batch = examples[start : start + 25]
            await asyncio.gather(*(play(server, http, one) for one in batch))
        await kept_ones_ended(server, examples)
        await settled(server)
        outcomes, prompt, completion = await books(server, http)
        assert server.app[CONTEXT].body_budget.held == 0
    begun = [one for one in examples if one.started or one.end == "refused"]
    assert outcomes.total() == len(begun)
    assert completion == sum(one.emitted for one in examples)
    assert prompt == PROMPT * sum(one.started for one in examples)
    sure = Counter(CODES.get(one.end, "ok") for one in begun if one.is_sure)
    unsure = sum(not one.is_sure for one in begun)
    assert all(outcomes[outcome] >= least for outcome, least in sure.items())
    assert outcomes.total() - sure.total() == unsure


async def kept_ones_ended(server: Server, examples: list[Example]) -> None:
    """Kept answers go on without their readers, except of engines that stay silent."""
    answers = server.app[CONTEXT].answers._answers
    going_on = {one.key for one in examples if one.kept and one.end != "silent"}
    async with asyncio.timeout(10):
        while any(not a.ended for key, a in answers.items() if key in going_on):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("seed", [1, 2])
async def test_streams_end_once_and_are_booked_whatever_happens(seed, monkeypatch):
    await run(seed, 100, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 20))
async def test_streams_end_once_and_are_booked_over_a_thousand_requests(seed, monkeypatch):
    await run(seed, 1000, monkeypatch)
