"""`/admin`: the Admin service over HTTP, for our own page and nobody else's."""

from __future__ import annotations

import asyncio
import hashlib
import json

import grpclib
import pytest
from scripted_backend import serve

from swiftlm_proto import messages as m
from swiftlmd.config.http import HttpOptions


class FakeAdmin(m.AdminBase):
    def __init__(self) -> None:
        self.asked: list[object] = []
        self.watching = 0
        self.left = asyncio.Event()

    async def status(self, message):
        model = m.ModelStatus(model="x", state=m.ModelStatusState.READY, size_bytes=2**40)
        return m.DaemonStatus(version="1", models=[model], uptime_s=float("nan"))

    async def load(self, message):
        self.asked.append(message)
        yield m.OperationEvent(stage="weights", fraction=0.5)
        yield m.OperationEvent(stage="ready", fraction=1.0, done=True)

    async def watch_status(self, message):
        self.watching += 1
        try:
            while True:
                yield m.DaemonStatus(version="1")
                await asyncio.sleep(0)
        finally:
            self.watching -= 1
            self.left.set()

    async def unload(self, message):
        fault = m.Fault(kind=m.FaultKind.BUSY, message="two requests are running")
        return m.UnloadModelReply(fault=fault)

    async def get_config(self, message):
        raise grpclib.GRPCError(grpclib.Status.INVALID_ARGUMENT, "no such key")


@pytest.fixture
async def server():
    async with serve(admin=FakeAdmin()) as running:
        yield running


async def test_a_reply_is_json_with_names_and_whole_numbers(http, server):
    async with http.post(server.url + "/admin/status", json={}) as reply:
        body = await reply.json()
    assert body["version"] == "1"
    assert body["models"][0]["state"] == "ready"
    assert body["models"][0]["size_bytes"] == 2**40
    assert body["uptime_s"] is None, "JSON has no NaN"


async def test_progress_comes_as_events(http):
    admin = FakeAdmin()
    async with serve(admin=admin) as server:
        body = {"model": "x", "options": {"context": 4096, "kv": "k8v3"}, "pin": True}
        async with http.post(server.url + "/admin/load", json=body) as reply:
            raw = (await reply.read()).decode()
    events = [json.loads(line[6:]) for line in raw.splitlines() if line]
    assert [event["stage"] for event in events] == ["weights", "ready"]
    assert events[-1]["done"] is True
    [asked] = admin.asked
    assert (asked.model, asked.options.context, asked.pin) == ("x", 4096, True)


async def test_leaving_the_page_ends_a_watch(http):
    admin = FakeAdmin()
    async with serve(admin=admin) as server:
        async with http.post(server.url + "/admin/watch_status", json={}) as reply:
            await reply.content.readline()
        async with asyncio.timeout(5):
            await admin.left.wait()
        assert admin.watching == 0


async def test_faults_and_refusals_are_http_errors(http, server):
    async with http.post(server.url + "/admin/unload", json={"model": "x"}) as reply:
        assert reply.status == 429
        assert (await reply.json())["error"]["message"] == "two requests are running"
    async with http.post(server.url + "/admin/get_config", json={}) as reply:
        assert reply.status == 400
        assert (await reply.json())["error"]["message"] == "no such key"
    async with http.post(server.url + "/admin/plan", json={}) as reply:
        assert reply.status == 501


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"[" * 100_000,
        b'{"model": ' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"bogus": 1}',
        b'{"model": 5}',
        b'{"pin": "x"}',
        b'{"options": []}',
        b'{"options": {"context": -1}}',
        b'{"options": {"context": "a"}}',
    ],
)
async def test_a_body_that_is_no_message_is_a_400(http, server, body):
    headers = {"Content-Type": "application/json"}
    async with http.post(server.url + "/admin/load", data=body, headers=headers) as reply:
        assert reply.status == 400, await reply.text()


async def test_other_pages_may_not_even_when_they_may_chat(http):
    page = "http://localhost:3000"
    options = HttpOptions(port=0, cors_origins=(page,))
    async with serve(options=options, admin=FakeAdmin()) as server:
        url = server.url + "/admin/status"
        for headers in ({"Origin": page}, {"Sec-Fetch-Site": "cross-site"}):
            async with http.post(url, json={}, headers=headers) as reply:
                assert reply.status == 403
        own = {"Origin": server.url, "Sec-Fetch-Site": "same-origin"}
        async with http.post(url, json={}, headers=own) as reply:
            assert reply.status == 200
        async with http.post(url, data="{}", headers={"Content-Type": "text/plain"}) as reply:
            assert reply.status == 415


async def test_a_key_is_needed_where_keys_are_set(http):
    digest = hashlib.sha256(b"k").hexdigest()
    options = HttpOptions(port=0, api_key_hashes=(digest,))
    async with serve(options=options, admin=FakeAdmin()) as server:
        async with http.post(server.url + "/admin/status", json={}) as reply:
            assert reply.status == 401
        headers = {"x-api-key": "k"}
        async with http.post(server.url + "/admin/status", json={}, headers=headers) as reply:
            assert reply.status == 200


async def test_answers_are_asked_for_where_every_client_does(http, server):
    async with http.post(server.url + "/admin/generate", json={}) as reply:
        assert reply.status == 404


async def test_without_an_admin_service_there_is_no_api(http):
    async with serve() as server, http.post(server.url + "/admin/status", json={}) as reply:
        assert reply.status == 404
