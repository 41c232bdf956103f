"""Ollama's answers: one JSON object a line while it streams, or one object.

A tool call is sent whole, as its arguments are an object. The last line has the counts and the
times, in nanoseconds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from swiftlm_proto import messages as m
from swiftlmd.faults import ServiceError
from swiftlmd.http.collect import Choice
from swiftlmd.http.generation import Generation
from swiftlmd.http.openai_json import chat_logprobs, dumps

Json = dict[str, Any]  # Any: JSON

# What is not streamed goes out as one such object, too.
CONTENT_TYPE = "application/x-ndjson"
_NS = 1_000_000_000
_REASONS = {m.FinishedReason.LENGTH: "length"}


class Shape:
    """Where an answer's pieces stand: `message` of a chat, or the object itself of a prompt."""

    def __init__(self, model: str, is_chat: bool, clock: Callable[[], float]) -> None:
        self._model = model
        self._is_chat = is_chat
        self._clock = clock

    def line(self, content: str, thinking: str = "", calls: list[Json] | None = None) -> Json:
        moment = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="microseconds")
        head: Json = {"model": self._model, "created_at": moment.replace("+00:00", "Z")}
        said: Json = {"content": content} if self._is_chat else {"response": content}
        if thinking:
            said["thinking"] = thinking
        if calls:
            said["tool_calls"] = calls
        if self._is_chat:
            said = {"message": {"role": "assistant", **said}}
        return {**head, **said, "done": False}


class Lines:
    """The `Encoder` of a streamed answer."""

    def __init__(self, shape: Shape, generation: Generation, warnings: list[str]) -> None:
        self._shape = shape
        self._generation = generation
        self._warnings = warnings
        self._began_at = time.monotonic()
        self._call = m.ToolCall()  # the one whose arguments come in
        self._call_index = -1
        self._finished = m.Finished()

    def encode(self, event: m.SequenceEvent) -> bytes:
        if event.delta is not None:
            return self._delta(event.delta)
        if event.finished is not None:
            self._finished = event.finished
            return self._whole_call()
        return b""

    def end(self, usage: m.Usage) -> bytes:
        last = self._shape.line("")
        last |= closing(self._finished, usage, self._generation.timings, self._began_at)
        if warnings := [*self._warnings, *self._generation.warnings]:
            last["warnings"] = warnings
        return _line(last)

    def error(self, error: ServiceError) -> bytes:
        return _line(error_body(error))

    def idle(self) -> bytes:
        """A piece without text: Ollama has no comments, and every client reads these."""
        return _line(self._shape.line(""))

    def _delta(self, delta: m.Delta) -> bytes:
        out = b""
        if delta.content or delta.reasoning or delta.logprobs:
            body = self._shape.line(delta.content, delta.reasoning)
            if delta.logprobs:
                body["logprobs"] = chat_logprobs(delta.logprobs)["content"]
            out = _line(body)
        for part in delta.tool_calls:
            if part.index != self._call_index:
                out += self._whole_call()
                self._call_index = part.index
                self._call = m.ToolCall(id=part.id, name=part.name)
            self._call.arguments += part.arguments
        return out

    def _whole_call(self) -> bytes:
        call, self._call = self._call, m.ToolCall()
        if not call.name:
            return b""
        return _line(self._shape.line("", calls=[_call_body(call, self._call_index)]))


def whole(
    shape: Shape, choice: Choice, generation: Generation, began_at: float, warnings: list[str]
) -> Json:
    calls = [_call_body(call, number) for number, call in enumerate(choice.tool_calls)]
    body = shape.line(choice.content, choice.reasoning, calls)
    if choice.logprobs:
        body["logprobs"] = chat_logprobs(choice.logprobs)["content"]
    body |= closing(choice.finished, generation.usage, generation.timings, began_at)
    if told := [*warnings, *generation.warnings]:
        body["warnings"] = told
    return body


def closing(
    finished: m.Finished, usage: m.Usage, timings: m.Timings | None, began_at: float
) -> Json:
    """The end of an answer. What was neither waiting nor computing was loading."""
    timings = timings or m.Timings()
    total_s = time.monotonic() - began_at
    load_s = max(0.0, total_s - timings.queue_s - timings.prefill_s - timings.decode_s)
    return {
        "done": True,
        "done_reason": _REASONS.get(finished.reason, "stop"),
        "total_duration": int(total_s * _NS),
        "load_duration": int(load_s * _NS),
        "prompt_eval_count": usage.prompt_tokens,
        "prompt_eval_duration": int(timings.prefill_s * _NS),
        "eval_count": usage.completion_tokens,
        "eval_duration": int(timings.decode_s * _NS),
    }


def error_body(error: ServiceError) -> Json:
    return {"error": error.message}


def _call_body(call: m.ToolCall, index: int) -> Json:
    function = {"index": index, "name": call.name, "arguments": _arguments(call.arguments)}
    return {"id": call.id, "function": function}


def _arguments(text: str) -> Json:
    """The arguments as an object; a call that the token limit cut keeps its text."""
    try:
        parsed = json.loads(text or "{}")
    except ValueError:
        return {"INVALID_JSON": text}
    return parsed if isinstance(parsed, dict) else {"INVALID_JSON": text}


def _line(body: Json) -> bytes:
    return f"{dumps(body)}\n".encode("ascii")
