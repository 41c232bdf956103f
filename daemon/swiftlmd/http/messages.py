"""`POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's chat, in and out."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from swiftlm_proto import messages as m
from swiftlmd.faults import from_fault
from swiftlmd.http import sampling, sse
from swiftlmd.http.collect import Block, Choice, collect
from swiftlmd.http.content import ImageBudget
from swiftlmd.http.context import CONTEXT, AppContext
from swiftlmd.http.errors import invalid
from swiftlmd.http.generation import Generation, begin
from swiftlmd.http.messages_events import (
    THINKING_SIGNATURE,
    MessageEvents,
    stop_reason,
    usage_body,
)
from swiftlmd.http.messages_request import (
    MessagesRequest,
    MessageTool,
    MessageToolChoice,
    is_run_by_client,
    to_messages,
)
from swiftlmd.http.openai_json import dumps
from swiftlmd.http.reasoning import ThinkingOptions, set_reasoning
from swiftlmd.http.response_format import constraint
from swiftlmd.http.tools import checked, choose, make_tool


async def messages(request: web.Request) -> web.StreamResponse:
    parts = request.app[CONTEXT]
    body = await parts.bodies.read(request, MessagesRequest)
    record = await begin(request, body.model, bool(body.stream))
    generation = Generation(request, [await to_engine(body, parts)])
    message_id = f"msg_{record.request_id}"
    if body.stream:
        encoder = MessageEvents(message_id, record.model, generation.warnings)
        return await sse.stream(request, generation, encoder)
    [choice] = await collect(generation)
    answer: dict[str, Any] = {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": record.model,
        "content": _blocks(choice),
        "stop_reason": stop_reason(choice.finished),
        "stop_sequence": choice.finished.stop_sequence or None,
        "usage": usage_body(generation.usage),
    }
    if generation.warnings:
        answer["warnings"] = generation.warnings
    return web.json_response(answer, dumps=dumps)


async def count_tokens(request: web.Request) -> web.Response:
    parts = request.app[CONTEXT]
    body = await parts.bodies.read(request, MessagesRequest)
    record = await begin(request, body.model, False)
    engine_request = await to_engine(body, parts)
    reply = await parts.backend.tokenize(
        record.model, m.TokenizeRequest(chat=engine_request.chat, add_special_tokens=True)
    )
    if reply.fault is not None:
        raise from_fault(reply.fault)
    return web.json_response({"input_tokens": len(reply.ids)}, dumps=dumps)


async def to_engine(body: MessagesRequest, parts: AppContext) -> m.GenerateRequest:
    images = ImageBudget(parts.images)
    last = body.messages[-1] if body.messages else None
    chat = m.Chat(
        messages=await to_messages(body, images),
        tools=_tools(body.tools),
        # An answer that has been begun by the client is continued, not followed by another.
        continue_final_message=last is not None and last.role == "assistant",
    )
    _choose(body.tool_choice, chat)
    request = m.GenerateRequest(chat=chat, max_tokens=sampling.token_limit(body.max_tokens), n=1)
    top_k = None if body.top_k is None else max(0, body.top_k)
    request.sampling = m.Sampling(temperature=body.temperature, top_p=body.top_p, top_k=top_k)
    if body.top_p == 0:
        request.sampling = m.Sampling(temperature=body.temperature, top_k=1)
    request.stop = sampling.stops(body.stop_sequences, parts.options, "stop_sequences")
    output = body.output_config
    request.constraint = constraint(
        (output and output.format) or body.output_format, "output_config.format"
    )
    _set_thinking(body, request, chat)
    request.keep_alive_s = sampling.keep_alive_s(body.keep_alive)
    return request


def _set_thinking(body: MessagesRequest, request: m.GenerateRequest, chat: m.Chat) -> None:
    """Anthropic thinks only when asked to: by `thinking`, or by an effort."""
    effort = body.output_config.effort if body.output_config else None
    asked = body.thinking is not None or effort is not None
    set_reasoning(
        request,
        chat,
        enabled=None if asked else False,
        effort=effort,
        thinking=body.thinking or ThinkingOptions(),
    )


def _tools(tools: list[MessageTool] | None) -> list[m.Tool]:
    """The client's own tools; those that Anthropic would run itself do not exist here."""
    listed = []
    for number, tool in enumerate(tools or ()):
        param = f"tools.{number}"
        if is_run_by_client(tool, param):
            schema = tool.input_schema
            listed.append(make_tool(tool.name, tool.description, schema, tool.strict, param))
    return checked(listed)


def _choose(choice: MessageToolChoice | None, chat: m.Chat) -> None:
    if choice is None:
        return
    if choice.disable_parallel_tool_use:
        chat.parallel_tool_calls = False
    if choice.type == "tool":
        choose({"type": "function", "function": {"name": choice.name}}, chat)
    elif choice.type in ("auto", "any", "none"):
        choose(choice.type, chat)
    else:
        raise invalid("tool_choice.type: use auto, any, tool or none", "tool_choice.type")


def _blocks(choice: Choice) -> list[dict[str, Any]]:
    return [_block(block) for block in choice.blocks]


def _block(block: Block) -> dict[str, Any]:
    call = block.call
    if call is not None:
        tool_input = _input(call.arguments)
        return {"type": "tool_use", "id": call.id, "name": call.name, "input": tool_input}
    if block.kind == "thinking":
        return {"type": "thinking", "thinking": block.text, "signature": THINKING_SIGNATURE}
    return {"type": "text", "text": block.text}


def _input(arguments: str) -> dict[str, Any]:
    """The arguments as an object; a call that the token limit cut keeps its text."""
    try:
        parsed = json.loads(arguments or "{}")
    except ValueError:
        return {"INVALID_JSON": arguments}
    return parsed if isinstance(parsed, dict) else {"INVALID_JSON": arguments}
