"""What the engine tells of itself: counters and memory.

Measured on the MLX thread between two steps. When that thread does not answer in time (a long
chunk, or a stuck device) the last snapshot is repeated with the true age of the step, which is
what a watchdog needs to see.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time

import mlx.core as mx

from swiftlm_engine.isolation.footprint import footprint_bytes
from swiftlm_engine.run.mlx_thread import MlxThread
from swiftlm_engine.server import wire
from swiftlm_engine.server.memory import holdings
from swiftlm_engine.session.session import Session
from swiftlm_proto import messages as m

WAIT_S = 1.0


class StatsReader:
    def __init__(self, session: Session, mlx: MlxThread) -> None:
        self._session = session
        self._mlx = mlx
        self._last = m.EngineStats()

    async def read(self) -> m.EngineStats:
        measuring = asyncio.wrap_future(self._mlx.call(self._measure))
        try:
            self._last = await asyncio.wait_for(asyncio.shield(measuring), WAIT_S)
        except TimeoutError:
            measuring.add_done_callback(lambda done: done.cancelled() or done.exception())
        return dataclasses.replace(self._last, step_age_s=self._mlx.step_age_s)

    def _measure(self) -> m.EngineStats:
        engine, prefix = self._session.engine, self._session.prefix
        scheduler, counters = engine.scheduler, engine.counters
        cache = prefix.stats()
        now = time.monotonic()
        streaming, expanded = self._session.streaming, self._session.expanded
        return m.EngineStats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            requests=counters.requests,
            prompt_tokens=counters.prompt_tokens,
            completion_tokens=counters.completion_tokens,
            cached_tokens=counters.cached_tokens,
            aborted=counters.aborted,
            failed=counters.failed,
            steps=counters.steps,
            decode_tokens_per_s=engine.decode_speed(now),
            prefill_tokens_per_s=engine.prefill_speed(now),
            active_bytes=mx.get_active_memory(),
            pool_bytes=mx.get_cache_memory(),
            peak_bytes=mx.get_peak_memory(),
            footprint_bytes=footprint_bytes(),
            kv_bytes=self._session.runner.kv_bytes(),
            kv_tokens=sum(s.prefilled + len(s.output_ids) for s in scheduler.running),
            kv_compressed_tokens=self._session.runner.kv_compressed_tokens(),
            prefix_cache_bytes=prefix.nbytes,
            prefix_cache_hits=cache.num_hits,
            prefix_cache_misses=cache.num_misses,
            weights_note=expanded.note if expanded else "",
            measured={kind.value: size for kind, size in holdings(self._session).items()},
            stream=wire.stream_counters(streaming.to_json()) if streaming else None,
        )
