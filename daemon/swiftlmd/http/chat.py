"""`POST /v1/chat/completions`: OpenAI's chat, in and out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from aiohttp import web

from swiftlm_proto import messages as m
from swiftlmd.faults import ServiceError
from swiftlmd.http import content, sampling, sse
from swiftlmd.http.collect import Choice, collect
from swiftlmd.http.context import CONTEXT, AppContext
from swiftlmd.http.errors import invalid, openai_body, unsupported
from swiftlmd.http.generation import Generation, begin
from swiftlmd.http.openai_json import (
    DONE,
    FINISH_REASONS,
    chat_logprobs,
    data_event,
    dumps,
    quote,
    timings_body,
    trailer_event,
    usage_body,
)
from swiftlmd.http.reasoning import ReasoningOptions, ThinkingOptions, set_reasoning
from swiftlmd.http.response_format import ResponseFormat, constraint
from swiftlmd.http.schema import Int, Limit, TopLogprobs, Unset
from swiftlmd.http.tools import ChatTool, choose, from_chat


class ChatRequest(sampling.Sampled):
    messages: list[content.ChatMessage]
    tools: list[ChatTool] | None = None
    tool_choice: str | dict[str, Any] | None = None  # Any: three shapes, read in `choose`
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    logprobs: bool | None = None
    top_logprobs: Unset[TopLogprobs] = None
    max_completion_tokens: Limit = None
    reasoning_effort: str | None = None
    reasoning: ReasoningOptions | None = None
    thinking: ThinkingOptions | None = None
    enable_thinking: bool | None = None
    thinking_budget: Unset[Int] = None
    chat_template_kwargs: dict[str, Any] | None = None  # Any: what the template understands
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    reasoning_format: str | None = None
    modalities: list[str] | None = None

    refused: ClassVar[Mapping[str, str]] = {
        **sampling.Sampled.refused,
        "functions": "use tools",
        "function_call": "use tool_choice",
        "audio": "no audio is made here",
        "web_search_options": "no search runs here; offer it as a function tool",
    }


async def chat(request: web.Request) -> web.StreamResponse:
    parts = request.app[CONTEXT]
    body = await parts.bodies.read(request, ChatRequest)
    record = await begin(request, body.model, bool(body.stream))
    engine_request = await to_engine(body, parts)
    generation = Generation(request, [engine_request])
    generation.hides_thoughts = ReasoningOptions.hides(body.reasoning)
    head = {
        "id": f"chatcmpl-{record.request_id}",
        "created": int(parts.clock()),
        "model": record.model,
    }
    if body.stream:
        options = body.stream_options
        encoder = ChatChunks(head, bool(options and options.include_usage), generation)
        return await sse.stream(request, generation, encoder)
    choices = await collect(generation)
    return web.json_response(whole_body(head, choices, generation), dumps=dumps)


async def to_engine(body: ChatRequest, parts: AppContext) -> m.GenerateRequest:
    if body.modalities and set(body.modalities) != {"text"}:
        raise unsupported("modalities: only 'text' is made here", "modalities")
    chat = await to_chat(body, parts)
    request = m.GenerateRequest(chat=chat)
    sampling.apply(body, request, parts.options)
    request.max_tokens = sampling.token_limit(body.max_completion_tokens, body.max_tokens)
    request.top_logprobs = _top_logprobs(body)
    request.raw_text = _raw_text(body)
    request.constraint = constraint(body.response_format, "response_format") or request.constraint
    set_reasoning(
        request,
        chat,
        enabled=body.enable_thinking,
        effort=body.reasoning_effort,
        options=body.reasoning,
        thinking=body.thinking,
        budget=body.thinking_budget,
        template_kwargs=body.chat_template_kwargs,
    )
    return request


async def to_chat(body: ChatRequest, parts: AppContext) -> m.Chat:
    chat = m.Chat(
        messages=await content.to_messages(body.messages, parts.images),
        tools=from_chat(body.tools),
        parallel_tool_calls=body.parallel_tool_calls,
        continue_final_message=_continues(body),
    )
    choose(body.tool_choice, chat)
    return chat


def _continues(body: ChatRequest) -> bool:
    """Whether the answer goes on with the last message, in any server's spelling of it."""
    last = len(body.messages) - 1
    for number, message in enumerate(body.messages):
        if message.prefix and (number != last or message.role != "assistant"):
            where = f"messages.{number}.prefix"
            raise invalid(f"{where}: only the last message, from the assistant, can be one", where)
    begun = body.add_generation_prompt is False and body.messages[last].role == "assistant"
    return bool(body.continue_final_message or body.messages[last].prefix) or begun


