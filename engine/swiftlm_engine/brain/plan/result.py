"""A plan: what a model will hold, what binds, and what would fit instead. Immutable once made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from swiftlm_engine.brain.facts import ModelFacts
from swiftlm_engine.brain.plan.expansion import Expansion
from swiftlm_engine.brain.plan.layer_streaming import LayerPlacement
from swiftlm_engine.brain.plan.machine import Accelerator, Limit, MachineLimits, gigabytes
from swiftlm_engine.brain.plan.memory_terms import MeasuredTerms, Need, Term
from swiftlm_engine.brain.plan.request import AUTO_ROWS, PlanRequest, Settings
from swiftlm_engine.brain.plan.scratch import prefill_scratch
from swiftlm_engine.brain.plan.speed import PredictedSpeed, Range
from swiftlm_engine.brain.plan.streaming import Streaming

STREAMING_ENVIRONMENT = {
    Accelerator.METAL: {"MLX_MAX_OPS_PER_BUFFER": "8"},
    Accelerator.CUDA: {"MLX_USE_CUDA_GRAPHS": "0"},
}


class Strategy(StrEnum):
    RESIDENT = "resident"
    STREAMED = "streamed"
    PARTITIONED = "partitioned"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What the engine sets once at load. 0 = leave MLX's own (or never call it)."""

    wired_bytes: int
    memory_limit_bytes: int
    buffer_cache_bytes: int
    prefix_cache_bytes: int
    kv_budget_bytes: int
    resident_bytes: int  # weights and expert slots when streaming; 0 = everything


@dataclass(frozen=True, slots=True)
class RequestCost:
    """What one request takes while it runs: KV to its end, and the peak of its prefill."""

    kv_bytes: int
    scratch_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.kv_bytes + self.scratch_bytes


