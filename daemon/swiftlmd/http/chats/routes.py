"""`/chats`: what the page keeps of its conversations on this machine, for who asked for it.

Everything that a key keeps is its own. The owner, and the keys that the owner names, share one
space: so a phone goes on where the Mac stopped. Only our own pages may call it from a browser.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from aiohttp import web
from pydantic import Field

from swiftlmd.faults import Kind, ServiceError
from swiftlmd.http.admin_operations import refuse_foreign_pages
from swiftlmd.http.chats.store import ChatIsGone, ChatStore, TooManyChats
from swiftlmd.http.context import CONTEXT, GUARD, RECORD
from swiftlmd.http.errors import invalid
from swiftlmd.http.openai_json import dumps
from swiftlmd.http.routes import Handler, Route
from swiftlmd.http.schema import Body
from swiftlmd.http.security import Scope

_OWNER = "owner"
_ID = re.compile(r"[\w-]{1,64}")
_MAX_WORDS = 200

Json = dict[str, Any]  # Any: JSON
T = TypeVar("T")


class ChatBody(Body):
    chat: dict[str, Any]  # Any: the page's own record
    messages: list[dict[str, Any]] = Field(default_factory=list)
    revive: bool = False  # also where it was deleted


class SharingBody(Body):
    keys: list[str]


class Chats:
    """The calls; each works in a thread, as the disk may be slow."""

    def __init__(self, store: ChatStore) -> None:
        self._store = store

    def routes(self) -> Iterator[Route]:
        def route(
            method: str, path: str, name: str, act: Handler, summary: str, **more: Any
        ) -> Route:  # Any: further fields of Route
            return Route(method, path, name, act, summary, **more)

        yield route("GET", "/chats", "chats", self._changes, "Chats of the page that changed")
        yield route(
            "DELETE", "/chats", "delete_chats", self._delete_all, "Forget all chats of this caller"
        )
        yield route("GET", "/chats/search", "search_chats", self._search, "Messages by their words")
        yield route(
            "GET", "/chats/sharing", "sharing", self._sharing, "Keys that share the owner's chats"
        )
        yield route(
            "PUT",
            "/chats/sharing",
            "share_chats",
            self._share,
            "Say which keys share the owner's chats",
            body=SharingBody,
            scope=Scope.ADMIN,
        )
        yield route(
            "PUT", "/chats/{id}", "put_chat", self._put, "Keep a chat of the page", body=ChatBody
        )
        yield route("DELETE", "/chats/{id}", "delete_chat", self._delete, "Delete a kept chat")

    async def _changes(self, request: web.Request) -> web.Response:
        since = request.query.get("since", "0")
        if not (since.isascii() and since.isdecimal() and len(since) < 16):
            raise invalid("since: a whole number is expected", "since")
        space = await self._space(request)
        found = await _threaded(lambda: self._store.changes(space, int(since)))
        return _reply({"number": found.number, "chats": found.chats, "more": found.more})

    async def _search(self, request: web.Request) -> web.Response:
        words = request.query.get("words", "").strip()[:_MAX_WORDS]
        space = await self._space(request)
        found = await _threaded(lambda: self._store.search(space, words) if words else [])
        return _reply({"found": found})

    async def _put(self, request: web.Request) -> web.Response:
        chat_id = _chat_id(request)
        space = await self._space(request)
        given = await request.app[CONTEXT].bodies.read(request, ChatBody)
        if given.chat.get("id") != chat_id or any(
            not _is_id(one.get("id")) for one in given.messages
        ):
            raise invalid(
                "chat.id: must be the id in the address, and each message needs one", "chat"
            )
        try:
            number = await _threaded(
                lambda: self._store.put(space, chat_id, given.chat, given.messages, given.revive)
            )
        except ChatIsGone:
            raise ServiceError(
                Kind.INVALID, "this chat was deleted", code="chat_deleted", status=410
            ) from None
        except TooManyChats:
            raise ServiceError(
                Kind.INVALID,
                "this machine keeps no more chats; delete some",
                code="too_many_chats",
                status=507,
            ) from None
        return _reply({"number": number})

    async def _delete(self, request: web.Request) -> web.Response:
        chat_id = _chat_id(request)
        space = await self._space(request)
        return _reply({"number": await _threaded(lambda: self._store.delete(space, chat_id))})

    async def _delete_all(self, request: web.Request) -> web.Response:
        space = await self._space(request)
        await _threaded(lambda: self._store.delete_all(space))
        return _reply({})

    async def _sharing(self, request: web.Request) -> web.Response:
        refuse_foreign_pages(request)
        return _reply({"keys": await _threaded(self._store.sharing)})

    async def _share(self, request: web.Request) -> web.Response:
        refuse_foreign_pages(request)
        given = await request.app[CONTEXT].bodies.read(request, SharingBody)
        await _threaded(lambda: self._store.share_with(given.keys))
        return _reply({"keys": given.keys})

    async def _space(self, request: web.Request) -> str:
        """Whose chats the caller uses; raises 403 for a page of another origin."""
        refuse_foreign_pages(request)
        record = request[RECORD]
        if record.is_admin or not request.app[GUARD].has_keys:
            return _OWNER
        if not record.key:
            raise ServiceError(
                Kind.INVALID,
                "this key has no name, so its chats have no place; make one with "
                "`swiftlmctl keys add NAME`",
                code="key_without_name",
                status=403,
            )
        shared = await _threaded(self._store.sharing)
        return _OWNER if record.key in shared else f"key {record.key}"


def _is_id(given: object) -> bool:
    return isinstance(given, str) and _ID.fullmatch(given) is not None


def _chat_id(request: web.Request) -> str:
    chat_id = request.match_info["id"]
    if not _is_id(chat_id):
        raise invalid("id: letters, digits, _ and - are expected, at most 64", "id")
    return chat_id


async def _threaded(work: Callable[[], T]) -> T:
    try:
        return await asyncio.to_thread(work)
    except sqlite3.Error as error:
        raise ServiceError(
            Kind.INTERNAL,
            f"the chats of this machine cannot be read or written: {error}",
            code="chats_unavailable",
            status=500,
        ) from error


def _reply(body: Json) -> web.Response:
    return web.json_response(body, dumps=dumps)
