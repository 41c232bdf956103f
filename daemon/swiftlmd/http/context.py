"""The parts that handlers share, made once by `app.make_app`, and the record of one request."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aiohttp import web

from swiftlm_proto import messages as m
from swiftlmd.config.http import HttpOptions
from swiftlmd.serving.backend import Backend

if TYPE_CHECKING:
    from swiftlmd.http.images import ImageLoader
    from swiftlmd.http.limits import BodyBudget, Exchanges, Gate
    from swiftlmd.http.metrics import Metrics
    from swiftlmd.http.response_store import ResponseStore
    from swiftlmd.http.resumable_streams import KeptAnswers
    from swiftlmd.http.schema import BodyReader
    from swiftlmd.http.security import Guard


@dataclass(frozen=True, slots=True)
class AppContext:
    backend: Backend
    options: HttpOptions
    metrics: Metrics
    bodies: BodyReader
    images: ImageLoader
    gate: Gate
    exchanges: Exchanges
    body_budget: BodyBudget
    responses: ResponseStore
    answers: KeptAnswers
    clock: Callable[[], float]  # seconds since the epoch
    started_at: float


@dataclass(slots=True)
class RequestLog:
    """What the access log and the metrics say about one request; filled as it runs."""

    request_id: str = field(default_factory=lambda: secrets.token_hex(12))
    route: str = ""
    model: str = ""
    stream: bool = False
    outcome: str = ""
    sent_whole: bool = False  # a stream's last event is out; Codex hangs up right then
    usage: m.Usage | None = None
    timings: m.Timings | None = None
    first_token_s: float = 0.0
    cache_note: str = ""
    method: str = ""
    path: str = ""
    client: str = ""  # as the log shows it
    key: str = ""  # the name of the API key that was sent
    peer: str = ""  # who shares places and bytes with whom
    body_bytes: int = 0  # that the body holds of the budget
    is_admin: bool = False  # the owner, or a key that may administer
    is_logged: bool = False  # its connection has had its line in access.log
    begun: bool = False  # the head of an answer is out


CONTEXT = web.AppKey("parts", AppContext)
GUARD: web.AppKey[Guard] = web.AppKey("guard")
RECORD = web.RequestKey("record", RequestLog)
