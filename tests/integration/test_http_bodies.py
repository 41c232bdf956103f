"""Bodies and connections are bounded, by bytes and by rate, and refusals reach their clients."""

from __future__ import annotations

import array
import asyncio
import json
from dataclasses import replace

from scripted_backend import MODEL, serve

from swiftlm_proto import messages as m
from swiftlmd.config.http import HttpOptions
from swiftlmd.http.context import CONTEXT
from swiftlmd.http.embeddings import _floats
from swiftlmd.http.limits import BodyBudget

MIB = 1 << 20
OPTIONS = HttpOptions(port=0, max_body_bytes=MIB, body_timeout_s=0.4)
CHAT = "POST /v1/chat/completions"
USER = [{"role": "user", "content": "x"}]


class Raw:
    """A connection that a test writes to by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def head(self, line: str, length: int, **headers: str) -> None:
        named = {"Host": "localhost", "Content-Length": str(length), **headers}
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in named.items())
        self.writer.write(f"{line} HTTP/1.1\r\n{lines}\r\n".encode())

    async def status(self) -> int:
        async with asyncio.timeout(5):
            return int((await self.reader.readline()).split()[1])


async def connect(url: str) -> Raw:
    host, port = url.removeprefix("http://").split(":")
    return Raw(*await asyncio.open_connection(host, int(port)))


def padded(size: int) -> bytes:
    body = json.dumps({"model": MODEL, "messages": USER}).encode()
    return body + b" " * (size - len(body))


async def test_a_steady_slow_body_arrives_and_a_silent_or_dribbling_one_does_not():
    async with serve(options=OPTIONS) as server:
        steady = await connect(server.url)
        body = padded(400_000)
        steady.head(CHAT, len(body))
        for start in range(0, len(body), 20_000):  # 1 s, with a limit of 0.4 s
            steady.writer.write(body[start : start + 20_000])
            await asyncio.sleep(0.05)
        assert await steady.status() == 200
        for piece in (b"", b" "):
            slow = await connect(server.url)
            slow.head(CHAT, 1000)
            for _ in range(14):
                slow.writer.write(piece)
                await asyncio.sleep(0.05)
            assert await slow.status() == 408
            slow.writer.close()
        steady.writer.close()


async def test_a_refusal_reaches_a_client_that_is_still_sending():
    async with serve(options=OPTIONS) as server:
        client = await connect(server.url)
        size = 24 * MIB
        client.head(CHAT, size)
        for _ in range(size // MIB):
            client.writer.write(bytes(MIB))
            await client.writer.drain()
            await asyncio.sleep(0.1)  # longer than the 2 s that aiohttp reads on
        assert await client.status() == 413
        client.writer.close()


async def test_all_bodies_together_are_bounded_and_one_client_leaves_room_for_another():
    options = replace(OPTIONS, max_bodies_bytes=2 * MIB, body_timeout_s=30.0)
    async with serve(options=options) as server:
        budget = server.app[CONTEXT].body_budget
        greedy = [await connect(server.url) for _ in range(3)]
        for one in greedy:
            one.head(CHAT, MIB, User_Agent="greedy")
            one.writer.write(bytes(MIB - 1))
        assert await greedy[-1].status() == 429
        assert budget.held <= 2 * MIB
        other = await connect(server.url)
        body = padded(500_000)
        other.head(CHAT, len(body), User_Agent="other")
        other.writer.write(body)
        assert await other.status() == 200
        for one in (*greedy, other):
            one.writer.close()
        async with asyncio.timeout(5):
            while budget.held:  # noqa: ASYNC110 - no event for it
                await asyncio.sleep(0)


def test_a_budget_forgets_clients_that_hold_nothing():
    budget = BodyBudget(100)
    budget.take("a", 60)
    budget.give_back("a", 60)
    budget.give_back("b", 0)
    assert budget.held == 0
    assert not budget._held


async def test_pairing_reads_little_and_counts_each_peers_tries(http):
    async with serve(options=OPTIONS, admin=m.AdminBase()) as server:
        url = server.url + "/pair"
        async with http.post(url, json={"token": "x" * 5000, "name": "n"}) as reply:
            assert reply.status == 413
        for _ in range(10):
            async with http.post(url, json={"token": "x", "name": "n"}) as reply:
                assert reply.status == 403
        blocked = await connect(server.url)
        blocked.head("POST /pair", 4000, Content_Type="application/json")
        assert await blocked.status() == 429  # before a byte of the body came
        blocked.writer.close()


async def test_connections_are_bounded_and_told_so():
    async with serve(options=replace(OPTIONS, max_connections=3)) as server:
        inside = [await connect(server.url) for _ in range(3)]
        await asyncio.sleep(0.05)
        outside = await connect(server.url)
        assert await outside.status() == 503
        rest = await outside.reader.read()
        assert json.loads(rest.split(b"\r\n\r\n")[1])["error"]["code"] == "connections_full"
        inside.pop().writer.close()
        await asyncio.sleep(0.05)
        again = await connect(server.url)
        again.head("GET /ready", 0)
        assert await again.status() == 200
        for one in (*inside, outside, again):
            one.writer.close()


async def test_a_large_answer_of_embeddings_leaves_the_loop_to_others(http):
    inputs, width = 512, 1024
    async with serve() as server:
        url = server.url + "/v1/embeddings"
        body = {"model": MODEL, "input": ["x"] * inputs, "dimensions": width}
        gaps, loop = [], asyncio.get_running_loop()

        async def watch() -> None:
            last = loop.time()
            while True:
                await asyncio.sleep(0.002)
                gaps.append(loop.time() - last)
                last = loop.time()

        watching = asyncio.create_task(watch())
        async with http.post(url, json=body) as reply:
            raw = await reply.read()
        watching.cancel()
        found = json.loads(raw)
        assert len(found["data"]) == inputs
        assert found["data"][3]["embedding"][:3] == [3.0, 3.125, 3.25]
        assert found["usage"]["total_tokens"] == 3 * inputs
        # The scripted backend packs its vectors on the loop, before anything is written.
        assert sorted(gaps)[-2] < 0.15


def test_numbers_are_written_short_and_read_back_the_same():
    values = array.array("f", [0.1, 1.0, -2.5e-8, 3.4e38, float("nan"), float("inf")])
    text = _floats(values.tobytes())
    assert text == "[0.100000001,1,-2.50000003e-08,3.39999995e+38,null,null]"
    read = array.array("f", json.loads(text)[:4])
    assert read == values[:4]
