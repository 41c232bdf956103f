"""`/admin/...`: the Admin service, and some of the Store service, as JSON for our own web page.

`POST /admin/load {"model": "x"}` is the Admin service's `Load`; a streamed reply comes as
server-sent events. Only our own pages may call it from a browser: configured CORS origins are
for the model dialects.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import math
import re
import struct
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, cast

import betterproto2
import grpclib
from aiohttp import web

from swiftlm_proto import messages as m
from swiftlm_proto.visible import visible
from swiftlmd.faults import Kind, ServiceError, from_fault
from swiftlmd.http.channel import Channel
from swiftlmd.http.context import GUARD, RECORD
from swiftlmd.http.encoder import WAITING
from swiftlmd.http.errors import invalid, openai_body
from swiftlmd.http.limits import read_body
from swiftlmd.http.local_only import check_for_http, hide_environment
from swiftlmd.http.openai_json import data_event, dumps
from swiftlmd.http.routes import Route
from swiftlmd.http.security import Scope, is_own_page

log = logging.getLogger(__name__)

# The web page asks for answers where every client does; what takes a path of this machine's disk,
# and the owner's session itself, are for the admin socket alone.
_NOT_HERE = frozenset({"generate", "add", "import", "convert", "repair", "pack", "open_session"})

# What asks for no more than the model dialects do. All else, also what will be added, is the
# owner's.
_FOR_USE = frozenset(
    {
        "status",
        "watch_status",
        "list_models",
        "load",
        "unload",
        "pin",
        "pull",
        "plan",
        "memory",
        "requests",
        "calibrations",
        "get_config",
        "search",
        "fit",
        "usage",
    }
)

_STATUSES = {
    grpclib.Status.INVALID_ARGUMENT: 400,
    grpclib.Status.NOT_FOUND: 404,
    grpclib.Status.FAILED_PRECONDITION: 409,
    grpclib.Status.UNIMPLEMENTED: 501,
    grpclib.Status.UNAVAILABLE: 503,
}

Json = dict[str, Any]  # Any: JSON


class PageDownloads:
    """Followers of pulls that the page has begun: a transfer ends when nobody follows it, and one
    of twenty gigabytes must not end because a page was loaded again. Its end is in `status`."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def follow(self, events: AsyncIterator[m.OperationEvent]) -> None:
        task = asyncio.create_task(_drain(events), name="pull that a page has begun")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """A pull that is not complete is gone on with by the next daemon."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


PAGE_DOWNLOADS = web.AppKey("pulls", PageDownloads)


async def _drain(events: AsyncIterator[m.OperationEvent]) -> None:
    async with aclosing(cast(Any, events)) as messages:  # Any: wants a generator
        async for event in messages:
            if event.fault:
                log.warning("a pull that a page has begun failed: %s", event.fault.message)


class AdminCall(Protocol):
    """One method of a service: a coroutine, or an async iterator when it streams."""

    def __call__(self, message: Any, /) -> Any: ...  # Any: each method has its own messages


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of a service; `answer` is its handler."""

    call: AdminCall
    request_type: type[betterproto2.Message]
    streams: bool
    texts: ReplyTexts

    async def answer(self, request: web.Request) -> web.StreamResponse:
        refuse_foreign_pages(request)
        message = parse(self.request_type, await read_body(request))
        check_for_http(message, is_admin=request[RECORD].is_admin)
        try:
            if isinstance(message, m.PullRequest) and not message.cancel:
                request.app[PAGE_DOWNLOADS].follow(self.call(message))
            if self.streams:
                return await _stream(request, self.call(message), self.texts)
            reply = await self.call(message)
        except grpclib.GRPCError as error:
            raise _translated(error) from error
        fault = getattr(reply, "fault", None)
        if fault is not None:
            raise _of_hub(fault) if isinstance(reply, m.SearchModelsReply) else from_fault(fault)
        if isinstance(reply, m.ConfigReply):
            hide_environment(reply)
        return web.json_response(text=self.texts.of(reply))


def routes(service: m.AdminBase | m.StoreBase) -> Iterable[Route]:
    texts = ReplyTexts()
    for path, handler in service.__mapping__().items():
        name = operation_name(path)
        if name in _NOT_HERE:
            continue
        operation = Operation(
            call=getattr(service, name),
            request_type=handler.request_type,
            streams=handler.cardinality.server_streaming,
            texts=texts,
        )
        yield Route(
            "POST",
            f"/admin/{name}",
            f"admin_{name}",
            operation.answer,
            f"For the web page: {name}",
            message=operation.request_type,
            streams=operation.streams,
            scope=Scope.USE if name in _FOR_USE else Scope.ADMIN,
        )


