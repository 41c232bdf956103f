"""What it takes, and what it costs, to leave the last layers of a model to the CPU.

Where the accelerator computes in the machine's own memory this saves nothing but working set: the
layers' weights and KV stay in RAM, and MLX's attention on the CPU needs more scratch. Elsewhere
they lie in RAM instead of the accelerator's memory.
"""

from __future__ import annotations

from dataclasses import replace

from swiftlm_engine.brain.facts import ModelFacts
from swiftlm_engine.brain.ledger import EntryKind
from swiftlm_engine.brain.plan.machine import Accelerator, Covers, MachineLimits, gigabytes
from swiftlm_engine.brain.plan.memory_terms import Need, Term, TermSource
from swiftlm_engine.brain.plan.request import PlanRequest, Settings
from swiftlm_engine.brain.plan.scratch import prefill_scratch
from swiftlm_engine.brain.plan.speed import PredictedSpeed, Range

ON_CPU = "layers on the CPU"


def split_need(
    resident: Need,
    facts: ModelFacts,
    settings: Settings,
    request: PlanRequest,
    machine: MachineLimits,
    gpu_layers: int,
) -> Need:
    """A resident model's need with all but the first `gpu_layers` moved to the host's bytes."""
    behind = replace(facts, layers=facts.layers[gpu_layers:])
    cast = facts.cast_itemsize(request.dtype)
    weights = sum(layer.bytes_as(cast) for layer in facts.weights.layers[gpu_layers:])
    kv = behind.kv_bytes(0, settings.context, settings.kv, request.dtype) * settings.parallel
    moved = {EntryKind.WEIGHTS: weights, EntryKind.KV: kv}
    rows = [replace(t, bytes=t.bytes - moved.get(t.kind, 0)) for t in resident.terms]
    rows += [Term(kind, size, _source(kind), ON_CPU, Covers.HOST) for kind, size in moved.items()]
    rows.append(_scratch(behind, facts, settings, request, machine))
    return Need(tuple(rows), resident.largest_buffer)


def _source(kind: EntryKind) -> TermSource:
    return TermSource.HEADER if kind is EntryKind.WEIGHTS else TermSource.FORMULA


def _scratch(
    behind: ModelFacts,
    facts: ModelFacts,
    settings: Settings,
    request: PlanRequest,
    machine: MachineLimits,
) -> Term:
    """One layer computes at a time, so shared memory holds the larger of both scratches."""
    size = prefill_scratch(behind, settings, Accelerator.CPU, dtype=request.dtype).total
    if machine.shared_memory:
        here = prefill_scratch(facts, settings, machine.accelerator, dtype=request.dtype).total
        size = max(0, size - here)
    return Term(EntryKind.SCRATCH, size, TermSource.FORMULA, f"attention of {ON_CPU}", Covers.HOST)


def host_bytes(need: Need) -> int:
    """Of MLX's arrays, those that no working set of the accelerator counts."""
    kinds = (EntryKind.WEIGHTS, EntryKind.KV, EntryKind.SCRATCH)
    return sum(t.bytes for t in need.terms if t.covers is Covers.HOST and t.kind in kinds)


def warnings(
    need: Need, machine: MachineLimits, speed: PredictedSpeed, whole: PredictedSpeed
) -> list[str]:
    """What the operator gives and gets; `whole` is the speed with every layer in one place."""
    held = gigabytes(sum(t.bytes for t in need.terms if t.note == ON_CPU))
    gain = f"{held} of {ON_CPU} are held in RAM, not in the memory of the {machine.accelerator}"
    if machine.shared_memory:
        gain = (
            f"{ON_CPU} free no memory: their {held} stay in RAM, only the "
            f"{machine.accelerator} working set is smaller"
        )
    cost = (
        f"{ON_CPU}: decode {_words(speed.decode)} tokens/s instead of {_words(whole.decode)}, "
        f"prefill {_words(speed.prefill)} instead of {_words(whole.prefill)} (an estimate: what a "
        "layer costs on this CPU has not been measured)"
    )
    return [gain, cost]


def _words(bounds: Range) -> str:
    return f"{bounds.low:.3g} to {bounds.high:.3g}"
