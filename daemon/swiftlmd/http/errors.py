"""Failures in the shapes that clients know: OpenAI's error object, Anthropic's, Ollama's text."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from swiftlm_proto import messages as m
from swiftlmd.faults import Kind, MemoryFull, ServiceError

_OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    504: "timeout_error",
}

_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}

# The SDKs retry every 5xx; these will not get better by asking again.
_FINAL_KINDS = {Kind.NOT_ENOUGH_MEMORY, Kind.NO_DEVICE, Kind.MODEL_BROKEN}


def invalid(message: str, param: str = "", *, code: str = "") -> ServiceError:
    """The client sent something wrong; `param` is the dotted name of the field."""
    return ServiceError(Kind.INVALID, message, param=param, code=code)


def unsupported(message: str, param: str) -> ServiceError:
    """The field is understood, and refused rather than ignored."""
    return ServiceError(Kind.UNSUPPORTED, message, param=param)


def openai_body(error: ServiceError) -> dict[str, Any]:
    fallback = "invalid_request_error" if error.status < 500 else "server_error"
    return {
        "error": {
            "message": error.message,
            "type": _OPENAI_TYPES.get(error.status, fallback),
            "param": error.param or None,
            "code": error.code,
        }
    }


def anthropic_body(error: ServiceError, request_id: str = "") -> dict[str, Any]:
    fallback = "invalid_request_error" if error.status < 500 else "api_error"
    message = error.message
    if error.kind is Kind.CONTEXT_TOO_LONG and "prompt is too long" not in message:
        # Agents look for these words to compact their history.
        message = f"prompt is too long: {message}"
    return {
        "type": "error",
        "error": {"type": _ANTHROPIC_TYPES.get(error.status, fallback), "message": message},
        "request_id": request_id or None,
    }


def error_response(request: web.BaseRequest, error: ServiceError, request_id: str) -> web.Response:
    """The answer to a request that failed before its body began."""
    if request.path.startswith("/api/"):  # Ollama's
        body: dict[str, Any] = {"error": error.message}
    else:
        anthropic = speaks_anthropic(request)
        body = anthropic_body(error, request_id) if anthropic else openai_body(error)
    headers = {}
    if error.kind in _FINAL_KINDS and not isinstance(error, MemoryFull):
        headers["x-should-retry"] = "false"
    elif error.retry_after_s or error.status in (429, 503):
        headers["Retry-After"] = str(error.retry_after_s or 1)
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return web.Response(
        body=json.dumps(body).encode(),
        status=error.status,
        content_type="application/json",
        headers=headers,
    )


def speaks_anthropic(request: web.BaseRequest) -> bool:
    return request.path.startswith("/v1/messages") or "anthropic-version" in request.headers


def from_http_exception(error: web.HTTPException, request: web.BaseRequest) -> ServiceError:
    """aiohttp's own refusals (no route, wrong method, body too large) as ours."""
    if error.status == 404:
        message, code = f"no such path: {request.method} {request.path}", "not_found"
    elif error.status == 405:
        allowed = error.headers.get("Allow", "")
        message, code = f"{request.method} is not for {request.path}; use {allowed}", "bad_method"
    elif error.status == 413:
        message, code = (
            "the request body is larger than http.max_body_bytes allows",
            "body_too_large",
        )
    else:
        message, code = error.reason or "bad request", "bad_request"
    kind = Kind.INVALID if error.status < 500 else Kind.INTERNAL
    return ServiceError(kind, message, code=code, status=error.status)


def fault_of(finished: m.Finished) -> ServiceError | None:
    """The error that a finished event carries, if it is one."""
    reason = m.FinishedReason
    if finished.fault is not None:
        fault = finished.fault
        return ServiceError(
            fault.kind, fault.message, param=fault.param, retry_after_s=fault.retry_after_s
        )
    if finished.reason == reason.ABORT:
        return ServiceError(Kind.ABORTED, "the request was cancelled")
    if finished.reason in (reason.ERROR, reason.REASON_UNSPECIFIED):
        return ServiceError(Kind.INTERNAL, "the engine ended the request without a reason")
    return None