@dataclass(frozen=True, slots=True)
class Plan:
    """The object that drives load, admission, status and the text of refusals.

    `reductions` says in words whatever `auto` chose smaller than it would have liked, `fixes` what
    would fit instead, the smallest change first. `binding` is the limit with the least room.
    """

    facts: ModelFacts
    request: PlanRequest
    machine: MachineLimits
    measured: MeasuredTerms
    strategy: Strategy
    settings: Settings
    need: Need
    limits: tuple[Limit, ...]
    binding: Limit
    speed: PredictedSpeed
    engine: EngineLimits
    streaming: Streaming | None = None
    layers: LayerPlacement | None = None  # of a dense model, where they are streamed
    gpu_layers: int | None = None
    expansion: Expansion | None = None  # of quantized weights, on the CPU back end
    reductions: tuple[str, ...] = ()
    fixes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    forced: bool = False

    @property
    def rows(self) -> int:
        """Sequences that may decode together; the gate admits them by the KV they ask for."""
        own = self.request.parallel or self.settings.parallel == 1 or self.measured.record
        return self.settings.parallel if own else max(self.settings.parallel, AUTO_ROWS)

    @property
    def needed_bytes(self) -> int:
        """What the binding limit counts of this plan."""
        return self.need.counted_by(self.binding)

    @property
    def available_bytes(self) -> int:
        return self.binding.bytes

    @property
    def shortfall_bytes(self) -> int:
        return max(0, self.needed_bytes - self.available_bytes)

    @property
    def total_bytes(self) -> int:
        return self.need.total

    @property
    def refused(self) -> bool:
        return self.strategy is Strategy.REFUSED

    @property
    def auto_reduced(self) -> bool:
        return bool(self.reductions)

    @property
    def summary(self) -> str:
        """One line: the verdict with the sum, for status, logs and error bodies."""
        if not self.refused:
            verdict = f"{self.strategy}, needs {gigabytes(self.needed_bytes)} of "
            verdict += f"{gigabytes(self.available_bytes)} ({self.binding.name})"
            notes = [note for note in (self.streaming_note, self.expansion_note) if note]
            return "; ".join([verdict, *notes, *self.reductions])
        text = (
            f"needs {gigabytes(self.needed_bytes)}, {gigabytes(self.available_bytes)} available "
            f"({self.binding.name}), {gigabytes(self.shortfall_bytes)} short"
        )
        return f"{text}; smallest change that fits: {self.fixes[0]}" if self.fixes else text

    @property
    def streaming_note(self) -> str:
        """What is read from disk, and how fast that will be; empty where nothing is."""
        if self.refused or not (self.streaming or self.layers):
            return ""
        decode = self.speed.decode
        speed = f"{_rough(decode.low)} to {_rough(decode.high)} tokens/s predicted"
        if self.layers is not None:
            return (
                f"{len(self.layers.streamed)} of {len(self.facts.layers)} layers are read from "
                f"disk for each token, {speed}"
            )
        assert self.streaming is not None
        where = f"{self.streaming.slots} of {self.streaming.num_experts} experts"
        if self.streaming.resident_layers:
            total = self.streaming.resident_layers + self.streaming.streamed_layers
            where += f" in {self.streaming.streamed_layers} of {total} layers"
        return f"{where} in memory, the others are read from disk, {speed}"

    @property
    def expansion_note(self) -> str:
        """Empty where the weights stay as they are stored."""
        if self.refused or self.expansion is None:
            return ""
        everything = self.expansion.whole and not self.expansion.beside_experts
        return f"weights {self.expansion.note}" if everything else self.expansion.note

    @property
    def environment(self) -> Mapping[str, str]:
        """What MLX reads when it is imported.

        Streamed layers wait for the router, which short command buffers start sooner on Metal, and
        on CUDA kernels that are launched one by one, not as a graph.
        """
        if self.streaming is None or not self.streaming.streamed_layers:
            return {}
        return dict(STREAMING_ENVIRONMENT.get(self.machine.accelerator, {}))

    def request_cost(self, prompt_tokens: int, max_tokens: int) -> RequestCost:
        """For admission. The prompt may be longer than the context: that is not judged here."""
        kv = self.facts.kv_bytes(prompt_tokens, max_tokens, self.settings.kv, self.request.dtype)
        one = Settings(self.settings.context, 1, self.settings.kv, self.settings.prefill_chunk)
        scratch = prefill_scratch(
            self.facts, one, self.machine.accelerator, prompt=prompt_tokens,
            dtype=self.request.dtype,
        ).total  # fmt: skip
        if self.measured.scratch_ratio is not None:
            scratch = int(scratch * self.measured.scratch_ratio)
        return RequestCost(kv, scratch)

    def request_bytes(self, prompt_tokens: int, max_tokens: int) -> int:
        return self.request_cost(prompt_tokens, max_tokens).total_bytes

    @property
    def terms(self) -> tuple[Term, ...]:
        return self.need.terms

    def to_json(self) -> dict[str, Any]:  # Any: the shape of a JSON document
        return {
            "model": self.facts.path.name,
            "model_type": self.facts.model_type,
            "dtype": self.request.dtype or self.facts.dtype,
            "quantization": self.facts.quantisation.describe(),
            "checkpoint_bytes": self.facts.checkpoint_bytes,
            "strategy": self.strategy.value,
            "summary": self.summary,
            "context": self.settings.context,
            "max_context": self.facts.max_context,
            "parallel": self.settings.parallel,
            "max_parallel": self.rows,
            "kv": self.settings.kv.value,
            "prefill_chunk": self.settings.prefill_chunk,
            "gpu_layers": self.gpu_layers,
            "auto_reduced": self.auto_reduced,
            "reductions": list(self.reductions),
            "terms": [
                {"kind": t.kind.value, "bytes": t.bytes, "source": t.source.value, "note": t.note}
                for t in self.terms
            ],
            "total_bytes": self.total_bytes,
            "limits": [
                {
                    "name": limit.name,
                    "bytes": limit.bytes,
                    "counted_bytes": self.need.counted_by(limit),
                    "binding": limit is self.binding,
                }
                for limit in self.limits
            ],
            "needed_bytes": self.needed_bytes,
            "available_bytes": self.available_bytes,
            "shortfall_bytes": self.shortfall_bytes,
            "fixes": list(self.fixes),
            "warnings": list(self.warnings),
            "forced": self.forced,
            "streaming": self._streaming_json(),
            "cpu_weights": self._expansion_json(),
            "speed": {
                "prefill_tokens_s": _bounds(self.speed.prefill),
                "decode_tokens_s": _bounds(self.speed.decode),
                "decode_full_context_tokens_s": _bounds(self.speed.decode_full),
                "measured": self.speed.measured,
                "calibrated": self.measured.record is not None,
            },
            "engine": {
                "wired_bytes": self.engine.wired_bytes,
                "memory_limit_bytes": self.engine.memory_limit_bytes,
                "buffer_cache_bytes": self.engine.buffer_cache_bytes,
                "prefix_cache_bytes": self.engine.prefix_cache_bytes,
                "kv_budget_bytes": self.engine.kv_budget_bytes,
                "resident_bytes": self.engine.resident_bytes,
            },
        }

    def _expansion_json(self) -> dict[str, Any] | None:
        if (expansion := self.expansion) is None or self.refused:
            return None
        return {
            "note": self.expansion_note,
            "held_as": expansion.note,
            "expanded_bytes": expansion.expanded_bytes,
            "added_bytes": expansion.added_bytes,
            "head": expansion.head,
            "attention_layers": expansion.attention_layers,
            "mlp_layers": expansion.mlp_layers,
        }

    def _streaming_json(self) -> dict[str, Any] | None:
        ssd = self.machine.speed.ssd_bytes_s
        disk = {
            "note": self.streaming_note,
            "ssd_bytes_per_s": [int(ssd.low), int(ssd.high)],
            "ssd_measured": self.machine.speed.ssd_threads > 0,
            "ssd_threads": self.machine.speed.ssd_threads,
        }
        if self.layers is not None:
            return disk | {
                "mode": "layers",
                "streamed_layers": len(self.layers.streamed),
                "resident_layers": len(self.facts.layers) - len(self.layers.streamed),
                "step_bytes": self.layers.bytes_per_step,
            }
        if (streaming := self.streaming) is None:
            return None
        return disk | {
            "mode": "experts",
            "slots": streaming.slots,
            "num_experts": streaming.num_experts,
            "resident_layers": streaming.resident_layers,
            "streamed_layers": streaming.streamed_layers,
            "record_bytes": streaming.record_bytes,
            "page_cache_bytes": streaming.page_cache_bytes,
            "experts_per_token": self.request.top_k_experts or self.facts.weights.experts_per_token,
            "hit_rate": [round(streaming.hit_low, 3), round(streaming.hit_high, 3)],
        }


def _bounds(bounds: Range) -> list[float]:
    return [round(bounds.low, 2), round(bounds.high, 2)]


def _rough(figure: float) -> str:
    """Two digits, as a prediction deserves: 0.14, 46, 180."""
    return f"{float(f'{figure:.2g}'):.0f}" if figure >= 10 else f"{figure:.2g}"
