"""What would fit instead of a refused plan: single changes first, the least loss first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from swiftlm_engine.brain.facts import KvFormat
from swiftlm_engine.brain.plan.expert_families import streams_experts
from swiftlm_engine.brain.plan.fit import Candidate, Fitter, longest_context
from swiftlm_engine.brain.plan.machine import BUDGET, RECLAIMABLE, Covers, gigabytes
from swiftlm_engine.brain.plan.memory_terms import whole_gigabytes
from swiftlm_engine.brain.plan.request import MIN_CONTEXT, PlanRequest, Toggle

_SMALL_CHUNK = 256
_LEAST_CONTEXT = 512


def fixes(fitter: Fitter, refused: Candidate) -> tuple[str, ...]:
    """Flags or acts, each of which alone makes the model fit; empty if nothing here does."""
    found = tuple(_single_changes(fitter, refused)) or tuple(_all_together(fitter, refused))
    slow = replace(fitter.request, gpu_layers=-1)  # the dearest way out, so the last
    split = fitter.request.gpu_layers is None and _fits(fitter, slow)
    return (*found, "--gpu-layers auto") if split else found


def _single_changes(fitter: Fitter, refused: Candidate) -> Iterator[str]:
    request, settings = fitter.request, refused.settings
    if request.prefill_chunk and request.prefill_chunk > _SMALL_CHUNK:
        smaller = replace(request, prefill_chunk=_SMALL_CHUNK)
        if _fits(fitter, smaller):
            yield f"--prefill-chunk {_SMALL_CHUNK}"
    if _compressible(fitter) and _fits(fitter, replace(request, kv="turbo")):
        yield "--kv turbo"
    if (width := _widest(fitter, settings.parallel)) is not None:
        yield f"--parallel {width}"
    context = _longest(fitter, request)
    if context is not None and context != request.context:
        yield f"--ctx {context}"
    if streams_experts(fitter.facts) and request.stream is Toggle.OFF:
        streamed = replace(request, stream=Toggle.AUTO, expert_slots=None)
        if _fits(fitter, streamed):
            yield "--stream-experts on"
    yield from _more_room(fitter, refused)


def _more_room(fitter: Fitter, refused: Candidate) -> Iterator[str]:
    """A larger budget, other models unloaded, or memory that other programs hold."""
    request, machine = fitter.request, fitter.machine
    if request.budget_bytes is not None:
        free = replace(request, budget_bytes=None)
        if _fits(fitter, free):
            budget = next(limit for limit in fitter.limits if limit.name == BUDGET)
            needed = refused.need.counted_by(budget) + machine.committed_bytes
            yield f"--memory-budget {whole_gigabytes(needed)}"
    if machine.committed_bytes:
        alone = replace(machine, committed_bytes=0, reclaimable_bytes=None)
        if replace(fitter, limits=tuple(alone.granted_limits(request.budget_bytes))).best():
            held = gigabytes(machine.committed_bytes)
            yield f"unload other models, which hold {held} (`swiftlmctl ps`, `unload NAME`)"
            return
    binding, room = fitter.headroom(refused.need)
    others = tuple(limit for limit in fitter.limits if limit.name != RECLAIMABLE)
    if binding.name == RECLAIMABLE and replace(fitter, limits=others).best():
        yield f"close programs that hold {gigabytes(-room)}"


def _all_together(fitter: Fitter, refused: Candidate) -> Iterator[str]:
    """Everything small at once, with the longest context that leaves room."""
    request = replace(fitter.request, parallel=1, prefill_chunk=_SMALL_CHUNK)
    flags = ["--parallel 1", f"--prefill-chunk {_SMALL_CHUNK}"]
    if _compressible(fitter):
        request = replace(request, kv="turbo")
        flags.insert(0, "--kv turbo")
    if streams_experts(fitter.facts) and request.stream is Toggle.OFF:
        request = replace(request, stream=Toggle.AUTO)
        flags.insert(0, "--stream-experts on")
    context = _longest(replace(fitter, request=request), request)
    if context is not None:
        flags += [] if context == request.context else [f"--ctx {context}"]
        yield " ".join(flags)
        return
    if not streams_experts(fitter.facts) and _fits(fitter, replace(request, stream=Toggle.ON)):
        yield "--stream-experts on (layers are then read from disk for each token)"
    binding, room = fitter.headroom(refused.need)
    if binding.covers is not Covers.BUFFER:
        yield f"a quantization that is {gigabytes(-room)} smaller"


def _compressible(fitter: Fitter) -> bool:
    exact = fitter.request.kv in ("auto", KvFormat.FP16)
    return exact and fitter.facts.compressed_layers(KvFormat.K4V3) > 0


def _widest(fitter: Fitter, parallel: int) -> int | None:
    for width in range(min(parallel, 64) - 1, 0, -1):
        if _fits(fitter, replace(fitter.request, parallel=width)):
            return width
    return None


def _longest(fitter: Fitter, request: PlanRequest) -> int | None:
    most = request.context or fitter.facts.max_context or MIN_CONTEXT
    return longest_context(
        lambda context: _fits(fitter, replace(request, context=context)),
        least=min(_LEAST_CONTEXT, most),
        most=most,
    )


def _fits(fitter: Fitter, request: PlanRequest) -> bool:
    limits = tuple(fitter.machine.granted_limits(request.budget_bytes))
    return replace(fitter, request=request, limits=limits).best() is not None
