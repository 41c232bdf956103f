"""A request as the engine understands it, and the news it sends back. No MLX, no protobuf.

Every accepted job ends in exactly one `Finished` per choice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from swiftlm_engine.sampling.settings import SamplingSettings
from swiftlm_engine.text.chat import Chat


class ToolChoice(Enum):
    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"
    NAMED = "named"


class GrammarKind(Enum):
    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"
    CHOICE = "choice"


@dataclass(frozen=True, slots=True)
class Grammar:
    kind: GrammarKind
    text: str = ""
    choices: tuple[str, ...] = ()
    strict: bool = False  # a schema that cannot be enforced whole is refused


@dataclass(frozen=True, slots=True)
class Infill:
    """Fill-in-the-middle: what stands before and after the gap."""

    prefix: str
    suffix: str


Prompt = Chat | str | tuple[int, ...] | Infill


@dataclass(frozen=True, slots=True)
class GenerateJob:
    """One request. `max_tokens` None means the rest of the context."""

    request_id: str
    prompt: Prompt
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    n: int = 1
    top_logprobs: int | None = None
    ignore_eos: bool = False
    deadline_s: float | None = None
    raw_text: bool = False
    echo: bool = False
    grammar: Grammar | None = None
    thinking_budget: int | None = None
    cache_salt: str = ""
    no_cache: bool = False
    tool_choice: ToolChoice = ToolChoice.AUTO
    tool_name: str = ""
    parallel_tool_calls: bool = True
    return_token_ids: bool = False
    client: str = ""

    @property
    def scores_prompt(self) -> bool:
        """The prompt comes back with the log-probability of each of its tokens."""
        return self.echo and self.top_logprobs is not None


class FaultKind(Enum):
    """Named by who must act: the caller, time, the operator, us."""

    INVALID = "invalid"
    CONTEXT_TOO_LONG = "context_too_long"
    UNSUPPORTED = "unsupported"
    BUSY = "busy"
    NOT_ENOUGH_MEMORY = "not_enough_memory"
    DEADLINE = "deadline"
    ABORTED = "aborted"
    SHUTTING_DOWN = "shutting_down"
    MODEL_BROKEN = "model_broken"
    NO_DEVICE = "no_device"
    INTERNAL = "internal"


class EngineFault(Exception):
    """A failure with an answer for the client."""

    def __init__(
        self, kind: FaultKind, message: str, *, param: str = "", retry_after_s: int = 0
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s


class EndReason(Enum):
    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Logprob:
    """One token of the text with its alternatives, most likely first."""

    token_id: int
    token: bytes
    logprob: float
    top: tuple[Logprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCallPart:
    """`id` and `name` come with the first part of a call, the arguments in fragments."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Started:
    prompt_tokens: int
    cached_tokens: int
    cache_note: str
    thinking: bool = False
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadProgress:
    done_tokens: int
    total_tokens: int


@dataclass(frozen=True, slots=True)
class Delta:
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallPart, ...] = ()
    logprobs: tuple[Logprob, ...] = ()
    token_ids: tuple[int, ...] = ()

    @property
    def is_plain_text(self) -> bool:
        return not (self.reasoning or self.tool_calls or self.logprobs or self.token_ids)


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    queue_s: float = 0.0
    prefill_s: float = 0.0
    first_token_s: float = 0.0
    decode_s: float = 0.0
    prefill_tokens_per_s: float = 0.0
    decode_tokens_per_s: float = 0.0
    draft_tokens: int = 0
    draft_accepted: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    reason: EndReason
    usage: Usage = field(default_factory=Usage)
    timings: Timings = field(default_factory=Timings)
    fault: EngineFault | None = None
    stop_sequence: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    """News of one choice of one request."""

    request_id: str
    index: int
    news: Started | LoadProgress | Delta | Finished
