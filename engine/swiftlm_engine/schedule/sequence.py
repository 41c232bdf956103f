"""One prompt being continued: what the scheduler knows of it. No tensors, no text.

Invariants: `0 <= prefilled <= num_prefill`; a sequence is decoding only when `prefilled ==
num_prefill`; it finishes once and never leaves `FINISHED`.

A preempted sequence waits again: what it has decoded so far is then prefilled like a prompt.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from enum import Enum

_COMPARED = 1024  # tokens at once: most prompts that differ do so in the first


class Phase(Enum):
    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    FINISHED = "finished"


class FinishReason(Enum):
    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    ABORT = "abort"
    DEADLINE = "deadline"
    MEMORY = "memory"
    ERROR = "error"


@dataclass(slots=True, eq=False)
class Sequence:
    """A prompt of `prompt_ids` and the tokens decoded so far.

    The last prompt token is not prefilled: it is the first input of decode, as in mlx-lm's
    `generate_step`, so that a sequence whose whole prompt is cached needs no special case.
    """

    request_id: str
    index: int
    prompt_ids: list[int]
    max_tokens: int
    arrived_at: float
    boundaries: tuple[int, ...] = ()  # prefill pauses here, so that a checkpoint can be stored
    system_length: int = 0  # without pauses: tokens that conversations share
    keeps_chunks: bool = False  # without boundaries: ends of its chunks are checkpoints, too
    deadline_at: float | None = None
    client: str = ""  # who asked: clients share places and the time of prefill
    kv_bytes: int = 0  # reserved for it at the gate
    reserved_tokens: int = 0  # new tokens that the reservation covers
    num_resumed: int = 0  # decoded tokens that were in the cache before it was preempted
    phase: Phase = Phase.WAITING
    is_open: bool = False  # its caches are there, with what the prefix cache had
    prefilled: int = 0
    cached: int = 0
    output_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    started_at: float | None = None  # first prefill chunk
    refused_at: float | None = None  # since when it waits for memory
    first_token_at: float | None = None
    prefill_s: float = 0.0
    # How many first tokens are known to be those of another sequence, which has this key.
    _alike: tuple[tuple[str, int] | None, int] = field(default=(None, 0), init=False, repr=False)

    @property
    def key(self) -> tuple[str, int]:
        return (self.request_id, self.index)

    @property
    def prefill_ids(self) -> list[int]:
        """Prompt, and after a preemption what had been decoded by then."""
        return self.prompt_ids + self.output_ids[: self.num_resumed]

    def prefill_slice(self, start: int, end: int) -> list[int]:
        """`prefill_ids[start:end]`, without a copy of the others."""
        ids = self.prompt_ids[start:end]
        resumed = end - len(self.prompt_ids)
        if resumed > 0:
            decoded = self.output_ids[: min(resumed, self.num_resumed)]
            ids += decoded[max(0, start - len(self.prompt_ids)) :]
        return ids

    @property
    def num_prefill(self) -> int:
        return len(self.prompt_ids) + self.num_resumed - 1

    @property
    def first_input_id(self) -> int:
        """Of decode: what is left of the prompt after prefill."""
        return self.prefill_slice(self.num_prefill, self.num_prefill + 1)[0]

    @property
    def remaining_prefill(self) -> int:
        return self.num_prefill - self.prefilled

    def next_boundary(self) -> int:
        """Where the next chunk must stop: the next boundary, or the end of prefill."""
        at = bisect_right(self.boundaries, self.prefilled)
        if at < len(self.boundaries):
            return min(self.boundaries[at], self.num_prefill)
        return self.num_prefill

    def begins_like(self, other: Sequence, tokens: int) -> bool:
        """Whether so many first tokens are there and the same in both. Asked again for more, of the
        same other one, it compares the new ones only."""
        if min(self.num_prefill, other.num_prefill) + 1 < tokens:
            return False
        key, alike = self._alike
        if key != other.key:
            alike = 0
        while alike < tokens:
            end = min(tokens, alike + _COMPARED)
            if self.prefill_slice(alike, end) != other.prefill_slice(alike, end):
                return False
            alike = end
            self._alike = other.key, alike
        return True

    def preempt(self) -> None:
        """Gives up its caches and waits again."""
        self.phase = Phase.WAITING
        self.is_open = False
        self.refused_at = None
        self.num_resumed = len(self.output_ids)
        self.prefilled = 0

    def finish(self, reason: FinishReason) -> None:
        if self.phase is Phase.FINISHED:
            return
        self.phase = Phase.FINISHED
        self.finish_reason = reason
