"""`/chats` over HTTP: whose chats a caller sees, and what is refused."""

from __future__ import annotations

import hashlib

import aiohttp
import pytest
from scripted_backend import serve

from swiftlmd.config.http import ApiKey, HttpOptions
from swiftlmd.http.chats.store import ChatStore

KEYS = HttpOptions(
    port=0,
    api_keys=tuple(
        ApiKey(hashlib.sha256(name.encode()).hexdigest(), "" if name == "nameless" else name, admin)
        for name, admin in (("boss", True), ("phone", False), ("mum", False), ("nameless", False))
    ),
)


def chat(name, said="hello"):
    message = {"id": "m1", "parent": None, "role": "user", "text": said}
    return {"chat": {"id": name, "title": name}, "messages": [message]}


@pytest.fixture
async def door(tmp_path):
    async with (
        serve(options=KEYS, chats=ChatStore(tmp_path / "chats.sqlite3")) as server,
        aiohttp.ClientSession() as session,
    ):

        async def ask(method, path, key, body=None, **headers):
            headers |= {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
            async with session.request(
                method, server.url + path, json=body, headers=headers
            ) as answer:
                return answer.status, await answer.json()

        yield ask


async def ids(door, key):
    _, reply = await door("GET", "/chats", key)
    return [one["id"] for one in reply["chats"]]


async def test_a_key_sees_its_own_chats_until_the_owner_shares(door):
    assert (await door("PUT", "/chats/a", "boss", chat("a")))[0] == 200
    assert (await door("PUT", "/chats/b", "mum", chat("b")))[0] == 200
    assert (await ids(door, "boss"), await ids(door, "mum")) == (["a"], ["b"])
    assert await ids(door, "phone") == []
    assert (await door("PUT", "/chats/sharing", "phone", {"keys": ["phone"]}))[0] == 403
    assert (await door("PUT", "/chats/sharing", "boss", {"keys": ["phone"]}))[0] == 200
    assert await ids(door, "phone") == ["a"]
    _, found = await door("GET", "/chats/search?words=hell", "phone")
    assert [one["chat"] for one in found["found"]] == ["a"]
    assert (await door("DELETE", "/chats/a", "phone"))[0] == 200
    _, reply = await door("GET", "/chats", "boss")
    assert reply["chats"] == [{"id": "a", "gone": True}]
    assert await ids(door, "mum") == ["b"]


async def test_what_has_no_place_or_no_sense_is_refused_in_words(door):
    status, reply = await door("GET", "/chats", "nameless")
    assert (status, reply["error"]["code"]) == (403, "key_without_name")
    assert (await door("GET", "/chats", "wrong"))[0] == 401
    assert (await door("GET", "/chats?since=-1", "mum"))[0] == 400
    assert (await door("PUT", "/chats/a%20b", "mum", chat("a b")))[0] == 400
    assert (await door("PUT", "/chats/a", "mum", chat("other")))[0] == 400
    bad = {**chat("a"), "messages": [{"id": 7}]}
    assert (await door("PUT", "/chats/a", "mum", bad))[0] == 400
    foreign = {"Origin": "https://evil.example"}
    assert (await door("GET", "/chats", "mum", **foreign))[0] == 403
    status, reply = await door("DELETE", "/chats/a", "mum")
    assert status == 200
    status, reply = await door("PUT", "/chats/a", "mum", chat("a"))
    assert (status, reply["error"]["code"]) == (410, "chat_deleted")
    assert (await door("PUT", "/chats/a", "mum", {**chat("a"), "revive": True}))[0] == 200
    assert (await door("DELETE", "/chats", "mum"))[0] == 200
    assert await ids(door, "mum") == []
