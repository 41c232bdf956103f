"""A minimal runner for prefix cache tests: one sequence, chunks, boundaries, greedy decode."""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from swiftlm_engine.brain.prefix_index import Kind
from swiftlm_engine.prefix.cache import Match, PrefixCache

CHUNK = 48
NUM_NEW = 12


@dataclass
class Runner:
    """Prefills one sequence in chunks with stops at boundaries, decodes greedily, stores."""

    model: Any
    cache: PrefixCache | None = None
    num_prefilled: int = 0

    def generate(
        self, prompt: list[int], boundaries: tuple[int, ...] = (), store: bool = True
    ) -> list[int]:
        caches, done = self._begin(prompt)
        stops = sorted({b for b in boundaries if b < len(prompt)} | {len(prompt) - 1})
        for stop in (s for s in stops if s > done):
            self._prefill(prompt[done:stop], caches)
            done = stop
            if store and self.cache is not None:
                kind = Kind.SYSTEM if stop == min(boundaries, default=0) else Kind.PROMPT
                self.cache.store(prompt[:stop], caches, kind)
        tokens = list(prompt)
        for _ in range(NUM_NEW):
            logits = self.model(mx.array([tokens[-1:]]), cache=caches)[0, -1]
            tokens.append(int(mx.argmax(logits).item()))
        if store and self.cache is not None:
            self.cache.store(tokens[:-1], caches, Kind.TURN)
        return tokens[len(prompt) :]

    def _begin(self, prompt: list[int]) -> tuple[list[Any], int]:
        result = None if self.cache is None else self.cache.match(prompt)
        if isinstance(result, Match):
            assert 0 < result.length < len(prompt)
            return result.caches, result.length
        return make_prompt_cache(self.model), 0

    def _prefill(self, tokens: list[int], caches: list[Any]) -> None:
        for start in range(0, len(tokens), CHUNK):
            self.model(mx.array([tokens[start : start + CHUNK]]), cache=caches)
            mx.eval([c.state for c in caches])
        self.num_prefilled += len(tokens)


def runner(model, ram_bytes: int = 1 << 30) -> Runner:
    return Runner(model, PrefixCache(lambda: make_prompt_cache(model), ram_bytes))


def write_out(cache: PrefixCache) -> None:
    """Everything that waits for the SSD is on it afterwards."""
    while not cache.pump():
        assert cache._ssd.drain(30.0)
    assert cache._ssd.drain(30.0)


def tokens(seed: int, count: int) -> list[int]:
    mx.random.seed(seed)
    return mx.random.randint(7, 300, (count,)).tolist()
