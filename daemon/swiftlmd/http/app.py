"""The HTTP application: its parts, its routes, and what happens around every request.

`make_app` needs nothing but a `Backend`. `make_runner` adds what only the server can do: cancel
the handler when its client leaves (that is what aborts a generation at once), bound the head of
a request, and close connections that say nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from swiftlm_proto import messages as m
from swiftlmd.config.http import HttpOptions
from swiftlmd.faults import Kind, ServiceError
from swiftlmd.http import access_log, admin_operations
from swiftlmd.http import web as companion
from swiftlmd.http.admin_operations import PAGE_DOWNLOADS, PageDownloads
from swiftlmd.http.channel import deliver
from swiftlmd.http.chats.routes import Chats
from swiftlmd.http.chats.store import ChatStore
from swiftlmd.http.context import CONTEXT, GUARD, RECORD, AppContext, RequestLog
from swiftlmd.http.errors import error_response, from_http_exception
from swiftlmd.http.generation import LEFT, client_name, client_of
from swiftlmd.http.images import ImageLoader
from swiftlmd.http.limits import BodyBudget, Door, Exchanges, Gate, discard_body
from swiftlmd.http.metrics import Metrics
from swiftlmd.http.ollama.listing import Pull, PullBody
from swiftlmd.http.openapi import ROUTE_TABLE, openapi
from swiftlmd.http.pairing import Pairing
from swiftlmd.http.response_store import ResponseStore
from swiftlmd.http.resumable_streams import KeptAnswers
from swiftlmd.http.routes import ROUTES, Handler, Route
from swiftlmd.http.schema import BodyReader
from swiftlmd.http.security import Guard, Scope
from swiftlmd.http.sessions import PATH as SESSION_PATH
from swiftlmd.http.sessions import Sessions
from swiftlmd.serving.backend import Backend

log = logging.getLogger(__name__)

SCOPES = web.AppKey("scopes", dict[str, Scope])
OPENAPI = Route("GET", "/openapi.json", "openapi", openapi, "This interface, as OpenAPI")
_PAGE = (
    Route(
        "GET",
        "/sw.js",
        "web_worker",
        companion.at_the_root,
        "Keeps the page for when the service is away",
        media="text/javascript",
    ),
    Route(
        "GET",
        "/manifest.webmanifest",
        "web_manifest",
        companion.at_the_root,
        "What makes the page installable",
        media="application/manifest+json",
    ),
    Route("GET", "/web/{name:.+}", "web", companion.static, "Files of the page", media="*/*"),
)


def make_app(
    backend: Backend,
    options: HttpOptions,
    metrics: Metrics | None = None,
    clock: Callable[[], float] = time.time,
    admin: m.AdminBase | None = None,
    store: m.StoreBase | None = None,
    sessions: Sessions | None = None,
    chats: ChatStore | None = None,
) -> web.Application:
    """Raises ValueError for options that must not be served (`HttpOptions.check`).

    `admin` and `store` add `/admin`, their operations; `chats` adds `/chats`.
    """
    options.check()
    app = web.Application(middlewares=[_observe, _protect], client_max_size=options.max_body_bytes)
    sessions = sessions or Sessions()
    app[GUARD] = Guard(options, sessions, clock)
    app[CONTEXT] = parts = AppContext(
        backend=backend,
        options=options,
        metrics=metrics or Metrics(),
        bodies=BodyReader(),
        images=ImageLoader(options),
        responses=ResponseStore(options.max_stored_responses, options.max_stored_bytes),
        answers=KeptAnswers(),
        gate=Gate(options.max_generations),
        exchanges=Exchanges(),
        body_budget=BodyBudget(options.max_bodies_bytes),
        clock=clock,
        started_at=clock(),
    )

    app[PAGE_DOWNLOADS] = downloads = PageDownloads()

    async def close(_: web.Application) -> None:
        await downloads.close()
        await parts.answers.close()
        await parts.images.close()

    app.on_cleanup.append(close)
    app.on_response_prepare.append(_mark)
    kept = Chats(chats).routes() if chats and options.web else ()
    app[ROUTE_TABLE] = (*_routes(options, admin, store), _session_route(sessions), *kept)
    app[SCOPES] = {route.name: route.scope for route in app[ROUTE_TABLE]}
    for route in app[ROUTE_TABLE]:
        _add(app.router, route)
    return app


def _session_route(sessions: Sessions) -> Route:
    summary = "Begin the session of the owner's browser"
    return Route("GET", SESSION_PATH, "session", sessions.answer, summary, media="text/html")


def _add(router: web.UrlDispatcher, route: Route) -> None:
    if route.method == "GET":  # answers HEAD, too: agents ask `HEAD /` whether anybody is there
        router.add_get(route.path, route.handler, name=route.name)
    else:
        router.add_route(route.method, route.path, route.handler, name=route.name)


def _routes(
    options: HttpOptions, admin: m.AdminBase | None, store: m.StoreBase | None
) -> tuple[Route, ...]:
    operations = [
        route for service in (admin, store) if service for route in admin_operations.routes(service)
    ]
    if admin is not None:
        pull = Pull(admin).answer
        summary = "Fetch a model, as Ollama does"
        operations.append(
            Route("POST", "/api/pull", "ollama_pull", pull, summary, PullBody, streams=True)
        )
    if admin is not None and options.web:
        operations += Pairing(admin).routes()
    return (*ROUTES, OPENAPI, *operations, *(_PAGE if options.web else ()))


def make_runner(app: web.Application) -> web.AppRunner:
    """The runner that the limits and the cancellation of left requests depend on."""
    options = app[CONTEXT].options
    return _Runner(
        app,
        handler_cancellation=True,
        access_log=None,  # ours has the model and the tokens
        auto_decompress=False,  # it would unpack on the loop, also what nobody reads any more
        logger=_WireLog(logging.getLogger("aiohttp.server")),
        keepalive_timeout=options.keepalive_timeout_s,
        max_line_size=8190,
        max_field_size=16380,
        max_headers=128,
        lingering_time=2.0,
        shutdown_timeout=2.0,
    )


class _Runner(web.AppRunner):
    """Bounds the connections: `server` is what sites make a protocol from for each of them."""

    @property
    def server(self) -> web.Server | None:
        inner = super().server
        if inner is None:
            return None
        limit = self.app[CONTEXT].options.max_connections
        return cast(web.Server, _BoundedServer(inner, limit))


class _BoundedServer:
    """As much of aiohttp's server as is asked for from outside."""

    def __init__(self, inner: web.Server, limit: int) -> None:
        self._inner = inner
        self._limit = limit
        self.pre_shutdown = inner.pre_shutdown

    def __call__(self) -> Door:
        return Door(self._inner, self._limit)


