"""The items of a Responses input, each read by the schema of its type, as the engine's messages.

Three kinds of items: those that the answer is made from (messages, thoughts, calls and their
results, tools) are used or refused by name; those that only the sender needs (the traces of
hosted tools, snapshots) are skipped whatever they hold; references are replaced by what the store
kept.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from swiftlm_proto import messages as m
from swiftlmd.faults import Kind, ServiceError
from swiftlmd.http.content import MAX_MESSAGES, ROLES, ContentPart, ImageBudget, to_parts
from swiftlmd.http.errors import invalid, unsupported
from swiftlmd.http.openai_json import json_text
from swiftlmd.http.response_store import Item, ResponseStore
from swiftlmd.http.responses_tools import TOOL_SEARCH, ResponseTool, qualified
from swiftlmd.http.schema import Body, parse_nested

log = logging.getLogger(__name__)

# Clients that do not store send our reasoning back in this opaque field, and nowhere else.
_OPAQUE = "swiftlm."

# A call that the client ran, by the field that says what was to be done.
_CLIENT_CALLS = {
    "local_shell_call": "action",
    "shell_call": "action",
    "apply_patch_call": "operation",
    "computer_call": "action",
}
_RESULTS = frozenset(
    {"function_call_output", "custom_tool_call_output", "mcp_tool_call_output"}
    | {f"{kind}_output" for kind in _CLIENT_CALLS}
)
# What other services keep in a history for themselves.
_SENDERS_OWN = frozenset(
    {"web_search_call", "file_search_call", "image_generation_call", "code_interpreter_call"}
    | {"mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "ghost_snapshot"}
)
_COMPACTIONS = frozenset({"compaction", "compaction_summary", "context_compaction"})
TRIGGER = "compaction_trigger"
# In an item of a type that is not known here, these would change the answer.
_NEEDED = ("tools", "instructions")


@dataclass(frozen=True, slots=True)
class Given:
    """An item, and where the client put it."""

    item: Item
    where: str


class MessageItem(Body):
    role: str | None = None
    content: str | list[ContentPart] | None = None


class CallItem(Body):
    name: str | None = None
    namespace: str | None = None
    call_id: str | None = None
    arguments: str | dict[str, Any] | None = None  # Any: some clients keep them parsed
    input: str | None = None


class ResultItem(Body):
    call_id: str | None = None
    output: Any = None  # Any: text, parts, or an object that is shown as JSON


class ToolsItem(Body):
    """`additional_tools`, and what a search for tools has found."""

    call_id: str | None = None
    tools: list[ResponseTool] | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    items: tuple[Given, ...]

    @property
    def plain(self) -> list[Item]:
        """As the store keeps it."""
        return [given.item for given in self.items]

    @property
    def is_to_be_compacted(self) -> bool:
        """Whether its last item asks for a summary of it instead of an answer."""
        return bool(self.items) and self.items[-1].item.get("type") == TRIGGER

    def tools(self) -> Iterator[tuple[str, ResponseTool]]:
        """The tools that items offer, with their places."""
        for given in self.items:
            if given.item.get("type") not in ("additional_tools", "tool_search_output"):
                continue
            found = parse_nested(ToolsItem, given.item, given.where)
            for number, tool in enumerate(found.tools or ()):
                yield f"{given.where}.tools.{number}", tool


def conversation(
    given: str | list[dict[str, Any]] | None,  # Any: JSON
    previous_response_id: str | None,
    store: ResponseStore,
) -> Conversation:
    """The items of the stored conversation that is continued, and the new ones, references
    resolved."""
    items: list[Given] = []
    if previous_response_id:
        kept = _kept(previous_response_id, store)
        items = [Given(item, "previous_response_id") for item in kept]
    if isinstance(given, str):
        given = [{"type": "message", "role": "user", "content": given}]
    for number, item in enumerate(given or ()):
        where = f"input.{number}"
        items.append(Given(_resolved(item, where, store), where))
    return Conversation(tuple(items))


def _kept(response_id: str, store: ResponseStore) -> list[Item]:
    stored = store.get(response_id)
    if stored is None:
        raise ServiceError(
            Kind.INVALID,
            f"no response {response_id[:80]!r} is kept here; send the whole conversation as input",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    return stored.conversation


def _resolved(item: Item, where: str, store: ResponseStore) -> Item:
    kind, item_id = item.get("type"), item.get("id")
    bare = kind is None and item_id is not None and not {"role", "content"} & item.keys()
    if kind != "item_reference" and not bare:
        return item
    if not isinstance(item_id, str) or not item_id:
        raise invalid(f"{where}.id: Field required", f"{where}.id")
    found = store.item(item_id)
    if found is None:
        raise ServiceError(
            Kind.INVALID,
            f"{where}.id: no item {item_id[:80]!r} is kept here: responses are kept in memory, "
            "the latest ones only; send the item itself",
            param=f"{where}.id",
            code="item_not_found",
        )
    return found


async def to_messages(
    items: Iterable[Given], instructions: str | None, images: ImageBudget
) -> list[m.Message]:
    builder = _Builder(images)
    if instructions:
        builder.messages.append(m.Message(role="system", parts=[m.Part(text=instructions)]))
    for given in items:
        await builder.add(given.item, given.where)
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

    async def add(self, item: Item, where: str) -> None:
        kind = item.get("type") or "message"
        if not isinstance(kind, str):
            raise invalid(f"{where}.type: Input should be a valid string", f"{where}.type")
        if kind == "message":
            await self._add_message(item, where)
        elif kind == "reasoning":
            self._turn(new=True).reasoning += reasoning_text(item)
        elif kind in ("function_call", "custom_tool_call", "tool_search_call"):
            self._turn().tool_calls.append(_call(item, kind, where))
        elif kind in _CLIENT_CALLS:
            self._turn().tool_calls.append(_client_call(item, kind))
        elif kind in _RESULTS:
            await self._add_result(item, where)
        elif kind == "tool_search_output":
            self._add_found_tools(item, where)
        elif kind == "mcp_call":
            self._add_mcp_call(item)
        elif kind in _COMPACTIONS:
            self._add_summary(item)
        elif kind == "agent_message":
            self._add_text("user", _text_of(item.get("content")))
        elif kind not in (*_SENDERS_OWN, "additional_tools", TRIGGER):
            await self._add_unknown(item, kind, where)

    async def _add_message(self, item: Item, where: str) -> None:
        message = parse_nested(MessageItem, item, where)
        role = ROLES.get(message.role or "")
        if role is None or role == "tool":
            raise invalid(
                f"{where}.role: use user, assistant, system or developer", f"{where}.role"
            )
        if message.content is None:
            raise invalid(f"{where}.content: Field required", f"{where}.content")
        parts = await to_parts(message.content, f"{where}.content", self._images)
        if role == "assistant":
            last = self.messages[-1] if self.messages else None
            fresh = last is not None and last.role == role and not last.parts
            if fresh and last is not None and not last.tool_calls:
                last.parts = parts
                return
        self.messages.append(m.Message(role=role, parts=parts))

    async def _add_result(self, item: Item, where: str) -> None:
        result = parse_nested(ResultItem, item, where)
        parts = await self._result_parts(result.output, f"{where}.output")
        call_id = result.call_id or str(item.get("id") or "")
        self.messages.append(m.Message(role="tool", parts=parts, tool_call_id=call_id))

    async def _result_parts(self, output: Any, where: str) -> list[m.Part]:  # Any: JSON
        if output is None:
            return []
        if isinstance(output, str):
            return [m.Part(text=output)]
        if isinstance(output, dict) and output.get("type") == "computer_screenshot":
            output = [{**output, "type": "input_image"}]
        elif isinstance(output, dict) and isinstance(output.get("content"), str | list):
            return await self._result_parts(output["content"], f"{where}.content")
        if isinstance(output, list) and all(_is_part(one) for one in output):
            parsed = parse_nested(MessageItem, {"content": output}, where.rpartition(".")[0])
            return await to_parts(parsed.content, where, self._images)
        return [m.Part(text=json_text(output))]

    def _add_found_tools(self, item: Item, where: str) -> None:
        found = parse_nested(ToolsItem, item, where)
        names = ", ".join(tool.name for tool in found.tools or () if tool.name)
        text = f"Found tools: {names}" if names else "Found no tools."
        result = m.Message(role="tool", parts=[m.Part(text=text)])
        result.tool_call_id = found.call_id or ""
        self.messages.append(result)

    def _add_mcp_call(self, item: Item) -> None:
        """A call that another service ran: what came of it stands in the same item."""
        name, call_id = item.get("name"), str(item.get("id") or "")
        if not isinstance(name, str) or not name:
            return
        name = qualified(name, str(item.get("server_label") or ""))
        arguments = _arguments(item.get("arguments"))
        self._turn().tool_calls.append(m.ToolCall(id=call_id, name=name, arguments=arguments))
        output = item.get("output") or item.get("error") or ""
        text = output if isinstance(output, str) else json_text(output)
        self.messages.append(
            m.Message(role="tool", parts=[m.Part(text=text)], tool_call_id=call_id)
        )

    def _add_summary(self, item: Item) -> None:
        """What `/v1/responses/compact` made of a conversation; another service's is opaque."""
        text = unseal(str(item.get("encrypted_content") or ""))
        self._add_text("user", f"{SUMMARY_HEAD}\n\n{text}" if text else "")

    def _add_text(self, role: str, text: str) -> None:
        if text:
            self.messages.append(m.Message(role=role, parts=[m.Part(text=text)]))

    async def _add_unknown(self, item: Item, kind: str, where: str) -> None:
        needed = next((name for name in _NEEDED if item.get(name)), None)
        if needed is not None:
            raise unsupported(
                f"{where}.type: items of type {kind[:64]!r} are not known here, and this one has "
                f"{needed}, which the answer would depend on; send {needed} beside input",
                f"{where}.type",
            )
        if isinstance(item.get("role"), str) and item.get("content"):
            await self._add_message(item, where)
            return
        log.info("item of an unknown type skipped type=%r", kind[:64])

    def _turn(self, new: bool = False) -> m.Message:
        """The assistant message that is being put together."""
        last = self.messages[-1] if self.messages else None
        if last is not None and last.role == "assistant":
            begun = bool(last.parts or last.tool_calls)
            if not (new and begun):
                return last
        self.messages.append(m.Message(role="assistant"))
        return self.messages[-1]


