"""The OpenAPI document is true: it names every route, and no request that it allows (or nearly
allows) ends in a 5xx or a hang."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from generated_requests import Generator, without_placeholders
from jsonschema import Draft202012Validator
from scripted_backend import EMBEDDER, MODEL, ScriptedBackend, calls, serve, tool_call

from swiftlm_proto import messages as m
from swiftlmd.config.http import HttpOptions
from swiftlmd.http import admin_operations
from swiftlmd.http.app import make_app
from swiftlmd.http.openapi import ROUTE_TABLE, document

NUM_REQUESTS = 2000


def answering(service: Any) -> Any:
    """A service that reads every message to its last byte, and answers with an empty one."""
    for path, handler in service.__mapping__().items():

        async def reply(message, answer=handler.reply_type):
            bytes(message)
            return answer()

        async def replies(message, answer=handler.reply_type):
            bytes(message)
            yield answer()

        streams = handler.cardinality.server_streaming
        setattr(service, admin_operations.operation_name(path), replies if streams else reply)
    return service


class StrictBackend(ScriptedBackend):
    """Encodes every request for the wire, as the daemon does: what cannot be sent is a bug."""

    async def generate(self, model, request, *, route, client=""):
        bytes(request)
        async for event in ScriptedBackend.generate(
            self, model, request, route=route, client=client
        ):
            yield event

    async def tokenize(self, model, request):
        bytes(request)
        return await ScriptedBackend.tokenize(self, model, request)

    async def embed(self, model, request, *, request_id="", client=""):
        bytes(request)
        return await ScriptedBackend.embed(self, model, request)


SERVICES = {"admin": answering(m.AdminBase()), "store": answering(m.StoreBase())}
APP = make_app(ScriptedBackend(), HttpOptions(port=0), **SERVICES)
ROUTES = APP[ROUTE_TABLE]
DOCUMENT = document(ROUTES)
SCHEMAS = DOCUMENT["components"]["schemas"]
DIALECTS = [route for route in ROUTES if route.body is not None]


def answer() -> Any:
    deltas = [m.Delta(reasoning="hm"), m.Delta(content="x"), *tool_call("f", "{}")]
    return calls(*deltas)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A server in a thread of its own, so that a hang is seen as one."""
    started, ports = threading.Event(), []

    async def run() -> None:
        async with serve(StrictBackend(default=answer()), **SERVICES) as server:
            ports.append(int(server.url.rsplit(":", 1)[1]))
            stop = asyncio.Event()
            ports.append(lambda: loop.call_soon_threadsafe(stop.set))
            started.set()
            await stop.wait()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    assert started.wait(10)
    yield ports[0]
    ports[1]()
    thread.join(10)


def test_no_request_ends_in_a_server_error_or_a_hang(port):
    generator = Generator(Random(5413), SCHEMAS, (MODEL, EMBEDDER))
    seen: Counter[int] = Counter()
    for number in range(NUM_REQUESTS):
        table = ROUTES if number % 4 == 0 else DIALECTS  # most of what can go wrong is in these
        route = table[number // 4 % len(table) if table is ROUTES else number % len(table)]
        kind = route.body or route.message
        body = json.dumps(generator.value({"$ref": f"#/{kind.__name__}"})) if kind else ""
        path = without_placeholders(route.path, generator)
        status, raw = exchange(port, route.method, path, body)
        assert status < 500, (route.method, path, body, raw)
        if status >= 400:
            error = json.loads(raw)["error"]  # Ollama's is the text alone
            assert error if path.startswith("/api/") else error["message"], (path, body)
        seen[status] += 1
    assert seen[200] > NUM_REQUESTS / 20, f"the generator never makes a good request: {seen}"
    assert seen[400] > NUM_REQUESTS / 20, f"the generator never makes a bad request: {seen}"
    assert exchange(port, "GET", "/health", "")[0] == 200


def exchange(port: int, method: str, path: str, body: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


@pytest.mark.parametrize(
    "raw",
    [
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": [{"role": "user", "content": "\\u0000"}]}',
        b'{"messages": [{"role": "user", "content": "x"}], "seed": 1' + b"0" * 5000 + b"}",
        b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e400}',
        b'{"messages": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"messages": [{"role": "user", "content": "x"}], "a": '
        + b'{"a":' * 300
        + b"1"
        + b"}" * 301,
    ],
)
def test_json_at_the_edge_is_answered(port, raw):
    status, reply = exchange(port, "POST", "/v1/chat/completions", raw.decode())
    assert status in (200, 400), reply


def test_the_document_is_served_and_names_whatever_is_routed(port):
    status, raw = exchange(port, "GET", "/openapi.json", "")
    assert status == 200
    paths = json.loads(raw)["paths"]
    routed = {
        (route.resource.canonical, route.method.lower())
        for route in APP.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    assert {("/v1/answers/{key}", "get"), ("/pair", "post"), ("/admin/add_key", "post")} <= routed
    assert {(path, method) for path, found in paths.items() for method in found} == routed
    operations = [op["operationId"] for path in paths.values() for op in path.values()]
    assert len(set(operations)) == len(operations)


def test_its_schemas_are_schemas_and_their_references_lead_somewhere():
    for schema in SCHEMAS.values():
        Draft202012Validator.check_schema(schema)
    for name in re.findall(r'"#/components/schemas/(\w+)"', json.dumps(DOCUMENT)):
        assert name in SCHEMAS
    assert SCHEMAS["LoadModelRequest"]["properties"]["pin"] == {"type": "boolean"}
    limits = SCHEMAS["ChatRequest"]["properties"]["top_logprobs"]["anyOf"][0]
    assert (limits["minimum"], limits["maximum"]) == (0, 1000)
