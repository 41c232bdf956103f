"""OpenAI chat messages, as the engine's."""

from __future__ import annotations

from typing import Any, ClassVar

from swiftlm_proto import messages as m
from swiftlmd.http.errors import invalid, unsupported
from swiftlmd.http.images import MIB, ImageLoader
from swiftlmd.http.openai_json import json_text
from swiftlmd.http.schema import Body

MAX_MESSAGES = 20_000

# `developer` is the newer name of `system`, `function` the older one of `tool`.
ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


class ImageUrl(Body):
    url: str
    ignored: ClassVar[frozenset[str]] = frozenset({"detail"})


class ContentPart(Body):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: ImageUrl | str | None = None


class FunctionCall(Body):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None  # Any: some clients keep them parsed


class ChatToolCall(Body):
    id: str | None = None
    function: FunctionCall | None = None


class ChatMessage(Body):
    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ChatToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    prefix: bool | None = None  # DeepSeek and Mistral: the answer goes on from here


async def to_messages(messages: list[ChatMessage], images: ImageLoader) -> list[m.Message]:
    if not messages:
        raise invalid("messages: at least one message is needed", "messages")
    if len(messages) > MAX_MESSAGES:
        raise invalid(f"messages: at most {MAX_MESSAGES}", "messages")
    budget = ImageBudget(images)
    return [
        await _to_message(message, f"messages.{number}", budget)
        for number, message in enumerate(messages)
    ]


class ImageBudget:
    """Loads the images of one request and counts them and their bytes."""

    def __init__(self, images: ImageLoader) -> None:
        self._images = images
        self._left = images.max_images
        self._left_bytes = images.max_images_bytes

    async def load(self, url: str, param: str) -> m.Part:
        self._take(param)
        return self._part(await self._images.load(url, param), param)

    async def decode(self, data: str, param: str) -> m.Part:
        self._take(param)
        return self._part(await self._images.from_base64(data, param), param)

    def _take(self, param: str) -> None:
        if not self._left:
            raise invalid(f"{param}: at most {self._images.max_images} images", param)
        self._left -= 1

    def _part(self, image: m.Image, param: str) -> m.Part:
        self._left_bytes -= len(image.content)
        if self._left_bytes < 0:
            limit = self._images.max_images_bytes / MIB
            raise invalid(
                f"{param}: more than {limit:g} MiB of images in all; send smaller ones",
                param,
                code="image_too_large",
            )
        return m.Part(image=image)


async def _to_message(message: ChatMessage, param: str, images: ImageBudget) -> m.Message:
    role = ROLES.get(message.role)
    if role is None:
        raise invalid(
            f"{param}.role: {message.role[:32]!r} is none of {', '.join(ROLES)}", f"{param}.role"
        )
    if message.content is None and role == "user":
        raise invalid(f"{param}.content: a {role} message needs content", f"{param}.content")
    return m.Message(
        role=role,
        parts=await to_parts(message.content, f"{param}.content", images),
        reasoning=message.reasoning_content or message.reasoning or "",
        tool_calls=[_tool_call(call, param) for call in message.tool_calls or ()],
        tool_call_id=message.tool_call_id or "",
        name=message.name or "",
    )


async def to_parts(
    content: str | list[ContentPart] | None, param: str, images: ImageBudget
) -> list[m.Part]:
    if content is None:
        return []
    if isinstance(content, str):
        return [m.Part(text=content)]
    return [await _part(part, f"{param}.{number}", images) for number, part in enumerate(content)]


async def _part(part: ContentPart, param: str, images: ImageBudget) -> m.Part:
    if part.type in ("text", "input_text", "output_text") and part.text is not None:
        return m.Part(text=part.text)
    if part.type == "refusal":
        return m.Part(text=part.refusal or "")
    if part.type in ("image_url", "input_image") and part.image_url is not None:
        image = part.image_url
        return await images.load(image if isinstance(image, str) else image.url, param)
    if part.type in ("text", "image_url"):
        raise invalid(f"{param}.{part.type}: Field required", f"{param}.{part.type}")
    raise unsupported(
        f"{param}.type: {part.type[:64]!r} parts are not supported; send text or image_url",
        f"{param}.type",
    )


def _tool_call(call: ChatToolCall, param: str) -> m.ToolCall:
    function = call.function
    if function is None or not function.name:
        raise invalid(f"{param}.tool_calls: each call needs function.name", f"{param}.tool_calls")
    arguments = function.arguments
    return m.ToolCall(
        id=call.id or "",
        name=function.name,
        arguments=json_text(arguments) if isinstance(arguments, dict) else arguments or "",
    )
