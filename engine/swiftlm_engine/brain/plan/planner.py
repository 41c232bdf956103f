"""Decide how a model runs on a machine: settings, strategy, what binds, and how fast it will be."""

from __future__ import annotations

from dataclasses import replace

from swiftlm_engine.brain.facts import LayerKind, ModelFacts
from swiftlm_engine.brain.ledger import EntryKind
from swiftlm_engine.brain.plan import partition
from swiftlm_engine.brain.plan.calibrated import measured_speed
from swiftlm_engine.brain.plan.expansion import CpuWeights
from swiftlm_engine.brain.plan.fit import Candidate, Fitter
from swiftlm_engine.brain.plan.machine import Accelerator, Covers, MachineLimits, gigabytes
from swiftlm_engine.brain.plan.memory_terms import MeasuredTerms, Need, Term, TermSource
from swiftlm_engine.brain.plan.request import PlanRequest, Toggle, auto_context, check_request
from swiftlm_engine.brain.plan.result import EngineLimits, Plan, Strategy
from swiftlm_engine.brain.plan.speed import PredictedSpeed, StepCost, predict
from swiftlm_engine.brain.plan.suggestions import fixes

_NOTHING_MEASURED = MeasuredTerms()
_LEAST_PREFIX_BYTES = 2**20
_BOUNDARIES = 4  # system prompt, and a few turns
_TRUNKS = {LayerKind.FULL, LayerKind.MLA, LayerKind.SHARED, LayerKind.NONE}


def make_plan(
    facts: ModelFacts,
    request: PlanRequest,
    machine: MachineLimits,
    measured: MeasuredTerms = _NOTHING_MEASURED,
) -> Plan:
    """The plan of one model; refused plans are plans too. Raises BadPlanRequest for nonsense."""
    check_request(request, facts)
    request = replace(request, dtype=_dtype(request, machine))
    fitter = Fitter(
        facts, request, machine, measured, tuple(machine.granted_limits(request.budget_bytes))
    )
    chosen = fitter.best()
    short = chosen is None
    candidate = chosen or fitter.smallest()
    if not short:
        candidate = fitter.with_expansion(candidate)
        candidate = _with_prefix_cache(fitter, candidate)
    binding, _ = fitter.headroom(candidate.need)
    refused = short and not request.force
    plan = Plan(
        facts=facts,
        request=request,
        machine=machine,
        measured=measured,
        strategy=Strategy.REFUSED if refused else candidate.strategy,
        settings=candidate.settings,
        need=candidate.need,
        limits=fitter.limits,
        binding=binding,
        speed=_speed(facts, request, machine, measured, candidate),
        engine=_engine_limits(request, machine, candidate),
        streaming=candidate.streaming,
        layers=candidate.layers,
        gpu_layers=candidate.gpu_layers,
        expansion=candidate.expansion,
        reductions=() if short else tuple(_reductions(facts, request, measured, candidate)),
        fixes=fixes(fitter, candidate) if short else (),
        forced=short and request.force,
    )
    return replace(plan, warnings=tuple(_warnings(plan, _step(facts, request, candidate))))


def _dtype(request: PlanRequest, machine: MachineLimits) -> str | None:
    """What the loader casts to: nothing, except on the CPU, where 16-bit products are slow."""
    if request.dtype == "auto":
        return None
    return request.dtype or ("float32" if machine.accelerator is Accelerator.CPU else None)


