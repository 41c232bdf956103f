"""One prompt being continued: what the scheduler knows of it. No tensors, no text.

Invariants: `0 <= prefilled <= num_prefill`; a sequence is decoding only when `prefilled ==
num_prefill`; it finishes once and never leaves `FINISHED`.

A preempted sequence waits again: what it has decoded so far is then prefilled like a prompt.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from enum import Enum


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
    keeps_chunks: bool = False  # without boundaries: ends of its chunks are checkpoints, too
    deadline_at: float | None = None
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
    decoding_at: float | None = None
    first_token_at: float | None = None
    finished_at: float | None = None
    prefill_s: float = 0.0

    @property
    def key(self) -> tuple[str, int]:
        return (self.request_id, self.index)

    @property
    def prefill_ids(self) -> list[int]:
        """Prompt, and after a preemption what had been decoded by then."""
        return self.prompt_ids + self.output_ids[: self.num_resumed]

    @property
    def num_prefill(self) -> int:
        return len(self.prompt_ids) + self.num_resumed - 1

    @property
    def remaining_prefill(self) -> int:
        return self.num_prefill - self.prefilled

    def next_boundary(self) -> int:
        """Where the next chunk must stop: the next boundary, or the end of prefill."""
        at = bisect_right(self.boundaries, self.prefilled)
        if at < len(self.boundaries):
            return min(self.boundaries[at], self.num_prefill)
        return self.num_prefill

    def preempt(self) -> None:
        """Gives up its caches and waits again."""
        self.phase = Phase.WAITING
        self.is_open = False
        self.num_resumed = len(self.output_ids)
        self.prefilled = 0

    def finish(self, reason: FinishReason, now: float) -> None:
        if self.phase is Phase.FINISHED:
            return
        self.phase = Phase.FINISHED
        self.finish_reason = reason
        self.finished_at = now
