"""Output items of a response while they grow: reasoning, a message, a call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from swiftlm_proto import messages as m
from swiftlmd.http.openai_json import finite, token_text
from swiftlmd.http.responses_input import seal
from swiftlmd.http.responses_tools import TOOL_SEARCH, Offered, arguments_object, custom_input

Body = dict[str, Any]  # Any: JSON
Closing = Iterator[tuple[str, Body]]


class OpenItem(Protocol):
    """The item that deltas go to now."""

    id: str
    output_index: int
    pieces: list[str]

    def body(self, status: str) -> Body:
        """The item as JSON, with the text so far."""

    def closing(self) -> Closing:
        """The events, beside `output_item.done`, that say that its text is whole."""


class Reasoning:
    """Thoughts, as `content` and as `summary`: some clients show the one, some the other."""

    def __init__(self, item_id: str, output_index: int, sealed: bool) -> None:
        self.id = item_id
        self.output_index = output_index
        self.pieces: list[str] = []
        self._sealed = sealed  # the client keeps only the opaque field and sends it back

    def body(self, status: str) -> Body:
        text = "".join(self.pieces)
        body: Body = {
            "id": self.id,
            "type": "reasoning",
            "summary": [summary_part(text)] if text else [],
            "content": [{"type": "reasoning_text", "text": text}] if text else [],
            "status": status,
        }
        if self._sealed:
            body["encrypted_content"] = seal(text)
        return body

    def closing(self) -> Closing:
        text = "".join(self.pieces)
        yield "response.reasoning_text.done", {"content_index": 0, "text": text}
        yield "response.reasoning_summary_text.done", {"summary_index": 0, "text": text}
        part = summary_part(text)
        yield "response.reasoning_summary_part.done", {"summary_index": 0, "part": part}


class Compaction:
    """A summary of the conversation; only this service reads it, from where it is sealed."""

    def __init__(self, item_id: str, output_index: int) -> None:
        self.id = item_id
        self.output_index = output_index
        self.pieces: list[str] = []

    def body(self, status: str) -> Body:
        sealed = seal("".join(self.pieces))
        return {"id": self.id, "type": "compaction", "encrypted_content": sealed}

    def closing(self) -> Closing:
        yield from ()


class Message:
    def __init__(self, item_id: str, output_index: int) -> None:
        self.id = item_id
        self.output_index = output_index
        self.pieces: list[str] = []
        self.logprobs: list[Body] = []
        # The path of nearly every token: only the text and the number behind it are new.
        self.before_text = (
            'event: response.output_text.delta\ndata: {"type":"response.output_text.delta",'
            f'"item_id":"{item_id}","output_index":{output_index},"content_index":0,'
            '"logprobs":[],"delta":'
        )

    def body(self, status: str) -> Body:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [] if status == "in_progress" else [self._part()],
        }

    def closing(self) -> Closing:
        text = "".join(self.pieces)
        yield (
            "response.output_text.done",
            {"content_index": 0, "text": text, "logprobs": self.logprobs},
        )
        yield "response.content_part.done", {"content_index": 0, "part": self._part()}

    def _part(self) -> Body:
        return text_part("".join(self.pieces), self.logprobs)


class ResponseCall:
    def __init__(
        self, item_id: str, output_index: int, first: m.ToolCallDelta, offered: Offered
    ) -> None:
        self.id = item_id
        self.output_index = output_index
        self.pieces: list[str] = []
        self.index = first.index
        self.offered = offered
        self._call_id = first.id

    def body(self, status: str) -> Body:
        arguments = "".join(self.pieces)
        body: Body = {"id": self.id, "call_id": self._call_id}
        if self.offered.type == TOOL_SEARCH:
            parsed = arguments_object(arguments) if status != "in_progress" else {}
            return {
                **body,
                "type": "tool_search_call",
                "execution": "client",
                "arguments": parsed,
                "status": status,
            }
        body["name"] = self.offered.name
        if self.offered.type == "custom":
            body |= {"type": "custom_tool_call", "input": custom_input(arguments)}
        else:
            body |= {"type": "function_call", "arguments": arguments}
        body["status"] = status
        if self.offered.namespace:
            body["namespace"] = self.offered.namespace
        return body

    def closing(self) -> Closing:
        arguments = "".join(self.pieces)
        if self.offered.type == TOOL_SEARCH:
            return  # no event of its own; the whole item says it
        if self.offered.type == "custom":
            text = custom_input(arguments)
            yield "response.custom_tool_call_input.delta", {"delta": text}
            yield "response.custom_tool_call_input.done", {"input": text}
        else:
            name = self.offered.name
            yield "response.function_call_arguments.done", {"arguments": arguments, "name": name}


def summary_part(text: str) -> Body:
    return {"type": "summary_text", "text": text}


def text_part(text: str, logprobs: list[Body]) -> Body:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def logprob_body(token: m.TokenLogprob) -> Body:
    top = [_token(other) for other in token.top]
    return {**_token(token), "top_logprobs": top}


def _token(token: m.TokenLogprob) -> Body:
    return {
        "token": token_text(token),
        "bytes": list(token.token),
        "logprob": finite(token.logprob),
    }


def usage_body(usage: m.Usage) -> Body:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
