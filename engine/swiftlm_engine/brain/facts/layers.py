"""What one layer keeps per sequence: token stores (KV) and a constant state.

The numbers are those of mlx-lm's cache classes, which the engine uses; where they differ from the
paper (gemma-4's keys and values come from one projection but are cached apart), the cache wins.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

# mlx-lm's caches grow by this many tokens at a time.
GROWTH_TOKENS = 256


class LayerKind(StrEnum):
    """How a layer remembers. `NONE` is a layer without memory (a feed-forward block)."""

    FULL = "full"
    SLIDING = "sliding"
    CHUNKED = "chunked"
    MLA = "mla"
    LINEAR = "linear"
    SHARED = "shared"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class KvStore:
    """One pair of key and value arrays. `limit` is the window or chunk, None for all tokens.

    `turbo_blocker` says why the store cannot be compressed; empty where it can.
    """

    kind: LayerKind
    heads: int
    k_dim: int
    v_dim: int
    limit: int | None = None
    turbo_blocker: str = ""
    sinks: bool = False

    @property
    def elements_per_token(self) -> int:
        return self.heads * (self.k_dim + self.v_dim)

    def held_tokens(self, prompt: int, generated: int = 0) -> int:
        """Tokens of room that the cache holds after a one-chunk prefill and decode steps."""
        total = prompt + generated
        if self.limit is None:
            return round_up(total, GROWTH_TOKENS)
        if self.kind is LayerKind.CHUNKED:
            # Trimmed to the chunk before a step and grown by one stride in it.
            room, most = round_up(total, GROWTH_TOKENS), self.limit + GROWTH_TOKENS
            if total <= self.limit + 1:
                return room
            return most if generated else min(room, most)
        # A rotating cache takes the prompt as it comes and then grows towards its window.
        return min(self.limit, prompt + round_up(generated, GROWTH_TOKENS))

    def prefill_tokens(self, prompt: int, chunk: int) -> int:
        """Tokens of room while a prompt is evaluated in chunks; a window overshoots by a chunk."""
        if self.limit is None or prompt <= self.limit:
            return self.held_tokens(prompt)
        if self.kind is LayerKind.CHUNKED:
            grown = self.limit + round_up(min(chunk, prompt), GROWTH_TOKENS)
            return min(round_up(prompt, GROWTH_TOKENS), grown)
        return min(prompt, self.limit - 1 + chunk)


@dataclass(frozen=True, slots=True)
class Layer:
    """One entry of the model's cache list. State: elements in the model's dtype, and in float32."""

    kind: LayerKind
    stores: tuple[KvStore, ...] = ()
    state_elements: int = 0
    state_elements_f32: int = 0

    def state_bytes(self, itemsize: int) -> int:
        return self.state_elements * itemsize + 4 * self.state_elements_f32


def round_up(value: int, step: int) -> int:
    return -(-value // step) * step