def _with_prefix_cache(fitter: Fitter, candidate: Candidate) -> Candidate:
    """Unless a size was asked for, a quarter of what is left may hold KV across requests, but never
    more than the conversations of this model can leave behind."""
    if fitter.request.prefix_cache_bytes is not None:
        return candidate
    spare = fitter.headroom(
        Need(candidate.need.terms, 0)  # a cache of many small arrays: no buffer limit applies
    )[1]
    useful, note = _useful_prefix(fitter, candidate)
    size = min(spare // 4, fitter.machine.ram_bytes // 10, useful)
    if size < _LEAST_PREFIX_BYTES:
        return candidate
    note = note if size == useful else "share of what is free"
    term = Term(EntryKind.PREFIX_CACHE, size, TermSource.POLICY, f"{note}; shrinks under pressure")
    need = Need((*candidate.need.terms, term), candidate.need.largest_buffer)
    return replace(candidate, need=need)


def _useful_prefix(fitter: Fitter, candidate: Candidate) -> tuple[int, str]:
    """Half of what the running sequences may hold: few conversations fill their context. Layers
    that cannot go back are kept once per boundary of a conversation, not once."""
    facts, settings = fitter.facts, candidate.settings
    contexts = -(-settings.parallel // 2)
    copies = 1 if facts.layer_kinds.keys() <= _TRUNKS else _BOUNDARIES
    one = facts.kv_bytes(0, settings.context, settings.kv, fitter.request.dtype)
    size = max(_LEAST_PREFIX_BYTES, one * contexts * copies)
    return size, f"{contexts * copies} x {settings.context:,} tokens"


def _reductions(
    facts: ModelFacts, request: PlanRequest, measured: MeasuredTerms, candidate: Candidate
) -> list[str]:
    """What `auto` made smaller than it starts with, in words."""
    settings, found = candidate.settings, []
    wished = auto_context(facts)
    if request.context is None and settings.context < wished:
        found.append(f"context reduced to {settings.context:,} tokens from {wished:,} to fit")
    streamed = candidate.streaming is not None
    aim = "since experts are read for one sequence at a time" if streamed else "to fit"
    parallel = request.parallel or measured.parallel
    if settings.parallel < parallel:
        found.append(f"parallel reduced to {settings.parallel} from {parallel} {aim}")
    if request.kv == "auto" and settings.kv.turbo:
        faster = measured.compresses(settings.context)
        found.append(
            f"KV compressed to {settings.kv} " + ("since it decodes faster" if faster else aim)
        )
    if candidate.strategy is Strategy.PARTITIONED and request.gpu_layers == -1:
        found.append(f"{candidate.gpu_layers} of {len(facts.layers)} layers on the accelerator")
    return found


def _speed(
    facts: ModelFacts,
    request: PlanRequest,
    machine: MachineLimits,
    measured: MeasuredTerms,
    candidate: Candidate,
) -> PredictedSpeed:
    if measured.record is not None:
        return measured_speed(measured.record, candidate.settings, facts)
    return predict(_with_top_k(facts, request), machine.speed, _step(facts, request, candidate))


def _step(facts: ModelFacts, request: PlanRequest, candidate: Candidate) -> StepCost:
    cast = facts.cast_itemsize(request.dtype)
    facts = _with_top_k(facts, request)
    full = facts.kv_bytes(0, candidate.settings.context, candidate.settings.kv, request.dtype)
    step = StepCost(facts.weights.active_bytes(cast), full)
    if (expansion := candidate.expansion) is not None:
        step = replace(
            step,
            weight_bytes=step.weight_bytes + expansion.added_bytes,
            expanded_weights=expansion.expanded_bytes // 4,
        )
    if (streaming := candidate.streaming) is not None:
        step = replace(
            step,
            disk_bytes=streaming.miss_bytes_low,
            disk_bytes_cached=streaming.miss_bytes_high,
            synced_layers=streaming.streamed_layers,
            sweep_bytes=streaming.sweep_bytes / candidate.settings.prefill_chunk,
        )
    if (layers := candidate.layers) is not None:
        step = replace(
            step,
            disk_bytes=layers.bytes_per_step,
            disk_bytes_cached=layers.bytes_per_step,
            synced_layers=len(layers.streamed),
            sweep_bytes=layers.bytes_per_step / candidate.settings.prefill_chunk,
        )
    if candidate.gpu_layers is not None:
        step = replace(step, cpu_share=1 - candidate.gpu_layers / len(facts.layers))
    return step


def _with_top_k(facts: ModelFacts, request: PlanRequest) -> ModelFacts:
    used = min(request.top_k_experts or 10**9, facts.weights.experts_per_token)
    return replace(facts, weights=replace(facts.weights, experts_per_token=used))


def _engine_limits(
    request: PlanRequest, machine: MachineLimits, candidate: Candidate
) -> EngineLimits:
    need, wired, ceiling = candidate.need, 0, 0
    if machine.accelerator is Accelerator.METAL and machine.working_set:
        # MLX counts all its arrays, and throttles beyond this: those of CPU layers come on top.
        ceiling = machine.working_set + partition.host_bytes(need)
        device = sum(term.bytes for term in need.terms if term.covers is Covers.DEVICE)
        # MLX refuses a wired limit above what Metal recommends.
        wired = min(device, machine.working_set) if request.wire else 0
    return EngineLimits(
        wired_bytes=wired,
        memory_limit_bytes=ceiling,
        buffer_cache_bytes=need.of(EntryKind.BUFFER_POOL),
        prefix_cache_bytes=need.of(EntryKind.PREFIX_CACHE),
        # The engine's gate prices KV alone: one prefill runs at a time, its scratch is set aside.
        kv_budget_bytes=need.of(EntryKind.KV),
        resident_bytes=_resident_bytes(candidate),
    )


def _resident_bytes(candidate: Candidate) -> int:
    if candidate.layers is not None:
        return candidate.need.of(EntryKind.WEIGHTS)
    if (streaming := candidate.streaming) is None:
        return 0
    return candidate.need.of(EntryKind.WEIGHTS) + streaming.slot_bytes


def _warnings(plan: Plan, step: StepCost) -> list[str]:
    found = []
    if plan.forced:
        found.append(
            f"forced: needs {gigabytes(plan.needed_bytes)}, "
            f"{gigabytes(plan.available_bytes)} available ({plan.binding.name}); "
            "expect swapping or an abort"
        )
    if (short := _compresses(plan)) > 0:
        found.append(
            f"{gigabytes(short)} more than is free now: macOS will compress what other programs "
            "hold, and the first answers are slower"
        )
    unreadable = plan.facts.weights.unreadable_expert
    if unreadable and (plan.refused or plan.layers is not None):
        found.append(
            f"experts of this checkpoint cannot be read one by one ({unreadable}): they stay in "
            "memory and the rest of the layers is streamed; a converted checkpoint streams experts"
        )
    if plan.request.stream is Toggle.ON and plan.strategy is Strategy.RESIDENT:
        found.append("--stream-experts on: it fits; nothing has to be read from disk")
    if plan.facts.kv_assumed:
        found.append(
            f"the caches of {plan.facts.model_type} are priced as plain attention; "
            "the real ones may be smaller"
        )
    if plan.facts.vision and not (plan.facts.reads_images and plan.request.images):
        found.append("text only: the image and audio towers are not loaded")
    if plan.strategy is Strategy.PARTITIONED:
        whole = predict(plan.facts, plan.machine.speed, replace(step, cpu_share=0.0))
        found += partition.warnings(plan.need, plan.machine, plan.speed, whole)
    if plan.request.gpu_layers is not None and plan.machine.accelerator is Accelerator.CPU:
        found.append("--gpu-layers: there is no accelerator here, every layer is on the CPU")
    if plan.request.cpu_weights is CpuWeights.EXPAND and plan.expansion is None:
        found.append(f"weights are not expanded to float32: {_why_packed(plan)}")
    if not plan.refused and plan.speed.decode.high < 1:
        found.append("predicted decode is below one token per second")
    return found


def _compresses(plan: Plan) -> int:
    """What the plan needs beyond what can be had now, where that is no limit."""
    machine = plan.machine
    if machine.reclaimable_bytes is None or not machine.reclaimable_is_advice or plan.refused:
        return 0
    own = sum(term.bytes for term in plan.terms if term.kind is not EntryKind.PAGE_CACHE)
    return own - machine.reclaimable_bytes


def _why_packed(plan: Plan) -> str:
    if plan.machine.accelerator is not Accelerator.CPU:
        return f"{plan.machine.accelerator} computes with quantized weights as they are"
    if not plan.facts.weights.packed:
        return "none of them are quantized"
    if (plan.request.dtype or plan.facts.dtype) != "float32":
        return "activations are not float32 (see --dtype)"
    return f"the plan is {plan.strategy}"
