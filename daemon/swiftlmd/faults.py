"""Every failure a client can meet, named by who must act, and its place in HTTP.

Engines and the daemon raise or send `messages.Fault`; inside the daemon a fault travels as
`ServiceError`. The dialects turn it into their own error shapes; nothing else translates errors.
"""

from __future__ import annotations

import difflib
import shlex

from swiftlm_proto import messages as m

Kind = m.FaultKind

_HTTP_STATUS = {
    Kind.INVALID: 400,
    Kind.CONTEXT_TOO_LONG: 400,
    Kind.UNSUPPORTED: 400,
    Kind.BUSY: 429,
    Kind.DEADLINE: 504,
    Kind.NOT_ENOUGH_MEMORY: 507,
    Kind.SHUTTING_DOWN: 503,
    Kind.NO_DEVICE: 503,
    Kind.MODEL_BROKEN: 503,
    Kind.ABORTED: 499,
    Kind.INTERNAL: 500,
}

_CODE = {
    Kind.INVALID: "invalid_value",
    Kind.CONTEXT_TOO_LONG: "context_length_exceeded",
    Kind.UNSUPPORTED: "unsupported_value",
    Kind.BUSY: "queue_full",
    Kind.DEADLINE: "deadline_exceeded",
    Kind.NOT_ENOUGH_MEMORY: "cannot_fit",
    Kind.SHUTTING_DOWN: "shutting_down",
    Kind.NO_DEVICE: "no_device",
    Kind.MODEL_BROKEN: "model_broken",
    Kind.ABORTED: "aborted",
    Kind.INTERNAL: "internal_error",
}


MAX_MESSAGE = 4000  # characters; a message may repeat what a client sent, and goes to logs
MAX_NAME = 200  # of one name in it
_MAX_NAMED = 20  # models that are listed in it


def shortened(text: str, limit: int) -> str:
    """At most `limit` characters: the beginning, and the end, where a message says what to do."""
    if len(text) <= limit:
        return text
    head = limit // 2
    return f"{text[:head]}…{text[head + 1 - limit :]}"


class ServiceError(Exception):
    """A failure with an answer: what happened, to what, and what to do next (the message)."""

    def __init__(
        self,
        kind: m.FaultKind,
        message: str,
        *,
        param: str = "",
        code: str = "",
        status: int = 0,
        retry_after_s: int = 0,
    ) -> None:
        message = shortened(message, MAX_MESSAGE)
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.param = shortened(param, MAX_NAME)
        self.code = code or _CODE.get(kind, "internal_error")
        self.status = status or _HTTP_STATUS.get(kind, 500)
        self.retry_after_s = retry_after_s

    def to_fault(self) -> m.Fault:
        return m.Fault(
            kind=self.kind,
            message=self.message,
            param=self.param,
            retry_after_s=self.retry_after_s,
        )


class MemoryFull(ServiceError):
    """There is no memory for it now. What never fits is a plain NOT_ENOUGH_MEMORY, and final."""

    def __init__(self, message: str, *, retry_after_s: int) -> None:
        super().__init__(
            Kind.NOT_ENOUGH_MEMORY,
            message,
            code="memory_full",
            status=503,
            retry_after_s=retry_after_s,
        )


class ModelNotFound(ServiceError):
    """No model of that name is here, and none may be fetched without being asked for."""

    def __init__(self, name: str, known: list[str]) -> None:
        name = shortened(name, MAX_NAME)
        listed = ", ".join(known[:_MAX_NAMED]) if known else "none yet"
        if len(known) > _MAX_NAMED:
            listed += f" and {len(known) - _MAX_NAMED:,} more (`swiftlmctl models`)"
        spelled = {known_name.lower(): known_name for known_name in known}
        spelled |= {key.rpartition("/")[2]: value for key, value in spelled.items()}
        near = [spelled[key] for key in difflib.get_close_matches(name.lower(), spelled, n=1)]
        advice = "`swiftlmctl models search WORDS` finds others"
        if "/" in name:  # as the hub's names have; no hub has a plain word
            advice = f"fetch it with `swiftlmctl pull {shlex.quote(name)}`"
        meant = f"did you mean '{near[0]}'? " if near else ""
        super().__init__(
            Kind.INVALID,
            f"model '{name}' is not here; {meant}models on this machine: {listed}; {advice}",
            param="model",
            code="model_not_found",
            status=404,
        )


def from_fault(fault: m.Fault) -> ServiceError:
    """The exception for a fault that an engine sent."""
    return ServiceError(
        fault.kind, fault.message, param=fault.param, retry_after_s=fault.retry_after_s
    )
