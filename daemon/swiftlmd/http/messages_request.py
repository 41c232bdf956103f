"""Anthropic's request bodies, and their messages as the engine's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from swiftlm_proto import messages as m
from swiftlmd.http.content import MAX_MESSAGES, ImageBudget
from swiftlmd.http.errors import invalid, unsupported
from swiftlmd.http.openai_json import json_text
from swiftlmd.http.reasoning import ThinkingOptions
from swiftlmd.http.response_format import ResponseFormat
from swiftlmd.http.schema import Body, Limit, TopK, Unset

# Claude Code's first system block: a value that changes with every request, for billing. In the
# prompt it would make every prefix new.
BILLING_LINE = "x-anthropic-billing-header:"

# What Anthropic's own servers put into a history; the model here can do nothing with it.
_FOREIGN_BLOCKS = frozenset(
    {"redacted_thinking", "server_tool_use", "web_search_tool_result", "web_fetch_tool_result"}
    | {"code_execution_tool_result", "container_upload", "compaction"}
)
# Anthropic's names, without their dates, for tools that the client runs.
_SCHEMALESS = ("bash_", "text_editor_", "computer_", "memory_")

# How a result begins that says by itself that the tool failed; Claude Code's do.
_SAYS_ERROR = ("error", "<tool_use_error>")


class ImageSource(Body):
    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None


class ContentBlock(Body):
    type: str
    text: str | None = None
    source: ImageSource | str | None = None  # a text: where a search result is from
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None  # Any: a tool's arguments
    tool_use_id: str | None = None
    content: str | list[ContentBlock] | None = None
    is_error: bool | None = None


class Turn(Body):
    role: str
    content: str | list[ContentBlock]


class MessageTool(Body):
    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None  # Any: a JSON schema
    strict: bool | None = None


def is_run_by_client(tool: MessageTool, param: str) -> bool:
    """Raises 400 for a tool of the client whose schema is known to Anthropic's models only."""
    if tool.type in (None, "custom"):
        return True
    if not tool.type.startswith(_SCHEMALESS):
        return False
    if tool.input_schema is None:
        raise unsupported(
            f"{param}.type: {tool.type[:64]!r} stands for a schema that only Anthropic's models "
            "know; send the tool with an input_schema",
            f"{param}.type",
        )
    return True


class MessageToolChoice(Body):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputConfig(Body):
    effort: str | None = None
    format: ResponseFormat | None = None


class MessagesRequest(Body):
    model: str | None = None
    messages: list[Turn]
    system: str | list[ContentBlock] | None = None
    max_tokens: Limit = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: Unset[Annotated[float, Field(ge=0, le=100)]] = None
    top_p: Unset[Annotated[float, Field(ge=0, le=1)]] = None
    top_k: Unset[TopK] = None
    tools: list[MessageTool] | None = None
    tool_choice: MessageToolChoice | None = None
    thinking: ThinkingOptions | None = None
    output_config: OutputConfig | None = None
    output_format: ResponseFormat | None = None
    keep_alive: int | float | str | None = None

    ignored: ClassVar[frozenset[str]] = frozenset(
        {"service_tier", "context_management", "container", "betas", "cache_control"}
        | {"inference_geo", "speed", "anthropic_version", "anthropic_beta", "metadata"}
    )
    refused: ClassVar[Mapping[str, str]] = {
        "mcp_servers": "connect MCP servers in the client and offer their tools"
    }


async def to_messages(body: MessagesRequest, images: ImageBudget) -> list[m.Message]:
    if not body.messages:
        raise invalid("messages: at least one message is needed", "messages")
    if len(body.messages) > MAX_MESSAGES:
        raise invalid(f"messages: at most {MAX_MESSAGES}", "messages")
    messages = _system(body.system)
    for number, turn in enumerate(body.messages):
        messages += await _turn(turn, f"messages.{number}", images)
    if not any(message.role != "system" for message in messages):
        raise invalid("messages: nothing was said in them", "messages")
    return messages


