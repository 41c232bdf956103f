"""`POST /v1/completions`: text, token ids or several of them, continued as they are."""

from __future__ import annotations

import codecs
import math
from typing import Any

from aiohttp import web
from pydantic import AliasChoices, Field

from swiftlm_proto import messages as m
from swiftlmd.config.http import HttpOptions
from swiftlmd.faults import ServiceError
from swiftlmd.http import sampling, sse
from swiftlmd.http.collect import Choice, collect
from swiftlmd.http.context import CONTEXT
from swiftlmd.http.errors import invalid, openai_body, unsupported
from swiftlmd.http.generation import Generation, begin
from swiftlmd.http.openai_json import (
    DONE,
    FINISH_REASONS,
    data_event,
    dumps,
    finite,
    quote,
    timings_body,
    token_text,
    trailer_event,
    usage_body,
)
from swiftlmd.http.response_format import ResponseFormat, constraint
from swiftlmd.http.schema import LimitOrZero, TopLogprobs


class CompletionRequest(sampling.Sampled):
    prompt: str | list[str] | list[int] | list[list[int]]
    max_tokens: LimitOrZero = Field(  # 0 with echo: what the prompt itself is worth
        default=None, validation_alias=AliasChoices("max_tokens", "num_predict", "n_predict")
    )
    suffix: str | None = None
    echo: bool | None = None
    logprobs: TopLogprobs | None = None
    response_format: ResponseFormat | None = None


async def completions(request: web.Request) -> web.StreamResponse:
    parts = request.app[CONTEXT]
    body = await parts.bodies.read(request, CompletionRequest)
    record = await begin(request, body.model, bool(body.stream))
    generation = Generation(request, to_engine(body, parts.options))
    head = {
        "id": f"cmpl-{record.request_id}",
        "created": int(parts.clock()),
        "model": record.model,
        "object": "text_completion",
    }
    if body.stream:
        options = body.stream_options
        encoder = CompletionChunks(head, bool(options and options.include_usage), generation)
        return await sse.stream(request, generation, encoder)
    choices = await collect(generation)
    return web.json_response(_whole_body(head, choices, generation), dumps=dumps)


def to_engine(body: CompletionRequest, options: HttpOptions) -> list[m.GenerateRequest]:
    """One engine request for each prompt."""
    if body.max_tokens == 0 and not body.echo:
        raise invalid("max_tokens: 0 makes sense only with echo: true", "max_tokens")
    requests = [_prompted(prompt, body) for prompt in _prompts(body.prompt, options)]
    for request in requests:
        sampling.apply(body, request, options)
        request.raw_text = True
        request.echo = bool(body.echo)
        request.top_logprobs = body.logprobs
        shape = constraint(body.response_format, "response_format")
        request.constraint = shape or request.constraint
    return requests


Prompt = str | list[int]


def _prompts(prompt: str | list[str] | list[int] | list[list[int]], o: HttpOptions) -> list[Prompt]:
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise invalid("prompt: must not be empty", "prompt")
    if isinstance(prompt[0], int):
        return [[i for i in prompt if isinstance(i, int)]]
    if len(prompt) > o.max_prompts:
        raise invalid(f"prompt: at most {o.max_prompts} prompts", "prompt")
    return [one for one in prompt if not isinstance(one, int)]


def _prompted(prompt: Prompt, body: CompletionRequest) -> m.GenerateRequest:
    if isinstance(prompt, list):
        if not prompt:
            raise invalid("prompt: a list of token ids must not be empty", "prompt")
        if body.suffix:
            raise unsupported("suffix: needs a text prompt", "suffix")
        ids = [sampling.token_id(i, "prompt") for i in prompt]
        return m.GenerateRequest(token_ids=m.TokenIds(ids=ids))
    if body.suffix:
        return m.GenerateRequest(infill=m.Infill(prefix=prompt, suffix=body.suffix))
    return m.GenerateRequest(text=prompt)


