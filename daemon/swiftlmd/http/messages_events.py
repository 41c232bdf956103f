"""The event stream of `/v1/messages`: message_start, blocks one after another, message_stop."""

from __future__ import annotations

from typing import Any

from swiftlm_proto import messages as m
from swiftlmd.faults import ServiceError
from swiftlmd.http.errors import anthropic_body
from swiftlmd.http.openai_json import named_event, quote

_STOP_REASONS = {
    m.FinishedReason.STOP: "end_turn",
    m.FinishedReason.LENGTH: "max_tokens",
    m.FinishedReason.TOOL_CALLS: "tool_use",
}

# Libraries drop a thinking block without a signature from the history, or send it as text of the
# user. Nothing is proved by ours, and nobody's is read.
THINKING_SIGNATURE = "c3dpZnRsbQ=="


def stop_reason(finished: m.Finished) -> str:
    if finished.stop_sequence and finished.reason == m.FinishedReason.STOP:
        return "stop_sequence"
    return _STOP_REASONS[finished.reason]


def usage_body(usage: m.Usage) -> dict[str, int]:
    """Anthropic counts what came from the cache apart from the rest of the prompt."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


class MessageEvents:
    """At most one content block is open; another kind of text closes it and opens the next."""

    def __init__(self, message_id: str, model: str, warnings: list[str] | None = None) -> None:
        self._id = message_id
        self._warnings = warnings  # filled while the generation runs
        self._model = model
        self._started = False
        self._open: tuple[str, int] | None = None  # kind, and the index of a tool call
        self._index = -1  # of the open or last block
        self._before_text = ""
        self._finished = m.Finished()

    def encode(self, event: m.SequenceEvent) -> bytes:
        delta = event.delta
        if delta is not None:
            return self._start() + self._delta(delta)
        if event.started is not None:
            started = event.started
            return self._start(
                m.Usage(prompt_tokens=started.prompt_tokens, cached_tokens=started.cached_tokens)
            )
        if event.finished is not None:
            self._finished = event.finished
        return b""

    def end(self, usage: m.Usage) -> bytes:
        finished = self._finished
        body = {
            "type": "message_delta",
            "delta": {
                "stop_reason": stop_reason(finished),
                "stop_sequence": finished.stop_sequence or None,
            },
            "usage": usage_body(usage),
        }
        if self._warnings:
            body["warnings"] = self._warnings
        last = named_event("message_delta", body)
        return (
            self._start()
            + self._close()
            + last
            + named_event("message_stop", _typed("message_stop"))
        )

    def error(self, error: ServiceError) -> bytes:
        return named_event("error", anthropic_body(error))

    def idle(self) -> bytes:
        return named_event("ping", _typed("ping")) if self._started else b""

    def _start(self, usage: m.Usage | None = None) -> bytes:
        if self._started:
            return b""
        self._started = True
        message: dict[str, Any] = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage_body(usage or m.Usage()),
        }
        return named_event("message_start", {"type": "message_start", "message": message})

    def _delta(self, delta: m.Delta) -> bytes:
        out = b""
        if delta.reasoning:
            block = {"type": "thinking", "thinking": "", "signature": ""}
            out += self._ensure(("thinking", 0), block)
            out += self._block_delta({"type": "thinking_delta", "thinking": delta.reasoning})
        if delta.content:
            if self._open != ("text", 0):
                out += self._ensure(("text", 0), {"type": "text", "text": ""})
            out += f"{self._before_text}{quote(delta.content)}}}}}\n\n".encode("ascii")
        for call in delta.tool_calls:
            out += self._call(call)
        return out

    def _call(self, call: m.ToolCallDelta) -> bytes:
        block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
        out = self._ensure(("tool_use", call.index), block)
        if call.arguments:
            out += self._block_delta({"type": "input_json_delta", "partial_json": call.arguments})
        return out

    def _ensure(self, kind: tuple[str, int], block: dict[str, Any]) -> bytes:
        """Opens a block of that kind, unless the open one is it."""
        if self._open == kind:
            return b""
        closed = self._close()
        self._open = kind
        self._index += 1
        self._before_text = (
            'event: content_block_delta\ndata: {"type":"content_block_delta","index":'
            f'{self._index},"delta":{{"type":"text_delta","text":'
        )
        body = {"type": "content_block_start", "index": self._index, "content_block": block}
        return closed + named_event("content_block_start", body)

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        signed = b""
        if self._open[0] == "thinking":
            signed = self._block_delta({"type": "signature_delta", "signature": THINKING_SIGNATURE})
        self._open = None
        body = {"type": "content_block_stop", "index": self._index}
        return signed + named_event("content_block_stop", body)

    def _block_delta(self, delta: dict[str, Any]) -> bytes:
        body = {"type": "content_block_delta", "index": self._index, "delta": delta}
        return named_event("content_block_delta", body)


def _typed(name: str) -> dict[str, str]:
    return {"type": name}
