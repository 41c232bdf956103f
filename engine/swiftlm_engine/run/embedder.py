"""Embeddings from a language model: the mean of its last hidden states, of unit length."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any, Protocol

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache

from swiftlm_engine.messages import EngineFault, FaultKind
from swiftlm_engine.schedule.kv_budget import Grant


class PassSizes(Protocol):
    """How much of a text one pass takes, so that nobody who reads an answer waits for longer than
    for a slice of a prompt (see `Scheduler`)."""

    def side_pass_tokens(self, left: int) -> int: ...

    def side_pass_done(self, tokens: int, seconds: float, depth: int) -> None: ...


class Memory(Protocol):
    """The KV budget, which texts that are embedded share with sequences (see `Scheduler`)."""

    def hold_beside(self, kv_bytes: int) -> Grant: ...

    def release_beside(self, kv_bytes: int) -> None: ...


class Embedder:
    """Owned by the engine thread. Inputs run one by one: no padding can change a vector."""

    def __init__(
        self,
        model: Any,
        stream: Any,
        sizes: PassSizes,
        memory: Memory | None = None,
        price: Callable[[int], int] = lambda tokens: 0,
    ) -> None:
        """`price`: bytes of exact KV of so many tokens."""
        self._memory = memory
        self._price = price
        self._model = model
        self._body = getattr(model, "model", None)
        self._stream = stream
        self._sizes = sizes

    def embed(self, ids: list[int], dimensions: int) -> bytes:
        """As `passes`, all of them at once."""
        passes = self.passes(ids, dimensions)
        while True:
            try:
                next(passes)
            except StopIteration as end:
                vector: bytes = end.value
                return vector

    def passes(self, ids: list[int], dimensions: int) -> Generator[None, None, bytes]:
        """Pauses after each pass but the last, and while memory for its KV is not to be had. Ends
        with little-endian float32 bytes for the token ids of one text; `dimensions` 0 keeps all."""
        if self._body is None:
            raise EngineFault(
                FaultKind.UNSUPPORTED, "this model's hidden states cannot be read", param="model"
            )
        count = self._sizes.side_pass_tokens(len(ids))
        if count == len(ids):  # needs no caches
            return self._unit_vector([self._pass(ids, None, 0)], count, dimensions)
        held_bytes = yield from self._held(len(ids))
        try:
            caches = make_prompt_cache(self._model)
            sums: list[mx.array] = []
            done = 0
            while True:
                sums.append(self._pass(ids[done : done + count], caches, done))
                done += count
                if done == len(ids):
                    return self._unit_vector(sums, done, dimensions)
                yield
                count = self._sizes.side_pass_tokens(len(ids) - done)
        finally:
            if self._memory is not None:
                self._memory.release_beside(held_bytes)

    def _held(self, tokens: int) -> Generator[None, None, int]:
        """Waits until the KV of so many tokens can be held; its bytes."""
        kv_bytes = self._price(tokens)
        if self._memory is None:
            return kv_bytes
        while (answer := self._memory.hold_beside(kv_bytes)) is Grant.LATER:
            yield
        if answer is Grant.NEVER:
            raise EngineFault(
                FaultKind.NOT_ENOUGH_MEMORY,
                f"a text of {tokens:,} tokens needs {kv_bytes / 1e9:.2f} GB of KV cache, which is "
                "more than the budget; send it in parts, or load the model with a larger "
                "--memory-budget",
            )
        return kv_bytes

    def _pass(self, ids: list[int], caches: list[Any] | None, depth: int) -> mx.array:
        """The sum of the hidden states of these tokens, (D,); evaluated."""
        assert self._body is not None
        started = time.perf_counter()
        with mx.stream(self._stream):
            inputs = mx.array([ids])
            hidden = self._body(inputs) if caches is None else self._body(inputs, cache=caches)
            summed = hidden[0].astype(mx.float32).sum(axis=0)  # of (1, L, D)
            mx.eval(summed, [cache.state for cache in caches or ()])
        self._sizes.side_pass_done(len(ids), time.perf_counter() - started, depth)
        return summed

    def _unit_vector(self, sums: list[mx.array], tokens: int, dimensions: int) -> bytes:
        width = sums[0].size
        if dimensions > width:
            raise EngineFault(
                FaultKind.INVALID,
                f"dimensions is {dimensions}; this model has {width}",
                param="dimensions",
            )
        with mx.stream(self._stream):
            vector = mx.stack(sums).sum(axis=0)[: dimensions or width] / tokens
            vector = vector / mx.maximum(mx.linalg.norm(vector), 1e-12)
            mx.eval(vector)
        return np.array(vector).astype("<f4").tobytes()
