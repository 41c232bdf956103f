"""Messages: one conversation as every dialect's request becomes before a template sees it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class TextPart:
    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    content: bytes
    media_type: str


Part = TextPart | ImagePart


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str
    name: str
    arguments: str  # JSON text as the client sent it; may be broken


@dataclass(frozen=True, slots=True)
class Message:
    role: str
    parts: tuple[Part, ...] = ()
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None

    @property
    def text(self) -> str:
        """The text parts as paragraphs."""
        return "\n".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def has_images(self) -> bool:
        return any(isinstance(part, ImagePart) for part in self.parts)


@dataclass(frozen=True, slots=True)
class ToolSpec:
    name: str
    description: str = ""
    parameters: Mapping[str, object] | None = None  # JSON schema
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Chat:
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    enable_thinking: bool | None = None  # None: the template's own default
    reasoning_effort: str | None = None
    thinking_budget: int | None = None  # tokens, for templates that are told of it
    template_kwargs: Mapping[str, object] = field(default_factory=dict)
    continue_final_message: bool = False
    cache_salt: str = ""  # requests of different salts share nothing

    @property
    def thinks(self) -> bool | None:
        """What the request says of it, if anything."""
        if self.enable_thinking is None and self.reasoning_effort == "none":
            return False
        return self.enable_thinking


def tool_dicts(tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """The tools as OpenAI spells them, and as templates and parsers expect them."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters or {"type": "object", "properties": {}},
            },
        }
        for tool in tools
    ]
