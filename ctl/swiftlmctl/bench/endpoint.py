"""One OpenAI server, ours or another: a streamed chat request and what it took.

The standard library's client, one connection a request: the clock sees the server, not a client.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any  # JSON values
from urllib.parse import urlsplit

from swiftlmctl.errors import CtlError

Message = Mapping[str, Any]
_TIMEOUT_S = 3600.0


class Refused(CtlError):
    """The server is there and does not want this request."""


@dataclass(frozen=True, slots=True)
class EndpointReply:
    """One answer. Seconds count from the request's first byte."""

    text: str
    first_s: float  # until the first token of text or thought
    total_s: float
    num_tokens: int
    prompt_tokens: int
    cached_tokens: int
    tool_calls: tuple[Mapping[str, Any], ...] = ()

    @property
    def decode_tokens_per_s(self) -> float:
        """0 where the answer is too short to have a speed."""
        decode_s = self.total_s - self.first_s
        return (self.num_tokens - 1) / decode_s if self.num_tokens > 1 and decode_s > 0 else 0.0

    @property
    def prefill_tokens_per_s(self) -> float:
        return (self.prompt_tokens - self.cached_tokens) / self.first_s if self.first_s else 0.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`url` ends in /v1."""

    url: str
    model: str
    key: str = ""

    def chat(self, messages: Sequence[Message], **fields: Any) -> EndpointReply:
        """Greedy unless `fields` say otherwise. Raises CtlError with the server's own words.

        A base model, which has no chat template, gets the same texts as a plain prompt.
        """
        try:
            return self._answer("/chat/completions", {"messages": list(messages), **fields})
        except Refused as error:
            if "no chat template" not in error.message or "tools" in fields:
                raise
            prompt = "\n\n".join(message["content"] for message in messages)
            return self._answer("/completions", {"prompt": prompt, **fields})

    def _answer(self, path: str, asked: Mapping[str, Any]) -> EndpointReply:
        body = {
            "model": self.model,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0,
            **asked,
        }
        started = time.perf_counter()
        reply = _collect(self._events(path, body), started)
        if reply is None:
            raise CtlError(f"{self.url} broke off its answer")
        return reply

    def next_token(self, prompt: str) -> tuple[str, dict[str, float]]:
        """The likeliest next token of a plain text and the log-probabilities of the top few."""
        body = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": 1,
            "temperature": 0,
            "logprobs": 5,
            "ignore_eos": True,
        }
        choice = self.post("/completions", body)["choices"][0]
        return choice["text"], choice["logprobs"]["top_logprobs"][0]

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The JSON answer of one plain request."""
        connection, reply = self._send(path, body)
        try:
            return json.loads(reply.read())
        finally:
            connection.close()

    def _events(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        connection, reply = self._send(path, body)
        try:
            for line in reply:
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    if "error" in event:
                        raise CtlError(f"{self.url}: {event['error'].get('message', event)}")
                    yield event
        except (OSError, http.client.HTTPException) as error:
            raise CtlError(f"{self.url} broke off its answer: {error!r}") from error
        finally:
            connection.close()

    def _send(
        self, path: str, body: Mapping[str, Any]
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        parts = urlsplit(self.url)
        secure = parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = kind(parts.netloc, timeout=_TIMEOUT_S)
        headers = {"content-type": "application/json"}
        if self.key:
            headers["authorization"] = f"Bearer {self.key}"
        try:
            connection.request("POST", parts.path + path, json.dumps(body), headers)
            reply = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise CtlError(f"{self.url} does not answer: {error}") from error
        if reply.status != 200:
            words = reply.read(2000).decode("utf-8", "replace")
            connection.close()
            raise Refused(f"{self.url}{path}: {reply.status} {_message(words)}")
        return connection, reply


def _collect(events: Iterator[dict[str, Any]], started: float) -> EndpointReply | None:
    """None when the stream ended before the answer did."""
    first: float | None = None
    ended, num_pieces = False, 0
    texts: list[str] = []
    calls: dict[int, dict[str, str]] = {}
    usage: dict[str, Any] = {}
    for event in events:
        usage = event.get("usage") or usage
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {"content": choice.get("text")}
            ended = ended or bool(choice.get("finish_reason"))
            if any(delta.get(part) for part in _CONTENT):
                num_pieces += 1
                first = first or time.perf_counter() - started
            texts.append(delta.get("content") or "")
            for call in delta.get("tool_calls") or ():
                _join(calls.setdefault(call.get("index", 0), {"name": "", "arguments": ""}), call)
    if not ended:
        return None
    total = time.perf_counter() - started
    details = usage.get("prompt_tokens_details") or {}
    return EndpointReply(
        "".join(texts),
        total if first is None else first,
        total,
        usage.get("completion_tokens") or num_pieces,  # some servers count nothing in a stream
        usage.get("prompt_tokens") or 0,
        details.get("cached_tokens") or 0,
        tuple(calls.values()),
    )


_CONTENT = ("content", "reasoning_content", "reasoning", "tool_calls")


def _join(call: dict[str, str], delta: Mapping[str, Any]) -> None:
    function = delta.get("function") or {}
    call["name"] += function.get("name") or ""
    call["arguments"] += function.get("arguments") or ""


def _message(words: str) -> str:
    try:
        return str(json.loads(words)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return words