def operation_name(path: str) -> str:
    """`load_model` of `/swiftlm.v1.Admin/LoadModel`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", path.rpartition("/")[2]).lower()


def refuse_foreign_pages(request: web.Request) -> None:
    """Raises 403 unless the request comes from our own page or from no browser at all."""
    origin = request.headers.get("Origin")
    host = request.headers.get("Host", "")
    site = request.headers.get("Sec-Fetch-Site", "none")
    foreign = (
        origin is not None
        and not is_own_page(origin, host)
        and not request.app[GUARD].is_behind_proxy(origin, site)
    )
    if foreign or site not in ("same-origin", "none"):
        raise ServiceError(
            Kind.INVALID,
            "/admin is for the page that this service serves itself",
            code="origin_not_allowed",
            status=403,
        )
    # A form of another page can post text, but not this.
    if request.content_type != "application/json":
        raise ServiceError(
            Kind.INVALID,
            "send Content-Type: application/json",
            code="bad_content_type",
            status=415,
        )


def parse(kind: type[betterproto2.Message], raw: bytes) -> betterproto2.Message:
    """The message that `raw` holds as JSON; raises 400 for anything else."""
    try:
        given = json.loads(raw or b"{}")
        _refuse_negatives(given)
    except (ValueError, RecursionError) as error:
        raise invalid(f"the body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(given, dict):
        raise invalid("the body must be a JSON object", code="invalid_type")
    try:
        return _message(kind, given)
    except KeyError as error:
        raise invalid(str(error.args[0])) from None
    except _WRONG_TYPE:
        field = next((name for name, value in given.items() if _is_wrong(kind, name, value)), "")
        shown = visible(field)[:64]
        raise invalid(f"field '{shown}' has a wrong type; see /openapi.json", shown) from None


# What the library that reads messages raises; it looks at types only when one is written.
_WRONG_TYPE = (
    TypeError,
    ValueError,
    AttributeError,
    OverflowError,
    AssertionError,
    RecursionError,
    struct.error,
)


def _message(kind: type[betterproto2.Message], given: Json) -> betterproto2.Message:
    message = kind.from_dict(given)
    bytes(message)
    return message


def _is_wrong(kind: type[betterproto2.Message], name: str, value: Any) -> bool:  # Any: JSON
    try:
        _message(kind, {name: value})
    except (KeyError, *_WRONG_TYPE):
        return True
    return False


def _refuse_negatives(value: Any) -> None:  # Any: JSON
    """No field of the service is negative, and the wire would make a huge number of one."""
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            _refuse_negatives(inner)
    elif isinstance(value, int) and not 0 <= value < 2**63:
        raise invalid(f"{value} is out of range")


class ReplyTexts:
    """Replies as JSON. The page asks for the status every few seconds, and of a thousand models on
    the disk hardly one is another than before: their rows are written once."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[m.ModelStatus, str]] = {}  # by identity, which the row keeps

    def of(self, reply: betterproto2.Message) -> str:
        if not isinstance(reply, m.DaemonStatus):
            return dumps(to_json(reply))
        models, reply.models = reply.models, []
        fields = to_json(reply)
        del fields["models"]
        reply.models = models
        return f'{{"models":[{",".join(self._written(models))}],{dumps(fields)[1:]}'

    def _written(self, models: list[m.ModelStatus]) -> list[str]:
        before, self._rows = self._rows, {}
        texts = []
        for model in models:
            known = before.get(id(model))
            text = known[1] if known and known[0] is model else dumps(to_json(model))
            self._rows[id(model)] = (model, text)
            texts.append(text)
        return texts


def to_json(message: betterproto2.Message) -> Json:
    """Snake case, whole numbers as numbers, enums by their names, nothing left out."""
    fields = message.to_dict(
        output_format=betterproto2.OutputFormat.PYTHON,
        casing=betterproto2.Casing.SNAKE,
        include_default_values=True,
    )
    return cast(Json, _plain(fields))


def _plain(value: Any) -> Any:  # Any: what a message may hold
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, Enum):
        return str(value.name).lower()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


async def _stream(
    request: web.Request, replies: AsyncIterator[betterproto2.Message], texts: ReplyTexts
) -> web.StreamResponse:
    """Each reply as an event; leaving the page ends the call. A failure is the last event."""
    channel = Channel(request, lambda: WAITING)
    async with channel.open(), aclosing(cast(Any, replies)) as messages:  # Any: wants a generator
        try:
            async for message in messages:
                await channel.write(f"data: {texts.of(message)}\n\n".encode("ascii"))
            await channel.end()
        except ConnectionError:
            raise
        except Exception as error:  # after the first event HTTP cannot say it any more
            failure = _failure(request, error)
            await channel.fail(failure, data_event(openai_body(failure)))
    return channel.response


def _failure(request: web.Request, error: Exception) -> ServiceError:
    if isinstance(error, ServiceError):
        return error
    if isinstance(error, grpclib.GRPCError):
        return _translated(error)
    log.error("operation failed request_id=%s", request[RECORD].request_id, exc_info=error)
    message = f"the daemon failed: {type(error).__name__}; see its log"
    return ServiceError(Kind.INTERNAL, message)


def _of_hub(fault: m.Fault) -> ServiceError:
    """A hub that cannot be asked is no failure of the daemon's."""
    if fault.kind is not Kind.INTERNAL:
        return from_fault(fault)
    return ServiceError(fault.kind, fault.message, code="hub_unavailable", status=502)


def _translated(error: grpclib.GRPCError) -> ServiceError:
    status = _STATUSES.get(error.status, 500)
    kind = Kind.INVALID if status < 500 else Kind.INTERNAL
    message = error.message or error.status.name.lower()
    return ServiceError(kind, message, code=error.status.name.lower(), status=status)
