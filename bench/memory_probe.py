"""One model in a process of its own: what the plan prices beside what MLX and the kernel say.

`python -m bench.memory_probe FOLDER CONTEXT CHUNK [DTYPE]` prints one JSON line. MLX's peak is
that of a process, so that two models in one could not be told apart.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx

from swiftlm_engine.brain.facts import ModelFacts, read_model
from swiftlm_engine.brain.ledger import EntryKind
from swiftlm_engine.brain.plan import Accelerator, MachineLimits, Plan, PlanRequest, make_plan
from swiftlm_engine.brain.plan.scratch import prefill_scratch
from swiftlm_engine.isolation.footprint import footprint_bytes
from swiftlm_engine.load.device import find_device
from swiftlm_engine.load.options import EngineOptions
from swiftlm_engine.messages import Event, GenerateJob
from swiftlm_engine.sampling.settings import SamplingSettings
from swiftlm_engine.session.open_session import open_session
from swiftlm_engine.session.session import Session

ANSWER = 16
_WHOLE_CHUNKS = 3_600_000  # ms; a slow machine would cut chunks smaller than the plan prices


def main() -> None:
    folder, context, chunk = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    dtype = sys.argv[4] if len(sys.argv) > 4 else ""
    facts = read_model(folder)
    plan = _plan(facts, context, chunk, dtype)
    started = footprint_bytes()
    session = open_session(_options(folder, plan, dtype), _ignore, lambda *_: None)
    mx.clear_cache()
    loaded = {
        "active": mx.get_active_memory(),
        "peak_at_load": mx.get_peak_memory(),
        "footprint": footprint_bytes(),
    }
    kv, peak, prefill_peak = _full_context(session, facts, context)
    print(json.dumps(_report(plan, context) | loaded | {
        "process_before_load": started,
        "kv": kv,
        "peak": peak,
        "peak_of_prefill": prefill_peak,
        "footprint_after": footprint_bytes(),
    }))  # fmt: skip


def _plan(facts: ModelFacts, context: int, chunk: int, dtype: str) -> Plan:
    ram = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    machine = MachineLimits(ram, Accelerator(find_device().value))
    request = PlanRequest(
        context=context,
        parallel=1,
        kv="fp16",
        prefill_chunk=chunk,
        prefix_cache_bytes=0,
        prefix_disk=False,
        dtype=dtype or None,
    )
    return make_plan(facts, request, machine)


def _options(folder: Path, plan: Plan, dtype: str) -> EngineOptions:
    return EngineOptions(
        model="memory",
        folder=folder,
        context=plan.settings.context,
        parallel=plan.settings.parallel,
        prefill_chunk=plan.settings.prefill_chunk,
        kv=plan.settings.kv.value,
        buffer_cache_bytes=plan.engine.buffer_cache_bytes,
        kv_budget_bytes=plan.engine.kv_budget_bytes,
        slice_ms=_WHOLE_CHUNKS,
        dtype=dtype,
    )


def _full_context(session: Session, facts: ModelFacts, context: int) -> tuple[int, int, int]:
    """KV held at its end, MLX's peak, and the peak before the first decoded token."""
    ids = tuple(random.Random(1).choices(range(facts.shape.vocab_size // 2), k=context - ANSWER))
    job = GenerateJob(
        "memory", ids, SamplingSettings(temperature=0.0), max_tokens=ANSWER, ignore_eos=True
    )
    mx.reset_peak_memory()
    session.engine.submit(session.preparer.prepare(job))
    kv = prefill_peak = 0
    while session.has_work:
        session.step()
        kv = session.runner.kv_bytes() or kv  # the last step closes the sequence
        if not len(session.runner.batch):
            prefill_peak = mx.get_peak_memory()
    return kv, mx.get_peak_memory(), prefill_peak


def _report(plan: Plan, context: int) -> dict[str, Any]:
    facts, settings = plan.facts, plan.settings
    scratch = prefill_scratch(
        facts, settings, plan.machine.accelerator, prompt=context, dtype=plan.request.dtype
    )
    return {
        "weights_priced": plan.need.of(EntryKind.WEIGHTS),
        # The last prompt token is the first input of decode.
        "kv_priced": facts.kv_bytes(
            context - ANSWER - 1, ANSWER + 1, settings.kv, plan.request.dtype
        ),
        "scratch_priced": plan.need.of(EntryKind.SCRATCH),
        "scratch_terms": {name: getattr(scratch, name) for name in scratch.__slots__},
        "process_priced": plan.need.of(EntryKind.PROCESS),
        "pool_priced": plan.need.of(EntryKind.BUFFER_POOL),
    }


def _ignore(events: list[Event]) -> None:
    """Nobody reads what the model says."""


if __name__ == "__main__":
    main()