SUMMARY_HEAD = "Summary of the conversation so far:"


def _is_part(one: object) -> bool:
    return isinstance(one, dict) and isinstance(one.get("type"), str)


def _call(item: Item, kind: str, where: str) -> m.ToolCall:
    call = parse_nested(CallItem, item, where)
    name = TOOL_SEARCH if kind == "tool_search_call" else call.name
    if not name:
        raise invalid(f"{where}.name: Field required", f"{where}.name")
    arguments = _arguments(call.arguments)
    if kind == "custom_tool_call":
        arguments = json_text({"input": call.input or ""})
    name = qualified(name, call.namespace)
    return m.ToolCall(id=call.call_id or "", name=name, arguments=arguments)


def _client_call(item: Item, kind: str) -> m.ToolCall:
    """A call of a tool that has a type of its own instead of a schema."""
    call_id = item.get("call_id") or item.get("id") or ""
    arguments = _arguments(item.get(_CLIENT_CALLS[kind]) or item.get("actions"))
    return m.ToolCall(id=str(call_id), name=kind.removesuffix("_call"), arguments=arguments or "{}")


def _arguments(given: Any) -> str:  # Any: JSON
    if given is None:
        return ""
    return given if isinstance(given, str) else json_text(given)


def reasoning_text(item: Item) -> str:
    """The thoughts that are in our own items, in whatever field the client kept; empty for those
    of another service."""
    return (
        _text_of(item.get("content"))
        or unseal(str(item.get("encrypted_content") or ""))
        or "\n\n".join(_texts(item.get("summary")))
    )


def _text_of(content: Any) -> str:  # Any: JSON
    return "".join(_texts(content))


def _texts(content: Any) -> Sequence[str]:  # Any: JSON
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return [text for text in texts if isinstance(text, str)]


def seal(text: str) -> str:
    return _OPAQUE + base64.b64encode(text.encode("utf-8", "surrogatepass")).decode("ascii")


def unseal(sealed: str) -> str:
    """The text that `seal` hid; empty for what another service wrote."""
    if not sealed.startswith(_OPAQUE):
        return ""
    try:
        raw = base64.b64decode(sealed.removeprefix(_OPAQUE), validate=True)
    except (binascii.Error, ValueError):
        return ""
    return raw.decode("utf-8", "replace")
