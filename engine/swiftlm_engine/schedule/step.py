"""What the scheduler asks of one step, and what it hears of it."""

from __future__ import annotations

from dataclasses import dataclass

from swiftlm_engine.schedule.sequence import FinishReason, Sequence

# Prompts (or what a prefix hit left of them) up to this length go through the model together.
SHORT_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Chunk:
    """Prefill tokens `start .. start + count` of one sequence."""

    sequence: Sequence
    start: int
    count: int

    @property
    def is_short(self) -> bool:
        """A short end of a prompt: nothing of the prompt is left after it."""
        whole = self.start + self.count == self.sequence.num_prefill
        return whole and self.count <= SHORT_TOKENS


@dataclass(frozen=True, slots=True)
class PrefillPass:
    """One pass over the weights that was made: a chunk, or short ones of several prompts."""

    chunks: tuple[Chunk, ...]
    seconds: float

    @property
    def tokens(self) -> int:
        return sum(chunk.count for chunk in self.chunks)

    @property
    def depth(self) -> int:
        """Tokens before the deepest of its chunks."""
        return max(chunk.start for chunk in self.chunks)

    @property
    def chunk_s(self) -> float:
        """Seconds that are one chunk's part."""
        return self.seconds / len(self.chunks)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step does, in this order: drop `gone`, take the caches of `preempted`, decode
    `decode`, prefill `chunks` (of different sequences)."""

    gone: tuple[Sequence, ...] = ()
    preempted: tuple[Sequence, ...] = ()
    decode: tuple[Sequence, ...] = ()
    chunks: tuple[Chunk, ...] = ()


@dataclass(frozen=True, slots=True)
class StepResult:
    """What happened: the passes that prefilled all chunks, and who finished in decode."""

    passes: tuple[PrefillPass, ...] = ()
    decode_tokens: int = 0
    decode_s: float = 0.0
    finished: tuple[tuple[Sequence, FinishReason], ...] = ()
