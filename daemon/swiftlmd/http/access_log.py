"""access.log: a line for each request, and one for an answer that ended without its connection."""

from __future__ import annotations

import logging

from swiftlm_proto import messages as m
from swiftlmd.http.context import RequestLog

log = logging.getLogger("swiftlmd.access")

# Polled by dashboards and supervisors; their lines would bury the others.
_QUIET_ROUTES = frozenset({"health", "ready", "metrics", "root", "models", "model", "web"})


def request_ended(record: RequestLog, status: int, seconds: float) -> None:
    level = logging.DEBUG if record.route in _QUIET_ROUTES and status < 400 else logging.INFO
    _write(level, record, status, seconds)
    record.is_logged = True


def ended_alone(record: RequestLog, seconds: float) -> None:
    """A kept answer whose connection has had its line: this one has the tokens."""
    _write(logging.INFO, record, 0, seconds)


def _write(level: int, record: RequestLog, status: int, seconds: float) -> None:
    if not log.isEnabledFor(level):
        return
    usage = m.Usage() if record.usage is None else record.usage
    timings = m.Timings() if record.timings is None else record.timings
    fields = {
        "method": record.method,
        "path": record.path,
        "status": status,
        "ms": round(seconds * 1000),
        "request_id": record.request_id,
        "model": record.model[:MAX_NAME],
        "stream": record.stream,
        "prompt": usage.prompt_tokens,
        "cached": usage.cached_tokens,
        "completion": usage.completion_tokens,
        "ttft_ms": round(record.first_token_s * 1000),
        "queue_ms": round(timings.queue_s * 1000),
        "prefill_ms": round(timings.prefill_s * 1000),
        "decode_ms": round(timings.decode_s * 1000),
        "outcome": record.outcome or "ok",
        "cache": record.cache_note,
        "client": record.client,
        "key": record.key,
    }
    # The file gets the fields as JSON; the text is for whoever reads the logger elsewhere.
    text = " ".join(f"{name}=%({name})r" for name in fields)
    log.log(level, text, fields, extra={"fields": fields})


MAX_NAME = 200  # characters of what a client sent, in a line of the log
