"""Search for settings that fit: from what is wished for down to the least that makes sense."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from swiftlm_engine.brain.facts import KvFormat, ModelFacts
from swiftlm_engine.brain.ledger import EntryKind
from swiftlm_engine.brain.plan.expansion import (
    AUTO_SHARE,
    CpuWeights,
    Expansion,
    expand_all,
    expand_within,
    expandable,
)
from swiftlm_engine.brain.plan.expert_families import streams_experts
from swiftlm_engine.brain.plan.layer_streaming import (
    LayerPlacement,
    calls_layers,
    layer_sizes,
    place_layers,
)
from swiftlm_engine.brain.plan.machine import Accelerator, Covers, Limit, MachineLimits
from swiftlm_engine.brain.plan.memory_terms import (
    MeasuredTerms,
    Need,
    resident_need,
    streamed_layers_need,
    streamed_need,
)
from swiftlm_engine.brain.plan.partition import split_need
from swiftlm_engine.brain.plan.request import (
    AUTO_PARALLEL,
    MIN_CONTEXT,
    SHORT_CONTEXT,
    PlanRequest,
    Settings,
    Toggle,
    auto_context,
    wanted_kv,
)
from swiftlm_engine.brain.plan.result import Strategy
from swiftlm_engine.brain.plan.streaming import Streaming, page_cache_reserve, place_experts

_CONTEXT_STEP = 256
# Left free of slots: planner._with_prefix_cache takes a quarter of it, pressure the rest.
_STREAMED_PREFIX_BYTES = 2 * 10**9
_CHUNKS = {
    Accelerator.METAL: (2048, 1024, 512, 256),
    Accelerator.CUDA: (2048, 1024, 512, 256),
    # Without fused attention the score matrix of a large chunk costs more than the chunk saves.
    Accelerator.CPU: (512, 256),
}


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run the model, with its price."""

    strategy: Strategy
    settings: Settings
    need: Need
    streaming: Streaming | None = None
    layers: LayerPlacement | None = None
    gpu_layers: int | None = None
    expansion: Expansion | None = None


