"""`POST /v1/responses/compact`, and requests that end in a `compaction_trigger`: a conversation
becomes its summary.

The model writes the summary of what it was sent; it goes back sealed in one `compaction` item,
which this service reads when the item comes again. The newest messages of the user stay as they
are.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from swiftlm_proto import messages as m
from swiftlmd.http.collect import collect
from swiftlmd.http.context import RECORD
from swiftlmd.http.errors import invalid
from swiftlmd.http.generation import Generation
from swiftlmd.http.openai_json import dumps
from swiftlmd.http.responses_input import Conversation, seal
from swiftlmd.http.responses_items import usage_body

MAX_SUMMARY_TOKENS = 4096  # unless the request has a limit of its own
MAX_KEPT_CHARS = 64_000  # of the user's messages; older ones are in the summary only
_ASK = (
    "Stop here. Write a summary of this conversation for an assistant that goes on with it and "
    "cannot see it: the task and the user's wishes, what was decided and why, what was done, the "
    "files, commands, names and values that matter, what failed, and what comes next. Write the "
    "summary only."
)


def ask_for_summary(request: m.GenerateRequest) -> None:
    """Turns the request for an answer into one for a summary of its prompt."""
    chat = request.chat
    if chat is None or not chat.messages:
        raise invalid("input: there is nothing to compact", "input")
    chat.messages.append(m.Message(role="user", parts=[m.Part(text=_ASK)]))
    chat.tool_choice, chat.tool_name = m.ToolChoice.NONE, ""
    request.constraint, request.stop, request.top_logprobs = None, [], None
    if request.max_tokens is None:
        request.max_tokens = MAX_SUMMARY_TOKENS


async def answer(
    request: web.Request,
    items: Conversation,
    engine_request: m.GenerateRequest,
    created_at: int,
) -> web.Response:
    ask_for_summary(engine_request)
    generation = Generation(request, [engine_request])
    [choice] = await collect(generation)
    number = request[RECORD].request_id
    summary = {
        "id": f"cmp_{number}",
        "type": "compaction",
        "encrypted_content": seal(choice.content or choice.reasoning),
    }
    body = {
        "id": f"resp_{number}",
        "object": "response.compaction",
        "created_at": created_at,
        "output": [*_latest_of_user(items, number), summary],
        "usage": usage_body(generation.usage),
    }
    return web.json_response(body, dumps=dumps)


def _latest_of_user(items: Conversation, number: str) -> list[dict[str, Any]]:  # Any: JSON
    """In their order; the newest one stays however long it is."""
    kept: list[dict[str, Any]] = []
    left = MAX_KEPT_CHARS
    for place, item in reversed(list(enumerate(items.plain))):
        if item.get("type", "message") != "message" or item.get("role") != "user":
            continue
        left -= len(dumps(item.get("content")))
        if left < 0 and kept:
            break
        content = item["content"]
        if isinstance(content, str):
            content = [{"type": "input_text", "text": content}]
        named = {"id": f"msg_{number}_{place}", **item}
        kept.append({**named, "type": "message", "status": "completed", "content": content})
    return kept[::-1]
