"""The event stream of `/v1/responses`: items opened, filled and closed, one after another.

The answer that is not streamed is made by the same machine, with its events thrown away, so the
two cannot differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from swiftlm_proto import messages as m
from swiftlmd.faults import ServiceError
from swiftlmd.http.openai_json import named_event, quote
from swiftlmd.http.responses_items import (
    Body,
    Compaction,
    Message,
    OpenItem,
    Reasoning,
    ResponseCall,
    logprob_body,
    summary_part,
    text_part,
    usage_body,
)
from swiftlmd.http.responses_tools import TOOL_SEARCH, ToolTable

_PREFIXES = {"function": "fc", "custom": "ctc", TOOL_SEARCH: "tsc"}


class ResponseEvents:
    """Builds the output items of one response. `body` is whole after `end`."""

    def __init__(
        self,
        body: Body,
        tools: ToolTable,
        seal: bool,
        keep: Callable[[Body], None],
        *,
        compacts: bool = False,
        warnings: list[str] | None = None,
    ) -> None:
        self.body = body
        self._keep = keep  # told of the body once it is whole
        self._tools = tools
        self._seal = seal  # whether reasoning must come back from the client
        self._warnings = warnings  # filled while the generation runs
        self._compacts = compacts  # the text is a summary for this service itself
        self._number = 0
        self._started = False
        self._open: OpenItem | None = None
        self._finished = m.Finished()
        self._tail = str(body["id"]).removeprefix("resp_")

    def encode(self, event: m.SequenceEvent) -> bytes:
        if event.delta is not None:
            return self._start() + self._delta(event.delta)
        if event.started is not None:
            return self._start()
        if event.finished is not None:
            self._finished = event.finished
        return b""

    def end(self, usage: m.Usage) -> bytes:
        cut = self._finished.reason == m.FinishedReason.LENGTH and not self._compacts
        out = self._start()
        if self._compacts:
            out += self._summary("")  # the client waits for the item, also for an empty one
        out += self._close("incomplete" if cut else "completed")
        self.body["usage"] = usage_body(usage)
        if self._warnings:
            self.body["warnings"] = self._warnings
        self.body["status"] = "incomplete" if cut else "completed"
        if cut:
            self.body["incomplete_details"] = {"reason": "max_output_tokens"}
        self._keep(self.body)
        last = "response.incomplete" if cut else "response.completed"
        return out + self._event(last, response=self.body)

    def error(self, error: ServiceError) -> bytes:
        start = self._start()
        self.body["status"] = "failed"
        self.body["error"] = {"code": error.code, "message": error.message}
        failed = self._event("response.failed", response=self.body)
        # The SDKs raise for an event with an `error` member, and only for that.
        detail = {"code": error.code, "message": error.message, "param": error.param or None}
        return start + failed + self._event("error", **detail, error=detail)

    def idle(self) -> bytes:
        return b""

    def _start(self) -> bytes:
        if self._started:
            return b""
        self._started = True
        created = self._event("response.created", response=self.body)
        return created + self._event("response.in_progress", response=self.body)

    def _delta(self, delta: m.Delta) -> bytes:
        if self._compacts:
            return self._summary(delta.content)
        out = b""
        if delta.reasoning:
            out += self._reasoning(delta.reasoning)
        # Log-probabilities of thoughts and calls ride on deltas without text, and have no place.
        is_text = not delta.reasoning and not delta.tool_calls and isinstance(self._open, Message)
        if delta.content or (delta.logprobs and is_text):
            out += self._text(delta)
        for call in delta.tool_calls:
            out += self._call(call)
        return out

    def _summary(self, text: str) -> bytes:
        item, out = self._open, b""
        if not isinstance(item, Compaction):
            item = Compaction(*self._place("cmp"))
            out = self._begin(item)
        item.pieces.append(text)
        return out

    def _reasoning(self, text: str) -> bytes:
        item, out = self._open, b""
        if not isinstance(item, Reasoning):
            item = Reasoning(*self._place("rs"), self._seal)
            out = self._begin(item)
            at = self._at(item, summary_index=0, part=summary_part(""))
            out += self._event("response.reasoning_summary_part.added", **at)
        item.pieces.append(text)
        raw, summary = self._at(item, content_index=0), self._at(item, summary_index=0)
        out += self._event("response.reasoning_text.delta", **raw, delta=text)
        return out + self._event("response.reasoning_summary_text.delta", **summary, delta=text)

    def _text(self, delta: m.Delta) -> bytes:
        item, out = self._open, b""
        if not isinstance(item, Message):
            item = Message(*self._place("msg"))
            at = {"item_id": item.id, "output_index": item.output_index, "content_index": 0}
            out = self._begin(item)
            out += self._event("response.content_part.added", **at, part=text_part("", []))
        item.pieces.append(delta.content)
        if delta.logprobs:
            logprobs = [logprob_body(token) for token in delta.logprobs]
            item.logprobs += logprobs
            at = self._at(item, content_index=0)
            return out + self._event(
                "response.output_text.delta", **at, delta=delta.content, logprobs=logprobs
            )
        text = f'{item.before_text}{quote(delta.content)},"sequence_number":{self._number}}}\n\n'
        self._number += 1
        return out + text.encode("ascii")

    def _call(self, call: m.ToolCallDelta) -> bytes:
        item, out = self._open, b""
        if not isinstance(item, ResponseCall) or item.index != call.index:
            offered = self._tools.offered(call.name)
            item = ResponseCall(*self._place(_PREFIXES[offered.type]), call, offered)
            out = self._begin(item)
        if not call.arguments:
            return out
        item.pieces.append(call.arguments)
        if item.offered.type != "function":
            # A custom tool's text is inside a JSON string; it goes out when that closes.
            return out
        return out + self._event(
            "response.function_call_arguments.delta", **self._at(item), delta=call.arguments
        )

    def _place(self, prefix: str) -> tuple[str, int]:
        """The id and the index of the next item."""
        index = len(self.body["output"]) + (self._open is not None)
        return f"{prefix}_{self._tail}_{index}", index

    def _begin(self, item: OpenItem) -> bytes:
        out = self._close("completed")
        self._open = item
        return out + self._event(
            "response.output_item.added",
            output_index=item.output_index,
            item=item.body("in_progress"),
        )

    def _close(self, status: str) -> bytes:
        item, self._open = self._open, None
        if item is None:
            return b""
        body = item.body(status)
        self.body["output"].append(body)
        out = b"".join(
            self._event(name, **self._at(item, **fields)) for name, fields in item.closing()
        )
        return out + self._event(
            "response.output_item.done", output_index=item.output_index, item=body
        )

    def _at(self, item: OpenItem, **more: Any) -> Body:  # Any: JSON
        return {"item_id": item.id, "output_index": item.output_index, **more}

    def _event(self, name: str, /, **fields: Any) -> bytes:  # Any: JSON
        number = self._number
        self._number += 1
        return named_event(name, {"type": name, **fields, "sequence_number": number})