@dataclass(frozen=True, slots=True)
class Fitter:
    """Prices candidates of one request against the limits of one machine."""

    facts: ModelFacts
    request: PlanRequest
    machine: MachineLimits
    measured: MeasuredTerms
    limits: tuple[Limit, ...]

    def best(self) -> Candidate | None:
        """The first candidate that fits, resident before streamed before partitioned."""
        return next((c for c in self._candidates() if self.fits(c)), None)

    def smallest(self) -> Candidate:
        """The cheapest thing that could be run, whether it fits or not."""
        settings = self._smallest_settings()
        if self.request.context is None:
            settings = replace(settings, context=min(settings.context, MIN_CONTEXT))
        if self._fixed_split():
            return self._split(settings, self.request.gpu_layers or 0)
        if self._may_stream():
            return self._streamed(settings)
        if self._may_stream_layers():
            return self._streamed_layers(settings)
        return self._resident(settings)

    def headroom(self, need: Need) -> tuple[Limit, int]:
        """The limit with the least room, and that room (negative = short)."""
        rooms = [(limit.bytes - need.counted_by(limit), i) for i, limit in enumerate(self.limits)]
        room, index = min(rooms)
        return self.limits[index], room

    def fits(self, candidate: Candidate) -> bool:
        return self.headroom(candidate.need)[1] >= 0

    def with_expansion(self, candidate: Candidate) -> Candidate:
        """With as much of the weights as float32 as `auto` may take: a quarter of the budget for
        the whole model, of what nothing else of the plan needs."""
        if self.request.cpu_weights is not CpuWeights.AUTO or not self._expandable():
            return candidate
        if candidate.strategy is not Strategy.RESIDENT:
            return candidate
        budget = min(limit.bytes for limit in self.limits if limit.covers is not Covers.BUFFER)
        room = int(AUTO_SHARE * budget) - candidate.need.of(EntryKind.WEIGHTS)
        expansion = expand_within(self.facts, min(room, self.headroom(candidate.need)[1]))
        return self._expanded(candidate.settings, expansion) if expansion else candidate

    def _candidates(self) -> Iterator[Candidate]:
        ladder = list(self._ladder())
        if self._fixed_split():
            layers = self.request.gpu_layers or 0
            yield from (self._split(settings, layers) for settings in ladder)
            return
        if self.request.stream is not Toggle.ON:
            yield from map(self._resident, ladder)
            # Reading experts costs more than a shorter context, but not than a very short one.
            least = SHORT_CONTEXT if self._may_stream() else MIN_CONTEXT
            yield from self._shorter(self._resident, least)
        if self._may_stream():
            yield from self._streamed_candidates(ladder)
            yield from self._shorter(self._streamed, MIN_CONTEXT)
        elif self._may_stream_layers():
            yield from self._streamed_layers_candidates(ladder)
            yield from self._shorter(self._streamed_layers, MIN_CONTEXT)
        if self.request.gpu_layers == -1 and self.machine.accelerator is not Accelerator.CPU:
            yield from self._fewer_gpu_layers()

    def _streamed_candidates(self, ladder: list[Settings]) -> Iterator[Candidate]:
        """Slots up to the knee are worth more than exact KV; the first candidate that has them is
        taken, else the one with the most.
        """
        candidates = [self._streamed(settings) for settings in ladder]
        fitting = [candidate for candidate in candidates if self.fits(candidate)]
        yield from (c for c in fitting if c.streaming is None)
        if self.request.expert_slots is not None:
            yield from fitting
        yield from (c for c in fitting if c.streaming and c.streaming.past_the_knee)
        yield from sorted(fitting, key=lambda c: c.streaming.slots if c.streaming else 0)[::-1]

    def _streamed_layers_candidates(self, ladder: list[Settings]) -> Iterator[Candidate]:
        """As for experts: what does not go into KV saves reads of every token."""
        narrowest = min(settings.parallel for settings in ladder)
        wide = [self._streamed_layers(s) for s in ladder if s.parallel != narrowest]
        narrow = [self._streamed_layers(s) for s in ladder if s.parallel == narrowest]
        # Where a wider batch costs no layer, it is not given up: those of `wide` come first.
        yield from sorted(wide + narrow, key=lambda c: c.layers.bytes_per_step if c.layers else 0)

    def _ladder(self) -> Iterator[Settings]:
        """Settings in falling order of comfort, all at the context wished for."""
        context = self.request.context or auto_context(self.facts)
        exact = wanted_kv(self.request)
        turbo = KvFormat.K4V3
        if self.request.kv != "auto" or not self.facts.compressed_layers(turbo):
            turbo = exact
        widths = self._widths()
        steps = [(exact, widths[0])]
        steps += [(exact, width) for width in widths[1:2]]
        steps += [(turbo, width) for width in widths[:2]]
        steps += [(exact, width) for width in widths[2:]]
        steps += [(turbo, width) for width in widths[2:]]
        if self.measured.compresses(context) and turbo != exact:
            steps = [(turbo, width) for width in widths[:2]] + steps
        for kv, width in dict.fromkeys(steps):
            for chunk in self._chunks():
                yield Settings(context, width, kv, chunk)

    def _chunks(self) -> tuple[int, ...]:
        if self.request.prefill_chunk is not None:
            return (self.request.prefill_chunk,)
        usual = _CHUNKS[self.machine.accelerator]
        if self.measured.record is None:
            return usual
        best = self.measured.record.choices.prefill_chunk
        return (best, *(chunk for chunk in usual if chunk < best))

    def _widths(self) -> tuple[int, ...]:
        if self.request.parallel:
            return (self.request.parallel,)
        widest = self.measured.parallel
        return (widest, *(width for width in (AUTO_PARALLEL, 2, 1) if width < widest))

    def _smallest_settings(self) -> Settings:
        return list(self._ladder())[-1]

    def _shorter(self, price: Callable[[Settings], Candidate], least: int) -> Iterator[Candidate]:
        """The longest context that fits, if the operator left the context open."""
        if self.request.context is not None:
            return
        smallest = self._smallest_settings()
        found = longest_context(
            lambda context: self.fits(price(replace(smallest, context=context))),
            least=least,
            most=smallest.context,
        )
        if found is not None:
            yield price(replace(smallest, context=found))

    def _fewer_gpu_layers(self) -> Iterator[Candidate]:
        settings = self._smallest_settings()
        for layers in range(len(self.facts.layers) - 1, -1, -1):
            candidate = self._split(settings, layers)
            if self.fits(candidate):
                yield candidate
                return

    def _resident(self, settings: Settings) -> Candidate:
        asked = self.request.cpu_weights is CpuWeights.EXPAND and self._expandable()
        return self._expanded(settings, expand_all(self.facts) if asked else None)

    def _expanded(self, settings: Settings, expansion: Expansion | None) -> Candidate:
        need = resident_need(
            self.facts, settings, self.request, self.machine, self.measured, expansion
        )
        return Candidate(Strategy.RESIDENT, settings, need, expansion=expansion)

    def _expandable(self) -> bool:
        return expandable(self.facts, self.machine.accelerator, self.request.dtype)

    def _split(self, settings: Settings, layers: int) -> Candidate:
        need = self._resident(settings).need
        need = split_need(need, self.facts, settings, self.request, self.machine, layers)
        return Candidate(Strategy.PARTITIONED, settings, need, gpu_layers=layers)

    def _streamed(self, settings: Settings) -> Candidate:
        """Slots take what the other terms leave free, never less than a token needs.

        One sequence at a time: others would want more experts of a step than there are slots. A
        model of which nothing is left to read from disk is resident.
        """
        asked, settings = settings, replace(settings, parallel=1)
        reserve = page_cache_reserve(self.facts, self.machine)
        least = self._place(0, reserve)
        bare = self._streamed_need(settings, replace(least, slot_bytes=0))
        room = max(0, self.headroom(bare)[1])
        if self.request.prefix_cache_bytes is None:
            room -= min(room // 10, _STREAMED_PREFIX_BYTES)
        placed = self._place(room, reserve, self.request.expert_slots)
        if not placed.streamed_layers:
            return self._resident(asked)
        need = self._streamed_need(settings, placed)
        return Candidate(Strategy.STREAMED, settings, need, placed)

    def _place(self, room: int, reserve: int, slots: int | None = None) -> Streaming:
        return place_experts(
            self.facts,
            room,
            reserve,
            slots,
            top_k=self.request.top_k_experts,
            itemsize=self.facts.cast_itemsize(self.request.dtype),
            must_stream=self.request.stream is Toggle.ON,
        )

    def _streamed_need(self, settings: Settings, streaming: Streaming) -> Need:
        return streamed_need(
            self.facts, settings, self.request, self.machine, self.measured, streaming
        )

    def _streamed_layers(self, settings: Settings) -> Candidate:
        """Resident layers take what the other terms leave free; all of them make it resident."""
        sizes = layer_sizes(self.facts, self.facts.cast_itemsize(self.request.dtype))
        bare = self._streamed_layers_need(settings, LayerPlacement((), 0, 0, 0))
        room = max(0, self.headroom(bare)[1])
        if self.request.prefix_cache_bytes is None:
            room -= min(room // 10, _STREAMED_PREFIX_BYTES)
        placed = place_layers(sizes, room, must_stream=self.request.stream is Toggle.ON)
        if not placed.streamed:
            return self._resident(settings)
        need = self._streamed_layers_need(settings, placed)
        return Candidate(Strategy.STREAMED, settings, need, layers=placed)

    def _streamed_layers_need(self, settings: Settings, placement: LayerPlacement) -> Need:
        return streamed_layers_need(
            self.facts, settings, self.request, self.machine, self.measured, placement
        )

    def _may_stream_layers(self) -> bool:
        """Every token waits for the disk then: only if asked for, or if nothing else can help."""
        if streams_experts(self.facts) or self.request.stream is Toggle.OFF:
            return False
        if not calls_layers(self.facts):
            return False
        if self.request.stream is Toggle.ON:
            return True
        if self._fixed_split() or self.request.gpu_layers == -1:
            return False
        return self._exceeds_the_machine()

    def _exceeds_the_machine(self) -> bool:
        """Resident with the least of all else, even with every other model and program gone."""
        smallest = self._smallest_settings()
        least = replace(smallest, context=min(smallest.context, MIN_CONTEXT))
        need = self._resident(least).need
        empty = replace(self.machine, committed_bytes=0, reclaimable_bytes=None)
        limits = empty.granted_limits(self.request.budget_bytes)
        return any(
            need.counted_by(limit) > limit.bytes
            for limit in limits
            if limit.covers is not Covers.BUFFER
        )

    def _may_stream(self) -> bool:
        return streams_experts(self.facts) and self.request.stream is not Toggle.OFF

    def _fixed_split(self) -> bool:
        layers = self.request.gpu_layers
        if self.machine.accelerator is Accelerator.CPU or layers is None:
            return False
        return 0 <= layers < len(self.facts.layers)


def longest_context(fits: Callable[[int], bool], *, least: int, most: int) -> int | None:
    """The largest multiple of the step (or `most`) that fits; None if `least` does not."""
    if most <= least:
        return most if fits(most) else None
    if not fits(least):
        return None
    low, high = least // _CONTEXT_STEP, -(-most // _CONTEXT_STEP)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle * _CONTEXT_STEP) else (low, middle)
    return most if fits(most) else low * _CONTEXT_STEP
