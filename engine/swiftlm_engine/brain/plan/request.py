"""What the operator asks for, and the settings a plan decides on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from swiftlm_engine.brain.facts import KvFormat, ModelFacts
from swiftlm_engine.brain.plan.errors import BadPlanRequest
from swiftlm_engine.brain.plan.expansion import CpuWeights
from swiftlm_engine.brain.plan.layer_streaming import calls_layers

# Without a wish: room for long agent sessions, not the 131,072 a model may claim; a plan with
# more KV than that starves every other model on the machine.
AUTO_CONTEXT = 32_768
# KV is priced for so many sequences that fill their context ...
AUTO_PARALLEL = 4
# ... which as many as these share: few do, and each is admitted by the KV that it asks for.
AUTO_ROWS = 16
SHORT_CONTEXT = 8_192
MIN_CONTEXT = 2_048
DTYPES = ("auto", "float32", "float16", "bfloat16")
_KV_NAMES = ("auto", "turbo", *KvFormat)


class Toggle(StrEnum):
    AUTO = "auto"
    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """None and `auto` leave the choice to the plan; anything else is kept or refused.

    `dtype`: None = the loader's rule (float32 on the CPU back end), `auto` = as stored.
    `gpu_layers`: None = all of them, -1 = auto (CPU layers only if nothing else fits).
    """

    context: int | None = None
    parallel: int | None = None
    kv: str = "auto"
    budget_bytes: int | None = None
    dtype: str | None = None
    prefill_chunk: int | None = None
    stream: Toggle = Toggle.AUTO
    expert_slots: int | None = None
    top_k_experts: int | None = None
    gpu_layers: int | None = None
    prefix_cache_bytes: int | None = None
    prefix_disk: bool = True
    images: bool = False  # the extra `vision` is installed: load the tower of a family that we run
    buffer_cache_bytes: int | None = None
    wire: bool = True
    cpu_weights: CpuWeights = CpuWeights.AUTO
    force: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """What a plan decides: the sizes everything else follows from."""

    context: int
    parallel: int  # sequences whose whole context is priced
    kv: KvFormat
    prefill_chunk: int


def check_request(request: PlanRequest, facts: ModelFacts) -> None:
    """Raises BadPlanRequest for a wish that no machine could grant."""
    if request.context is not None and request.context < 1:
        raise BadPlanRequest(f"context {request.context}: give at least 1 token, or leave it out")
    if request.context and facts.max_context and request.context > facts.max_context:
        raise BadPlanRequest(
            f"context {request.context:,} is more than the {facts.max_context:,} tokens "
            f"this {facts.model_type} model was made for"
        )
    for name, value in (
        ("parallel", request.parallel),
        ("prefill chunk", request.prefill_chunk),
        ("expert slots", request.expert_slots),
        ("experts per token", request.top_k_experts),
        ("memory budget", request.budget_bytes),
    ):
        if value is not None and value < 1:
            raise BadPlanRequest(f"{name} {value}: give at least 1, or leave it out")
    if request.kv not in _KV_NAMES:
        raise BadPlanRequest(f"KV format {request.kv!r}: choose from {', '.join(_KV_NAMES)}")
    if request.dtype and request.dtype not in DTYPES:
        raise BadPlanRequest(f"dtype {request.dtype!r}: choose from {', '.join(DTYPES)}")
    _check_experts(request, facts)
    _check_layers(request, facts)


def _check_layers(request: PlanRequest, facts: ModelFacts) -> None:
    layers, there_are = request.gpu_layers, len(facts.layers)
    if not calls_layers(facts):
        _check_whole(request, facts)
    if layers is None:
        return
    if layers > there_are:
        raise BadPlanRequest(f"{layers} layers on the accelerator: the model has {there_are}")
    if request.stream is Toggle.ON and 0 <= layers < there_are:
        raise BadPlanRequest(
            f"{layers} layers on the accelerator and weights from disk: what is streamed is for "
            "the accelerator only; give --gpu-layers all or --stream-experts off"
        )


def _check_whole(request: PlanRequest, facts: ModelFacts) -> None:
    """Of a model whose layers are never called."""
    if request.stream is Toggle.ON:
        raise BadPlanRequest(
            f"the layers of {facts.model_type} models cannot be read from disk one by one: "
            "give --stream-experts off"
        )
    if request.gpu_layers is not None and request.gpu_layers < len(facts.layers):
        raise BadPlanRequest(
            f"the layers of {facts.model_type} models cannot be put on two devices: "
            "give --gpu-layers all"
        )


def _check_experts(request: PlanRequest, facts: ModelFacts) -> None:
    per_token = facts.weights.experts_per_token
    least = min(request.top_k_experts or per_token, per_token)
    if request.expert_slots and request.expert_slots < least:
        raise BadPlanRequest(f"{request.expert_slots} expert slots: one token uses {least} experts")


def wanted_kv(request: PlanRequest) -> KvFormat:
    """The format to try first; `auto` starts exact and compresses only for room."""
    if request.kv == "auto":
        return KvFormat.FP16
    return KvFormat.K4V3 if request.kv == "turbo" else KvFormat(request.kv)


def auto_context(facts: ModelFacts) -> int:
    return min(facts.max_context or AUTO_CONTEXT, AUTO_CONTEXT)
