"""`/v1/responses`: OpenAI's newer dialect, with a bounded memory of what it answered."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

from aiohttp import web

from swiftlm_proto import messages as m
from swiftlmd.faults import Kind, ServiceError, from_fault
from swiftlmd.http import compaction, sampling, sse
from swiftlmd.http.content import ImageBudget
from swiftlmd.http.context import CONTEXT, AppContext, RequestLog
from swiftlmd.http.errors import invalid, unsupported
from swiftlmd.http.generation import Generation, begin
from swiftlmd.http.openai_json import dumps
from swiftlmd.http.reasoning import ReasoningOptions, set_reasoning
from swiftlmd.http.response_format import constraint
from swiftlmd.http.response_store import Item, StoredResponse
from swiftlmd.http.responses_events import ResponseEvents
from swiftlmd.http.responses_input import Conversation, conversation, to_messages
from swiftlmd.http.responses_request import ResponsesRequest
from swiftlmd.http.responses_tools import ToolTable
from swiftlmd.http.tools import choose

_SEALED = "reasoning.encrypted_content"
_LOGPROBS = "message.output_text.logprobs"


async def responses(request: web.Request) -> web.StreamResponse:
    parts = request.app[CONTEXT]
    body = await parts.bodies.read(request, ResponsesRequest)
    record = await begin(request, body.model, bool(body.stream))
    items, table = _read(body, parts)
    engine_request = await to_engine(body, items, table, parts)
    compacts = items.is_to_be_compacted
    if compacts:
        compaction.ask_for_summary(engine_request)
    generation = Generation(request, [engine_request])
    generation.hides_thoughts = ReasoningOptions.hides(body.reasoning)

    def keep(answer: dict[str, Any]) -> None:
        if body.store is not False:
            parts.responses.put(answer, _with_ids(items.plain, record.request_id))

    sealed = _SEALED in (body.include or ())
    opening = _opening_body(body, record, parts)
    encoder = ResponseEvents(
        opening, table, sealed, keep, compacts=compacts, warnings=generation.warnings
    )
    if body.stream:
        return await sse.stream(request, generation, encoder)
    async with aclosing(generation.events()) as events:
        async for event in events:
            encoder.encode(event)
    encoder.end(generation.usage)
    return web.json_response(encoder.body, dumps=dumps)


async def compact(request: web.Request) -> web.Response:
    parts = request.app[CONTEXT]
    body = await parts.bodies.read(request, ResponsesRequest)
    if body.stream:
        raise unsupported("stream: a compaction comes whole", "stream")
    await begin(request, body.model, False)
    items, table = _read(body, parts)
    engine_request = await to_engine(body, items, table, parts)
    return await compaction.answer(request, items, engine_request, int(parts.clock()))


async def count_input_tokens(request: web.Request) -> web.Response:
    parts = request.app[CONTEXT]
    body = await parts.bodies.read(request, ResponsesRequest)
    record = await begin(request, body.model, False)
    items, table = _read(body, parts)
    chat = (await to_engine(body, items, table, parts)).chat
    question = m.TokenizeRequest(chat=chat, add_special_tokens=True)
    reply = await parts.backend.tokenize(record.model, question)
    if reply.fault is not None:
        raise from_fault(reply.fault)
    answer = {"object": "response.input_tokens", "input_tokens": len(reply.ids)}
    return web.json_response(answer, dumps=dumps)


def _read(body: ResponsesRequest, parts: AppContext) -> tuple[Conversation, ToolTable]:
    items = conversation(body.input, body.previous_response_id, parts.responses)
    return items, ToolTable(body.tools, items.tools())


def _with_ids(items: list[Item], number: str) -> list[Item]:
    """Items that came without an id can be referred to, too, once they are listed."""
    return [
        item if item.get("id") else {**item, "id": f"item_{number}_{place}"}
        for place, item in enumerate(items)
    ]


async def get_response(request: web.Request) -> web.Response:
    return web.json_response(_stored(request).body, dumps=dumps)


async def delete_response(request: web.Request) -> web.Response:
    response_id = _stored(request).body["id"]
    request.app[CONTEXT].responses.remove(response_id)
    answer = {"id": response_id, "object": "response.deleted", "deleted": True}
    return web.json_response(answer, dumps=dumps)


async def input_items(request: web.Request) -> web.Response:
    stored = _stored(request)
    items = [{"type": "message", **item} for item in stored.input_items]
    if request.query.get("order", "desc") == "desc":
        items.reverse()
    if after := request.query.get("after"):
        places = [place for place, item in enumerate(items) if item["id"] == after]
        if not places:
            raise invalid(f"after: no item {after[:80]!r} in this response", "after")
        items = items[places[0] + 1 :]
    limit = request.query.get("limit", "")
    if limit and not (limit.isascii() and limit.isdecimal() and int(limit[:9]) >= 1):
        raise invalid("limit: use a whole number from 1 on", "limit")
    page = items[: int(limit[:9])] if limit else items
    answer = {
        "object": "list",
        "data": page,
        "has_more": len(page) < len(items),
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
    }
    return web.json_response(answer, dumps=dumps)


async def to_engine(
    body: ResponsesRequest, items: Conversation, table: ToolTable, parts: AppContext
) -> m.GenerateRequest:
    if (body.n or 1) != 1:
        raise unsupported("n: one answer per response", "n")
    chat = m.Chat(
        messages=await to_messages(items.items, body.instructions, ImageBudget(parts.images)),
        tools=table.tools,
        parallel_tool_calls=body.parallel_tool_calls,
    )
    choose(table.choice(body.tool_choice), chat)
    request = m.GenerateRequest(chat=chat)
    sampling.apply(body, request, parts.options)
    request.max_tokens = sampling.token_limit(body.max_output_tokens, body.max_tokens)
    if body.top_logprobs is not None or _LOGPROBS in (body.include or ()):
        request.top_logprobs = body.top_logprobs or 0
    shape = constraint(body.text.format if body.text else None, "text.format")
    request.constraint = shape or request.constraint
    set_reasoning(
        request,
        chat,
        enabled=body.enable_thinking,
        options=body.reasoning,
        budget=body.thinking_budget,
        template_kwargs=body.chat_template_kwargs,
    )
    return request


def _stored(request: web.Request) -> StoredResponse:
    response_id = request.match_info["id"]
    stored = request.app[CONTEXT].responses.get(response_id)
    if stored is None:
        raise ServiceError(
            Kind.INVALID,
            f"no response {response_id[:80]!r} is kept here",
            code="not_found",
            status=404,
        )
    return stored


def _opening_body(body: ResponsesRequest, record: RequestLog, parts: AppContext) -> dict[str, Any]:
    reasoning, text = body.reasoning, body.text
    chosen = body.tool_choice if body.tool_choice is not None else "auto"
    return {
        "id": f"resp_{record.request_id}",
        "object": "response",
        "created_at": int(parts.clock()),
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "model": record.model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": {
            "effort": reasoning.effort if reasoning else None,
            "summary": (reasoning.summary or reasoning.generate_summary) if reasoning else None,
        },
        "store": body.store is not False,
        "temperature": body.temperature,
        "text": {"format": _dump(text.format) if text and text.format else {"type": "text"}},
        "tool_choice": chosen,
        "tools": [_dump(tool) for tool in body.tools or ()],
        "top_p": body.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": body.user,
        "metadata": body.metadata or {},
    }


def _dump(model: Any) -> Any:  # Any: a piece of the request, echoed as JSON
    return model.model_dump(by_alias=True, exclude_unset=True)