def _system(system: str | list[ContentBlock] | None) -> list[m.Message]:
    texts = [system] if isinstance(system, str) else [b.text or "" for b in system or ()]
    texts = [text for text in texts if text and not text.startswith(BILLING_LINE)]
    if not texts:
        return []
    return [m.Message(role="system", parts=[m.Part(text="\n\n".join(texts))])]


async def _turn(turn: Turn, param: str, images: ImageBudget) -> list[m.Message]:
    if turn.role not in ("user", "assistant", "system"):
        raise invalid(f"{param}.role: use user, assistant or system", f"{param}.role")
    if isinstance(turn.content, str):
        return [m.Message(role=turn.role, parts=[m.Part(text=turn.content)])]
    if turn.role == "assistant":
        return [await _assistant(turn.content, f"{param}.content", images)]
    return await _user(turn.role, turn.content, f"{param}.content", images)


async def _assistant(blocks: list[ContentBlock], param: str, images: ImageBudget) -> m.Message:
    """One message: its thinking, its text, its calls."""
    message = m.Message(role="assistant")
    for number, block in enumerate(blocks):
        if block.type == "thinking":
            message.reasoning += block.thinking or ""
        elif block.type == "tool_use":
            if not block.name:
                raise invalid(f"{param}.{number}.name: Field required", f"{param}.{number}.name")
            arguments = json_text(block.input or {})
            call = m.ToolCall(id=block.id or "", name=block.name, arguments=arguments)
            message.tool_calls.append(call)
        elif block.type not in _FOREIGN_BLOCKS:
            message.parts += await _parts(block, f"{param}.{number}", images)
    return message


async def _user(
    role: str, blocks: list[ContentBlock], param: str, images: ImageBudget
) -> list[m.Message]:
    """Tool results are messages of their own; what stands around them stays in its order."""
    messages: list[m.Message] = []
    for number, block in enumerate(blocks):
        where = f"{param}.{number}"
        if block.type == "tool_result":
            parts = await _result_parts(block.content, where, images)
            if block.is_error:
                parts = _failed(parts)
            result = m.Message(role="tool", parts=parts, tool_call_id=block.tool_use_id or "")
            messages.append(result)
        elif block.type not in _FOREIGN_BLOCKS:
            if not messages or messages[-1].role != role:
                messages.append(m.Message(role=role))
            messages[-1].parts += await _parts(block, where, images)
    return messages


async def _result_parts(
    content: str | list[ContentBlock] | None, param: str, images: ImageBudget
) -> list[m.Part]:
    if isinstance(content, str):
        return [m.Part(text=content)]
    parts: list[m.Part] = []
    for number, block in enumerate(content or ()):
        if block.type == "tool_reference":  # names a tool that a search would have found
            continue
        parts += await _parts(block, f"{param}.content.{number}", images)
    return parts


def _failed(parts: list[m.Part]) -> list[m.Part]:
    """Says so in words: no chat template has a field for it."""
    if parts and parts[0].text is not None and parts[0].text.lower().startswith(_SAYS_ERROR):
        return parts
    return [m.Part(text="Error: "), *parts]


async def _parts(block: ContentBlock, param: str, images: ImageBudget) -> list[m.Part]:
    if block.type == "text":
        return [m.Part(text=block.text or "")]
    source = block.source
    if block.type == "image" and isinstance(source, ImageSource):
        if source.type == "base64" and source.data is not None:
            return [await images.decode(source.data, param)]
        if source.type == "url" and source.url is not None:
            return [await images.load(source.url, param)]
    if block.type == "document" and isinstance(source, ImageSource) and source.type == "text":
        return [m.Part(text=source.data or "")]
    raise unsupported(
        f"{param}: {block.type[:64]!r} blocks of this kind are not supported; "
        "send text, image, tool_use, tool_result or thinking",
        param,
    )