class _WireLog(logging.LoggerAdapter[logging.Logger]):
    """What aiohttp says about connections, except of clients that left, and of bytes that are no
    request: these are the client's fault, and perhaps a prompt."""

    def exception(self, msg: object, *args: object, **rest: Any) -> None:  # Any: as logging has it
        if isinstance(rest.get("exc_info"), HttpProcessingError | ConnectionError):
            self.debug("no request, or no client: %s", type(rest["exc_info"]).__name__)
        else:
            super().exception(msg, *args, **rest)


@web.middleware
async def _observe(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Gives the request an id, turns failures into answers, delivers, and accounts for it."""
    record = request[RECORD] = RequestLog(
        route=request.match_info.route.name or "unknown",
        method=request.method,
        path=request.path[: access_log.MAX_NAME],
    )
    parts = request.app[CONTEXT]
    # The page's own streams last as long as the page is open: a drain does not wait for those.
    waited_for = nullcontext() if record.route.startswith("admin_") else parts.exchanges.under_way()
    started_at = time.monotonic()
    status = 0
    with waited_for:
        try:
            response = await _answer(request, handler, record)
            await deliver(request, response)
            status = response.status
            if status >= 400 and not request.content.at_eof():
                await discard_body(request)
            return response
        finally:
            if not status:  # the client left: too early, or with the whole answer
                status = 200 if record.sent_whole else 499
                record.outcome = record.outcome or ("" if record.sent_whole else LEFT)
            parts.body_budget.give_back(record.peer, record.body_bytes)
            seconds = time.monotonic() - started_at
            record.client = client_name(request)
            parts.metrics.observe(record, status, seconds)
            access_log.request_ended(record, status, seconds)


async def _mark(request: web.Request, response: web.StreamResponse) -> None:
    """The headers of every answer, streamed or not."""
    response.headers["Server"] = "swiftlm"
    if RECORD in request:
        request[RECORD].begun = True
        response.headers["x-request-id"] = request[RECORD].request_id
        if cors := request.app[GUARD].cors_headers(request):
            varies = response.headers.get("Vary", "")
            response.headers.update(cors)
            response.headers["Vary"] = f"{varies}, Origin" if varies else "Origin"


async def _answer(request: web.Request, handler: Handler, record: RequestLog) -> web.StreamResponse:
    try:
        return await handler(request)
    except ServiceError as error:
        failure = error
    except web.HTTPException as error:
        failure = from_http_exception(error, request)
    except ConnectionError:
        raise
    except Exception as error:  # the root of a request's task
        log.exception("request failed request_id=%s path=%r", record.request_id, record.path)
        failure = ServiceError(
            Kind.INTERNAL, f"the daemon failed: {type(error).__name__}; see its log"
        )
    record.outcome = failure.code
    if record.begun:  # a second answer would be read as a part of the first
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the answer had begun when it failed")
    return error_response(request, failure, record.request_id)


@web.middleware
async def _protect(request: web.Request, handler: Handler) -> web.StreamResponse:
    if request.method == "POST" and request.path.startswith("/admin/"):
        admin_operations.refuse_foreign_pages(request)  # told before what the caller may do
    route = request.app[SCOPES].get(request.match_info.route.name or "", Scope.USE)
    caller = request.app[GUARD].check(request, route)
    record = request[RECORD]
    record.key, record.is_admin = caller.key, caller.scope is Scope.ADMIN
    record.peer = client_of(request)
    if request.method == "OPTIONS":
        return web.Response(status=204, headers={"Allow": "GET, HEAD, POST, DELETE, OPTIONS"})
    return await handler(request)
