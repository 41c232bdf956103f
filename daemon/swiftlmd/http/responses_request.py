"""The body of `/v1/responses`, and its items as the engine's messages."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from swiftlm_proto import messages as m
from swiftlmd.http.content import MAX_MESSAGES, ROLES, ContentPart, ImageBudget, to_parts
from swiftlmd.http.errors import invalid
from swiftlmd.http.openai_json import json_text
from swiftlmd.http.reasoning import ReasoningOptions
from swiftlmd.http.response_format import ResponseFormat
from swiftlmd.http.responses_tools import ResponseTool, qualified
from swiftlmd.http.sampling import Sampled
from swiftlmd.http.schema import Body, Int, Limit, TopLogprobs, parse_nested

# Clients that do not store send our reasoning back in this opaque field, and nowhere else.
_OPAQUE = "swiftlm."


class Item(Body):
    """Any item of `input`; which fields matter depends on `type` (absent = a message)."""

    type: str | None = None
    id: str | None = None
    role: str | None = None
    content: str | list[ContentPart] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: str | list[ContentPart] | None = None
    encrypted_content: str | None = None


class TextOptions(Body):
    format: ResponseFormat | None = None
    verbosity: str | None = None


class ResponsesRequest(Sampled):
    # Any: items are validated one by one, and kept as they came for the store.
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    max_output_tokens: Limit = None
    top_logprobs: TopLogprobs | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: str | dict[str, Any] | None = None  # Any: several shapes, read by `choose`
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    include: list[str] | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    metadata: dict[str, Any] | None = None  # Any: echoed
    user: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None  # Any: what the template understands
    enable_thinking: bool | None = None
    thinking_budget: Int | None = None

    ignored: ClassVar[frozenset[str]] = Sampled.ignored | {
        "truncation",  # nothing is ever cut silently; too long is an error
        "client_metadata",
        "max_tool_calls",
    }
    refused: ClassVar[Mapping[str, str]] = {
        **Sampled.refused,
        "background": "answers are not made in the background; use stream",
        "conversation": "use previous_response_id",
        "prompt": "stored prompts do not exist here; send instructions",
    }


def new_items(body: ResponsesRequest) -> list[dict[str, Any]]:
    if isinstance(body.input, str):
        return [{"type": "message", "role": "user", "content": body.input}]
    return body.input or []


async def to_messages(
    items: Iterable[dict[str, Any]], instructions: str | None, images: ImageBudget
) -> list[m.Message]:
    builder = _Builder(images)
    if instructions:
        builder.messages.append(m.Message(role="system", parts=[m.Part(text=instructions)]))
    for number, item in enumerate(items):
        where = f"input.{number}"
        await builder.add(parse_nested(Item, item, where), where)
    if not any(message.role != "system" for message in builder.messages) and not instructions:
        raise invalid("input: at least one message is needed", "input")
    if len(builder.messages) > MAX_MESSAGES:
        raise invalid(f"input: at most {MAX_MESSAGES} messages", "input")
    return builder.messages


class _Builder:
    """Joins the items of one assistant turn (reasoning, text, calls) into one message."""

    def __init__(self, images: ImageBudget) -> None:
        self.messages: list[m.Message] = []
        self._images = images

    async def add(self, item: Item, param: str) -> None:
        kind = item.type or "message"
        if kind == "message":
            await self._add_message(item, param)
        elif kind == "reasoning":
            self._turn(new=True).reasoning += _reasoning(item)
        elif kind in ("function_call", "custom_tool_call"):
            self._turn().tool_calls.append(_call(item, kind, param))
        elif kind in ("function_call_output", "custom_tool_call_output"):
            parts = await to_parts(item.output, f"{param}.output", self._images)
            result = m.Message(role="tool", parts=parts, tool_call_id=item.call_id or "")
            self.messages.append(result)
        elif kind == "item_reference":
            raise invalid(
                f"{param}: references to items are not kept; send the item itself or use "
                "previous_response_id",
                param,
            )
        # Everything else is the trace of a hosted tool, which a model here cannot use.

    async def _add_message(self, item: Item, param: str) -> None:
        role = ROLES.get(item.role or "")
        if role is None or role == "tool":
            raise invalid(
                f"{param}.role: use user, assistant, system or developer", f"{param}.role"
            )
        if item.content is None:
            raise invalid(f"{param}.content: Field required", f"{param}.content")
        parts = await to_parts(item.content, f"{param}.content", self._images)
        if role == "assistant":
            last = self.messages[-1] if self.messages else None
            fresh = last is not None and last.role == role and not last.parts
            if fresh and last is not None and not last.tool_calls:
                last.parts = parts
                return
        self.messages.append(m.Message(role=role, parts=parts))

    def _turn(self, new: bool = False) -> m.Message:
        """The assistant message that is being put together."""
        last = self.messages[-1] if self.messages else None
        if last is not None and last.role == "assistant":
            begun = bool(last.parts or last.tool_calls)
            if not (new and begun):
                return last
        self.messages.append(m.Message(role="assistant"))
        return self.messages[-1]


def _call(item: Item, kind: str, param: str) -> m.ToolCall:
    if not item.name:
        raise invalid(f"{param}.name: Field required", f"{param}.name")
    arguments = item.arguments or ""
    if kind == "custom_tool_call":
        arguments = json_text({"input": item.input or ""})
    name = qualified(item.name, item.namespace)
    return m.ToolCall(id=item.call_id or "", name=name, arguments=arguments)


def _reasoning(item: Item) -> str:
    if isinstance(item.content, list):
        return "".join(part.text or "" for part in item.content)
    return item.content or open_reasoning(item.encrypted_content or "")


def seal_reasoning(text: str) -> str:
    return _OPAQUE + base64.b64encode(text.encode("utf-8", "surrogatepass")).decode("ascii")


def open_reasoning(sealed: str) -> str:
    """The text that `seal_reasoning` hid; empty for what another service wrote."""
    if not sealed.startswith(_OPAQUE):
        return ""
    try:
        raw = base64.b64decode(sealed.removeprefix(_OPAQUE), validate=True)
    except (binascii.Error, ValueError):
        return ""
    return raw.decode("utf-8", "replace")