def _top_logprobs(body: ChatRequest) -> int | None:
    if body.top_logprobs and not body.logprobs:
        raise invalid("top_logprobs: needs logprobs: true", "top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None


def _raw_text(body: ChatRequest) -> bool:
    if body.reasoning_format not in (None, "auto", "none", "deepseek"):
        raise unsupported("reasoning_format: use auto, deepseek or none", "reasoning_format")
    if body.reasoning_format == "none" and body.tools:
        raise unsupported(
            "reasoning_format: none cannot be combined with tools", "reasoning_format"
        )
    return body.reasoning_format == "none"


def whole_body(
    head: dict[str, Any], choices: list[Choice], generation: Generation
) -> dict[str, Any]:
    body = {
        **head,
        "object": "chat.completion",
        "choices": [_choice_body(index, choice) for index, choice in enumerate(choices)],
        "usage": usage_body(generation.usage),
        "system_fingerprint": None,
    }
    if generation.timings is not None:
        body["timings"] = timings_body(generation.timings)
    if generation.warnings:
        body["warnings"] = generation.warnings
    return body


def _choice_body(index: int, choice: Choice) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": choice.content if choice.content or not choice.tool_calls else None,
        "refusal": None,
    }
    if choice.reasoning:
        message["reasoning_content"] = choice.reasoning
        message["reasoning"] = choice.reasoning
    if choice.tool_calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in choice.tool_calls
        ]
    body = {
        "index": index,
        "message": message,
        "logprobs": chat_logprobs(choice.logprobs) if choice.logprobs else None,
        "finish_reason": FINISH_REASONS[choice.finished.reason],
    }
    if choice.token_ids:
        body["token_ids"] = choice.token_ids
    return body


class ChatChunks:
    """Chunks of a streamed chat; everything but the text of a chunk is made once."""

    def __init__(self, head: dict[str, Any], include_usage: bool, generation: Generation) -> None:
        self._include_usage = include_usage
        self._generation = generation
        self._head = {**head, "object": "chat.completion.chunk", "system_fingerprint": None}
        self._begin = f'data: {dumps(self._head)[:-1]},"choices":[{{"index":'
        self._end = ("]," + '"usage":null}\n\n') if include_usage else "]}\n\n"
        after = ',"logprobs":null,"finish_reason":null}' + self._end
        self._after_text = "}" + after
        self._before_text = [
            f'{self._begin}{index},"delta":{{"content":' for index in range(generation.num_choices)
        ]
        self._opened = [False] * generation.num_choices

    def encode(self, event: m.SequenceEvent) -> bytes:
        delta = event.delta
        if delta is not None:
            return self._delta(event.index, delta)
        finished = event.finished
        if finished is not None:
            reason = FINISH_REASONS[finished.reason]
            last = self._chunk(event.index, {}, None, reason)
            return self._role(event.index) + self._with_warnings(last)
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
        role = b"" if self._opened[index] else self._role(index)
        if delta.reasoning or delta.tool_calls or delta.logprobs or delta.token_ids:
            return role + self._rich_delta(index, delta)
        if not delta.content:
            return role
        text = self._before_text[index] + quote(delta.content) + self._after_text
        return role + text.encode("ascii")

    def _rich_delta(self, index: int, delta: m.Delta) -> bytes:
        body: dict[str, Any] = {}
        if delta.reasoning:
            body["reasoning_content"] = body["reasoning"] = delta.reasoning
        if delta.content or not (delta.reasoning or delta.tool_calls):
            body["content"] = delta.content
        if delta.tool_calls:
            body["tool_calls"] = [tool_call_delta(call) for call in delta.tool_calls]
        logprobs = chat_logprobs(delta.logprobs) if delta.logprobs else None
        return self._chunk(index, body, logprobs, None, delta.token_ids)

    def _role(self, index: int) -> bytes:
        """The opening chunk, sent with the first news of a choice."""
        if self._opened[index]:
            return b""
        self._opened[index] = True
        return self._chunk(index, {"role": "assistant", "content": ""}, None, None)

    def _with_warnings(self, chunk: bytes) -> bytes:
        warnings = self._generation.warnings
        if not warnings:
            return chunk
        return chunk.removesuffix(b"}\n\n") + f',"warnings":{dumps(warnings)}}}\n\n'.encode()

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: dict[str, Any] | None,
        reason: str | None,
        token_ids: list[int] | None = None,
    ) -> bytes:
        rest: dict[str, Any] = {"delta": delta, "logprobs": logprobs, "finish_reason": reason}
        if token_ids:
            rest["token_ids"] = token_ids
        return f"{self._begin}{index},{dumps(rest)[1:]}{self._end}".encode("ascii")


def tool_call_delta(call: m.ToolCallDelta) -> dict[str, Any]:
    """The first delta of a call names it; the later ones only add to its arguments."""
    body: dict[str, Any] = {"index": call.index, "function": {"arguments": call.arguments}}
    if call.name:
        body["id"] = call.id
        body["type"] = "function"
        body["function"] = {"name": call.name, "arguments": call.arguments}
    return body
