"""No 5xx from anything a client sends: a corpus of hostile requests against every dialect."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from noting_services import fake
from scripted_backend import MODEL, ScriptedBackend, serve

from swiftlm_proto import messages as m
from swiftlmd.config.http import HttpOptions

SAID = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": SAID,
        "max_tokens": 3,
        "stop": ["x"],
        "logit_bias": {"5": 1},
        "response_format": SCHEMA,
        "tools": TOOLS,
        "tool_choice": "auto",
        "n": 1,
        "seed": 1,
        "temperature": 1.0,
        "stream_options": {"include_usage": True},
        "chat_template_kwargs": {"a": 1},
    },
    "/v1/completions": {"prompt": "hi", "suffix": "x", "logprobs": 1, "echo": False, "best_of": 1},
    "/v1/messages": {"messages": SAID, "max_tokens": 3, "system": "s", "tools": [], "thinking": {}},
    "/v1/responses": {"input": "hi", "text": {}, "tools": [], "reasoning": {}, "include": []},
    "/v1/embeddings": {"input": ["a"], "dimensions": 2, "encoding_format": "float"},
    "/v1/messages/count_tokens": {"messages": SAID},
    "/tokenize": {"content": "hi"},
    "/detokenize": {"tokens": [1]},
    "/api/chat": {"messages": SAID, "options": {"num_ctx": 5}, "format": "json", "stream": False},
    "/api/generate": {"prompt": "hi", "options": {}, "stream": False, "images": []},
    "/api/show": {},
    "/admin/calibrations": {"choices": [{}]},
    "/admin/load": {"options": {"gpu_layers": "1"}},
    "/admin/plan": {},
}
DEEP: Any = "x"
for _ in range(150):
    DEEP = {"a": DEEP}
ODD: tuple[Any, ...] = (
    None, True, -1, 10**30, 1e308, "", "\x00\u202e\ud800", [], [None], {}, {"": None}, [[[]]], DEEP,
    "-" * 5000,
)  # fmt: skip
ADDRESSES = (
    "https://[::1/",
    "https://" + "a" * 70 + ".example/",
    "data:",
    "data:image/png;base64,%",
    "file:/x",
    "https://127\u30020\u30020\u30021/",
    "https://\ud800/",
    "https://a:99999/",
    "x" * 100_000,
    "https://",
    "data:image/png," + "%41" * 50,
    "https://user@[fe80::1%25lo]/",
)
HEADS: tuple[dict[str, str], ...] = (
    *(
        {"Origin": value}
        for value in ("http://[::1", "null", "http://", "x" * 3000, "http://a:b:c")
    ),
    *(
        {"Host": value}
        for value in ("[::1", "", "a b", "127.0.0.1:x", "evil.example", "[]:5", "." * 300)
    ),
    *({"Authorization": value} for value in ("Bearer", "Bearer \xff", "Basic !!!", "x" * 6000)),
    *(
        {"Content-Type": value}
        for value in ("", "a/b/c", "application/json; charset=x", "text/plain")
    ),
    *({"Content-Encoding": value} for value in ("br", "gzip", "x", "gzip, gzip", "deflate")),
    *({"Cookie": value} for value in ("=", "swiftlm_session=x; swiftlm_session=y", ";" * 500)),
    {"Last-Event-ID": "-1"},
    {"X-Request-Id": "\t" * 200},
    {"anthropic-version": "\xff"},
    {"Expect": "200-maybe"},
    {"Range": "bytes=5-1"},
    {"If-None-Match": '"'},
    {"Upgrade": "h2c"},
)
PATHS = (
    "/v1/models/%00",
    "/v1/models/" + "a" * 7000,
    "/v1/models/..%2f..%2fetc",
    "//",
    "/%0aforged",
    "/web/%2e%2e",
    "/v1/responses/%ff",
    "/v1/chat/completions/x?y=" + "z" * 2000,
    "/metrics?x[]=%",
    "/v1//models",
)
RAW = (
    b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"GET  / HTTP/9.9\r\n\r\n",
    b"\x16\x03\x01\x02\x00",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n"
    b"Transfer-Encoding: chunked\r\n\r\nx",
    b"GET http://[::1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nA\x00: b\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
)


def bodies() -> Iterator[tuple[str, Any]]:
    for path, valid in BODIES.items():
        whole = {"model": MODEL, **valid}
        yield from ((path, odd) for odd in ODD)
        for name in whole:
            yield from ((path, {**whole, name: odd}) for odd in ODD)
    for path in ("/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat"):
        for address in ADDRESSES:
            parts = [{"type": "image_url", "image_url": {"url": address}}]
            said = [{"role": "user", "content": parts, "images": [address]}]
            yield path, {"model": MODEL, "messages": said, "input": said, "max_tokens": 1}
        for odd in ODD:
            for key in ("role", "content", "tool_calls", "type", "name"):
                said = copy.deepcopy(SAID)
                said[0][key] = odd
                yield path, {"model": MODEL, "messages": said, "input": said, "max_tokens": 1}


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[tuple[str, aiohttp.ClientSession]]:
    admin, store = fake(m.AdminBase, []), fake(m.StoreBase, [])
    async with (
        serve(options=HttpOptions(port=0), admin=admin, store=store) as server,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(20)) as http,
    ):
        yield server.url, http


async def test_no_hostile_body_is_answered_with_a_failure_of_ours() -> None:
    wrong: list[str] = []
    cases = list(bodies())
    assert len(cases) >= 300
    async with running() as (url, http):
        for start in range(0, len(cases), 40):
            part = cases[start : start + 40]
            wrong += filter(None, await asyncio.gather(*(post(url, http, *c) for c in part)))
    assert wrong == [], "\n".join(wrong)


async def post(url: str, http: aiohttp.ClientSession, path: str, body: Any) -> str:
    content = json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    async with http.post(url + path, data=content, headers=headers) as reply:
        text = (await reply.read()).decode()
    said = f"{path} {content[:200]!r}: {reply.status} {text[:200]}"
    if reply.status >= 500 or "Error(" in text or "object has no attribute" in text:
        return said
    if reply.status >= 400 and "error" not in json.loads(text):
        return said
    return ""


async def test_a_name_of_any_length_is_cut_in_the_answer() -> None:
    name = "m" * 5_000_000
    async with running() as (url, http):
        for path, valid in BODIES.items():
            body = {**valid, "model": name}
            async with http.post(url + path, json=body) as reply:
                answer = await reply.read()
            assert len(answer) < 10_000, (path, len(answer))
        for path in ("/v1/models/", "/v1/responses/", "/", "/v1/"):
            async with http.get(url + path + "m" * 7000) as reply:
                assert len(await reply.read()) < 10_000, path


async def test_a_name_of_any_length_that_means_a_model_is_not_repeated_either() -> None:
    name = "m" * 1_000_000
    backend = ScriptedBackend(aliases={name: MODEL})
    async with serve(backend) as server, aiohttp.ClientSession() as http:
        for path, valid in BODIES.items():
            if path.startswith("/admin"):
                continue
            for stream in (False, True):
                body = {**valid, "model": name, "stream": stream}
                async with http.post(server.url + path, json=body) as reply:
                    answer = await reply.read()
                assert len(answer) < 20_000, (path, len(answer))


async def test_a_hub_that_cannot_be_asked_is_named_as_that() -> None:
    store = fake(m.StoreBase, [])

    async def search(message: m.SearchModelsRequest) -> m.SearchModelsReply:
        fault = m.Fault(kind=m.FaultKind.INTERNAL, message="the hub cannot be asked")
        return m.SearchModelsReply(fault=fault)

    store.search = search
    async with (
        serve(options=HttpOptions(port=0), store=store) as server,
        aiohttp.ClientSession() as http,
        http.post(server.url + "/admin/search", json={"text": "x"}) as reply,
    ):
        assert (reply.status, (await reply.json())["error"]["code"]) == (502, "hub_unavailable")


async def test_no_hostile_head_is_answered_with_a_failure_of_ours() -> None:
    wrong: list[str] = []
    async with running() as (url, _):
        for path in ("/", "/health", "/v1/models", "/v1/responses/x", "/admin/load"):
            for headers in HEADS:
                method = "POST" if path.startswith("/admin") else "GET"
                sent = {"Host": "localhost", "Content-Length": "2", **headers}
                head = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
                asked = f"{method} {path} HTTP/1.1\r\n{head}\r\n{{}}".encode("latin-1")
                if (status := await raw(url, asked)) >= 500:
                    wrong.append(f"{path} {headers}: {status}")
        for path in PATHS:
            status = await raw(url, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            if status >= 500:
                wrong.append(f"{path}: {status}")
        for sent in RAW:
            if (status := await raw(url, sent)) >= 500:
                wrong.append(f"{sent!r}: {status}")
    assert wrong == [], "\n".join(wrong)


async def raw(url: str, sent: bytes) -> int:
    """The status of the answer; 0 where the connection was closed without one."""
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    try:
        writer.write(sent)
        writer.write_eof()
        line = await asyncio.wait_for(reader.readline(), 10)
    except ConnectionError:
        line = b""
    finally:
        writer.close()
    words = line.split()
    return int(words[1]) if len(words) > 1 else 0
