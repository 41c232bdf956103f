"""`/health` (live), `/ready` (accepts work), `/metrics`, and `HEAD /`.

Health tells who answers (pid, start, instance) so that a stale process cannot pose as a new one,
and turns red when an engine's steps have stopped: a port that answers with a dead loop behind it
is down. A model that failed, or stream counters that contradict each other, degrade it. Without a
key, where keys are set, it says nothing about models.
"""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from swiftlm_proto import messages as m
from swiftlmd.http import streaming
from swiftlmd.http import web as companion
from swiftlmd.http.context import CONTEXT, GUARD
from swiftlmd.http.metrics import CONTENT_TYPE
from swiftlmd.http.openai_json import dumps

State = m.ModelStatusState


async def health(request: web.Request) -> web.Response:
    parts = request.app[CONTEXT]
    status = await parts.backend.status()
    wedged = _wedged(status)
    degraded = [
        model for model in status.models if model.state == State.FAILED or streaming.degraded(model)
    ]
    body: dict[str, Any] = {
        "status": "wedged" if wedged else "degraded" if degraded else "ok",
        "state": status.state,
        "version": status.version,
        "pid": status.pid,
        "started_at": status.started_at,
        "instance_id": status.instance_id,
        "uptime_s": round(status.uptime_s, 3),
    }
    if request.app[GUARD].authorized(request):
        body["in_flight"] = status.in_flight
        body["models"] = [_model(model) for model in status.models if model.state != State.CACHED]
        body["warnings"] = [*status.warnings, *map(_why_degraded, degraded)]
    return web.json_response(body, status=503 if wedged else 200, dumps=dumps)


async def ready(request: web.Request) -> web.Response:
    parts = request.app[CONTEXT]
    status = await parts.backend.status()
    wedged = _wedged(status)
    is_ready = status.state == "ready" and not wedged
    body = {
        "ready": is_ready,
        "state": status.state,
        "wedged_engines": len(wedged),
        "last_sign_s": round(max((model.last_sign_s for model in status.models), default=0.0), 3),
    }
    headers = {} if is_ready else {"Retry-After": "1"}
    return web.json_response(body, status=200 if is_ready else 503, headers=headers, dumps=dumps)


async def metrics(request: web.Request) -> web.Response:
    parts = request.app[CONTEXT]
    text = parts.metrics.render(await parts.backend.status())
    return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})


async def root(request: web.Request) -> web.Response:
    """`HEAD /` is how agents ask whether anybody is there; `GET /` says who, or shows the page."""
    if request.app[CONTEXT].options.web and companion.wants_page(request):
        return companion.page(request)
    return web.json_response({"name": "swiftlm", "api": "/v1", "health": "/health"}, dumps=dumps)


def _why_degraded(model: m.ModelStatus) -> str:
    if model.state != State.FAILED:
        return f"{model.model}: the counters of what it reads from disk contradict each other"
    return (
        f"{model.model} failed: {model.error or 'see the log'}; "
        f"`swiftlmctl unload {model.model}` takes it off the list"
    )


def _wedged(status: m.DaemonStatus) -> list[str]:
    return [model.model for model in status.models if model.unhealthy]


def _model(model: m.ModelStatus) -> dict[str, Any]:
    stats = model.stats or m.EngineStats()
    return {
        "model": model.model,
        "state": (State(model.state).name or "").lower(),
        "load_fraction": 1.0 if model.state is State.READY else model.load_fraction,
        "running": stats.running,
        "waiting": stats.waiting,
        "footprint_bytes": model.footprint_bytes,
        "restarts": model.restarts,
        "condition": model.condition or None,
        "last_sign_s": round(model.last_sign_s, 3),
        "silent_s": round(model.silent_s, 3),
        "error": model.error or None,
        "streaming": streaming.summary(model),
        "capabilities": {
            "tools": model.tools,
            "vision": model.vision,
            "reasoning": model.reasoning,
            "context": model.loaded.context if model.loaded else model.context,
        },
        "plan": _plan(model),
    }


def _plan(model: m.ModelStatus) -> dict[str, Any] | None:
    """The part of the plan that says how the model runs here; all of it is in `status --json`.

    `overcommit` is what the plan needs over what there is: above 1 only of a forced load.
    """
    if not model.plan:
        return None
    plan = json.loads(model.plan)
    needed, available = plan.get("needed_bytes", 0), plan.get("available_bytes", 0)
    stats = model.stats or m.EngineStats()
    keys = ("strategy", "summary", "context", "parallel", "kv", "gpu_layers", "total_bytes")
    return {key: plan.get(key) for key in keys} | {
        "needed_bytes": needed,
        "available_bytes": available,
        "overcommit": round(needed / available, 3) if available else None,
        "predicted_tokens_per_s": plan.get("speed", {}).get("decode_tokens_s"),
        "measured_tokens_per_s": round(stats.decode_tokens_per_s, 1) or None,
        "warnings": plan.get("warnings", []),
    }
