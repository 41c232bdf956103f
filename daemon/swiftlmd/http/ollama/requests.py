"""The bodies of `/api/chat` and `/api/generate`, as the engine's requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from swiftlm_proto import messages as m
from swiftlmd.faults import ServiceError
from swiftlmd.http import sampling
from swiftlmd.http.content import MAX_MESSAGES, ROLES, ImageBudget
from swiftlmd.http.context import AppContext
from swiftlmd.http.errors import invalid, unsupported
from swiftlmd.http.openai_json import json_text
from swiftlmd.http.reasoning import set_reasoning
from swiftlmd.http.schema import Body, Int, TopLogprobs
from swiftlmd.http.tools import ChatTool, from_chat

_LEVELS = ("low", "medium", "high", "max")


class OllamaOptions(sampling.Sampled):
    """`options`: what is sampled by, under Ollama's names. What Ollama decides at load (how many
    threads, which layers on the GPU) is decided by the plan here."""

    num_ctx: Int | None = None

    ignored: ClassVar[frozenset[str]] = sampling.Sampled.ignored | {
        *("num_batch", "num_gpu", "main_gpu", "num_thread", "low_vram", "f16_kv", "logits_all"),
        *("vocab_only", "use_mmap", "use_mlock", "embedding_only", "numa", "penalize_newline"),
        *("mirostat_tau", "mirostat_eta", "num_keep"),  # nothing is ever shifted out of a context
    }
    refused: ClassVar[Mapping[str, str]] = {
        name: reason
        for name, reason in sampling.Sampled.refused.items()
        if name != "num_ctx"  # nearly every client sends one
    }


class OllamaRequest(Body):
    """What chats and prompts share. `stream` is on unless it is switched off."""

    model: str | None = None
    stream: bool | None = None
    format: str | dict[str, Any] | None = None  # Any: a JSON schema
    think: bool | str | None = None
    keep_alive: int | float | str | None = None
    options: OllamaOptions | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None

    # A prompt that does not fit is an error here: none is ever cut or shifted silently.
    ignored: ClassVar[frozenset[str]] = frozenset({"truncate", "shift"})


class OllamaFunction(Body):
    name: str | None = None
    arguments: dict[str, Any] | str | None = None  # Any: JSON


class OllamaCall(Body):
    id: str | None = None
    function: OllamaFunction


class OllamaMessage(Body):
    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[OllamaCall] | None = None
    tool_name: str | None = None
    name: str | None = None
    tool_call_id: str | None = None


class OllamaChat(OllamaRequest):
    messages: list[OllamaMessage] | None = None
    tools: list[ChatTool] | None = None


class OllamaPrompt(OllamaRequest):
    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    images: list[str] | None = None
    raw: bool | None = None

    refused: ClassVar[Mapping[str, str]] = {
        "template": "the model's own chat template is used; send raw: true with a whole prompt",
        "context": "token histories are not kept; use /api/chat with messages",
        **dict.fromkeys(("width", "height", "steps"), "no images are made here"),
    }


async def chat_request(body: OllamaChat, parts: AppContext) -> m.GenerateRequest:
    messages = body.messages or []
    if len(messages) > MAX_MESSAGES:
        raise invalid(f"messages: at most {MAX_MESSAGES}", "messages")
    builder = _Messages(ImageBudget(parts.images))
    for number, message in enumerate(messages):
        await builder.add(message, f"messages.{number}")
    chat = m.Chat(messages=builder.messages, tools=from_chat(body.tools))
    chat.continue_final_message = messages[-1].role == "assistant"  # as Ollama does
    return _asked(m.GenerateRequest(chat=chat), body, parts)


async def prompt_request(body: OllamaPrompt, parts: AppContext) -> m.GenerateRequest:
    prompt = body.prompt or ""
    if body.raw or body.suffix:
        for name in ("system", "images"):
            if getattr(body, name):
                other = "raw" if body.raw else "suffix"
                raise unsupported(f"{name}: cannot be combined with {other}", name)
        if body.suffix:
            request = m.GenerateRequest(infill=m.Infill(prefix=prompt, suffix=body.suffix))
        else:
            request = m.GenerateRequest(text=prompt)
        request.raw_text = True
        return _asked(request, body, parts)
    builder = _Messages(ImageBudget(parts.images))
    if body.system:
        await builder.add(OllamaMessage(role="system", content=body.system), "system")
    user = OllamaMessage(role="user", content=prompt, images=body.images)
    await builder.add(user, "prompt")
    return _asked(m.GenerateRequest(chat=m.Chat(messages=builder.messages)), body, parts)


def _asked(request: m.GenerateRequest, body: OllamaRequest, parts: AppContext) -> m.GenerateRequest:
    options = body.options or OllamaOptions()
    try:
        sampling.apply(options, request, parts.options)
    except ServiceError as error:
        raise ServiceError(
            error.kind, f"options.{error.message}", param=f"options.{error.param}", code=error.code
        ) from None
    request.n = 1
    request.constraint = _constraint(body.format) or request.constraint
    request.keep_alive_s = sampling.keep_alive_s(body.keep_alive)
    if body.top_logprobs and not body.logprobs:
        raise invalid("top_logprobs: needs logprobs: true", "top_logprobs")
    request.top_logprobs = (body.top_logprobs or 0) if body.logprobs else None
    if request.chat is not None:
        _set_thinking(body.think, request, request.chat)
    return request


def _set_thinking(think: bool | str | None, request: m.GenerateRequest, chat: m.Chat) -> None:
    if isinstance(think, str) and think.lower() in ("true", "false", ""):
        think = {"true": True, "false": False}.get(think.lower())
    if isinstance(think, str) and think not in _LEVELS:
        raise invalid(f"think: use true, false, {', '.join(_LEVELS)}", "think")
    if isinstance(think, str):
        set_reasoning(request, chat, effort=think)
    else:
        set_reasoning(request, chat, enabled=think)


def _constraint(format_: str | dict[str, Any] | None) -> m.Constraint | None:
    if not format_:
        return None
    if isinstance(format_, dict):
        return m.Constraint(json_schema=json_text(format_))
    if format_ != "json":
        raise invalid("format: use 'json' or a JSON schema", "format")
    return m.Constraint(json_object=True)


class _Messages:
    """Ollama's messages have no ids of calls: results belong to the open calls in their order."""

    def __init__(self, images: ImageBudget) -> None:
        self.messages: list[m.Message] = []
        self._images = images
        self._open: list[m.ToolCall] = []

    async def add(self, message: OllamaMessage, where: str) -> None:
        role = ROLES.get(message.role)
        if role is None:
            raise invalid(
                f"{where}.role: {message.role[:32]!r} is none of {', '.join(ROLES)}",
                f"{where}.role",
            )
        added = m.Message(role=role, parts=[m.Part(text=message.content or "")])
        for number, image in enumerate(message.images or ()):
            added.parts.append(await self._image(image, f"{where}.images.{number}"))
        if role == "assistant":
            added.reasoning = message.thinking or ""
            added.tool_calls = self._open = [
                self._call(call, f"{where}.tool_calls.{number}", number)
                for number, call in enumerate(message.tool_calls or ())
            ]
            self._open = list(self._open)
        elif role == "tool":
            added.name = message.tool_name or message.name or ""
            added.tool_call_id = message.tool_call_id or self._answered(added.name)
        self.messages.append(added)

    async def _image(self, image: str, where: str) -> m.Part:
        if image.startswith(("data:", "https:", "http:")):
            return await self._images.load(image, where)
        return await self._images.decode(image, where)

    def _call(self, call: OllamaCall, where: str, number: int) -> m.ToolCall:
        if not call.function.name:
            raise invalid(f"{where}.function.name: Field required", f"{where}.function.name")
        given = call.function.arguments
        return m.ToolCall(
            id=call.id or f"call_{len(self.messages)}_{number}",
            name=call.function.name,
            arguments=given if isinstance(given, str) else json_text(given or {}),
        )

    def _answered(self, name: str) -> str:
        """The id of the call that a result without one answers: the first open one of its name."""
        named = [call for call in self._open if not name or call.name == name]
        found = next(iter(named or self._open), None)
        if found is None:
            return ""
        self._open.remove(found)
        return found.id
