"""What one sequence says: the events that leave the text pipeline, in the order they happened."""

from dataclasses import dataclass
from enum import StrEnum


class TextFinish(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"


@dataclass(frozen=True, slots=True)
class ContentDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """The fragments of one index, joined, are the JSON text of the arguments."""

    index: int
    arguments_fragment: str


TextEvent = ContentDelta | ReasoningDelta | ToolCallStart | ToolCallDelta
