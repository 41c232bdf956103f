"""What a calibration record changes in a plan: scratch as it was measured, speeds as they were."""

from __future__ import annotations

from swiftlm_engine.brain.calibration import Record, decode_s, prefill_s
from swiftlm_engine.brain.facts import KvFormat, ModelFacts
from swiftlm_engine.brain.plan.machine import Accelerator
from swiftlm_engine.brain.plan.memory_terms import MeasuredTerms
from swiftlm_engine.brain.plan.request import Settings
from swiftlm_engine.brain.plan.scratch import prefill_scratch
from swiftlm_engine.brain.plan.speed import PredictedSpeed, Range

_PROMPT = 1024  # tokens that the predicted prefill speed is of
# The least a prediction is off: what two runs of one benchmark differ by on a quiet machine.
_LEAST_NOISE = 0.1


def calibrated(
    record: Record, facts: ModelFacts, accelerator: Accelerator, dtype: str | None
) -> MeasuredTerms:
    return MeasuredTerms(
        scratch_ratio=_scratch_ratio(record, facts, accelerator, dtype), record=record
    )


def measured_speed(record: Record, settings: Settings, facts: ModelFacts) -> PredictedSpeed:
    """Of one sequence alone."""
    limit = facts.max_context or settings.context
    prompt = max(1, min(_PROMPT, settings.context, limit))
    # Where time cuts chunks short, larger ones were never run.
    chunk = min(settings.prefill_chunk, max(row.chunk for row in record.prefill))
    noise = max(row.chunk_s.noise for row in record.prefill)
    step_noise = max(row.step_s.noise for row in record.decode)
    return PredictedSpeed(
        prefill=_around(prompt / prefill_s(record, prompt, chunk), noise),
        decode=_around(1 / decode_s(record, 0), step_noise),
        decode_full=_around(1 / decode_s(record, settings.context), step_noise),
        measured=True,
    )


def _around(value: float, noise: float) -> Range:
    share = min(0.5, max(_LEAST_NOISE, noise))
    return Range(value * (1 - share), value * (1 + share))


def _scratch_ratio(
    record: Record, facts: ModelFacts, accelerator: Accelerator, dtype: str | None
) -> float | None:
    """MeasuredTerms over formula, of the chunk for which it is highest."""
    ratios = []
    for row in record.prefill:
        settings = Settings(row.depth + row.chunk, 1, KvFormat.FP16, row.chunk)
        formula = prefill_scratch(facts, settings, accelerator, dtype=dtype).total
        if row.scratch_bytes and formula:
            ratios.append(row.scratch_bytes / formula)
    return max(ratios, default=None)