def _whole_body(
    head: dict[str, Any], choices: list[Choice], generation: Generation
) -> dict[str, Any]:
    body = {
        **head,
        "choices": [_choice_body(index, choice) for index, choice in enumerate(choices)],
        "usage": usage_body(generation.usage),
        "system_fingerprint": None,
    }
    if generation.timings is not None:
        body["timings"] = timings_body(generation.timings)
    return body


def _choice_body(index: int, choice: Choice) -> dict[str, Any]:
    body = {
        "index": index,
        "text": choice.content,
        "logprobs": _logprobs(choice.logprobs, _TextOffsets()) if choice.logprobs else None,
        "finish_reason": FINISH_REASONS[choice.finished.reason],
    }
    if choice.token_ids:
        body["token_ids"] = choice.token_ids
    return body


class _TextOffsets:
    """Where each token of a text begins, in characters; one may begin inside a character."""

    def __init__(self) -> None:
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        self._at = 0

    def of(self, token: m.TokenLogprob) -> int:
        at = self._at
        self._at += len(self._characters.decode(token.token))
        return at


def _logprobs(logprobs: list[m.TokenLogprob], offsets: _TextOffsets) -> dict[str, Any]:
    """The older shape: four columns. The first token of a prompt has no log-probability."""
    return {
        "tokens": [token_text(token) for token in logprobs],
        "token_logprobs": [
            None if math.isnan(token.logprob) else finite(token.logprob) for token in logprobs
        ],
        "top_logprobs": [
            {token_text(other): finite(other.logprob) for other in token.top} or None
            for token in logprobs
        ],
        "text_offset": [offsets.of(token) for token in logprobs],
    }


class CompletionChunks:
    """Chunks of a streamed completion; everything but the text of a chunk is made once."""

    def __init__(self, head: dict[str, Any], include_usage: bool, generation: Generation) -> None:
        self._head = {**head, "system_fingerprint": None}
        self._include_usage = include_usage
        self._generation = generation
        self._begin = f'data: {dumps(self._head)[:-1]},"choices":[{{"index":'
        self._end = '],"usage":null}\n\n' if include_usage else "]}\n\n"
        self._after_text = ',"logprobs":null,"finish_reason":null}' + self._end
        self._before_text = [
            f'{self._begin}{index},"text":' for index in range(generation.num_choices)
        ]
        self._offsets = [_TextOffsets() for _ in range(generation.num_choices)]

    def encode(self, event: m.SequenceEvent) -> bytes:
        delta = event.delta
        if delta is not None:
            return self._delta(event.index, delta)
        finished = event.finished
        if finished is not None:
            return self._chunk(event.index, "", None, FINISH_REASONS[finished.reason])
        return b""

    def end(self, usage: m.Usage) -> bytes:
        if not self._include_usage:
            return DONE
        return trailer_event(self._head, usage, self._generation.timings) + DONE

    def error(self, error: ServiceError) -> bytes:
        return data_event(openai_body(error))

    def idle(self) -> bytes:
        return b""

    def _delta(self, index: int, delta: m.Delta) -> bytes:
        if delta.logprobs or delta.token_ids:
            logprobs = _logprobs(delta.logprobs, self._offsets[index]) if delta.logprobs else None
            return self._chunk(index, delta.content, logprobs, None, delta.token_ids)
        if not delta.content:
            return b""
        text = self._before_text[index] + quote(delta.content) + self._after_text
        return text.encode("ascii")

    def _chunk(
        self,
        index: int,
        text: str,
        logprobs: dict[str, Any] | None,
        reason: str | None,
        token_ids: list[int] | None = None,
    ) -> bytes:
        rest: dict[str, Any] = {"text": text, "logprobs": logprobs, "finish_reason": reason}
        if token_ids:
            rest["token_ids"] = token_ids
        return f"{self._begin}{index},{dumps(rest)[1:]}{self._end}".encode("ascii")
