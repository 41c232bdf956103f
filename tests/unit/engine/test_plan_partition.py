"""Layers on the CPU: the bytes they move, what they gain and cost, and when they are chosen."""

from dataclasses import replace
from pathlib import Path

import pytest
from model_headers import Quant, decoder, write_model
from planned_models import DENSE_8B, GIB, mac

from swiftlm_engine.brain import facts, plan
from swiftlm_engine.brain.ledger import EntryKind
from swiftlm_engine.brain.plan import (
    Accelerator,
    Covers,
    MachineLimits,
    PlanRequest,
    Range,
    Strategy,
    Toggle,
)

LAYER_BYTES = 122_699_776  # 218,103,808 weights at 4.5 bits, two norms of 4,096 in 16 bits


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> facts.ModelFacts:
    folder: Path = tmp_path_factory.mktemp("dense")
    return facts.read_model(write_model(folder, DENSE_8B, decoder(DENSE_8B, Quant(4))))


def sizes(made: plan.Plan, kind: EntryKind, covers: Covers) -> int:
    return sum(t.bytes for t in made.terms if t.kind is kind and t.covers is covers)


FIXED = PlanRequest(context=4096, parallel=1, kv="fp16", prefill_chunk=512, prefix_cache_bytes=0)


def test_weights_and_kv_of_cpu_layers_leave_the_working_set_and_stay_in_ram(
    dense: facts.ModelFacts,
) -> None:
    whole = plan.make_plan(dense, FIXED, mac(24, 16.0))
    split = plan.make_plan(dense, replace(FIXED, gpu_layers=20), mac(24, 16.0))
    assert split.strategy is Strategy.PARTITIONED
    assert sizes(split, EntryKind.WEIGHTS, Covers.HOST) == 12 * LAYER_BYTES
    assert sizes(split, EntryKind.KV, Covers.HOST) == whole.need.of(EntryKind.KV) * 12 // 32
    for kind in (EntryKind.WEIGHTS, EntryKind.KV):
        assert split.need.of(kind) == whole.need.of(kind)
    # No byte of RAM is saved: attention without fused kernels even takes more.
    assert split.total_bytes >= whole.total_bytes
    assert any("free no memory" in warning for warning in split.warnings)


def test_mlx_may_hold_the_bytes_of_cpu_layers_beside_the_working_set(
    dense: facts.ModelFacts,
) -> None:
    split = plan.make_plan(dense, replace(FIXED, gpu_layers=20), mac(24, 16.0))
    kinds = (EntryKind.WEIGHTS, EntryKind.KV, EntryKind.SCRATCH)
    on_cpu = sum(sizes(split, kind, Covers.HOST) for kind in kinds)
    assert split.engine.memory_limit_bytes == 16 * GIB + on_cpu
    assert split.engine.wired_bytes <= 16 * GIB
    assert split.engine.kv_budget_bytes == split.need.of(EntryKind.KV)


def test_on_a_gpu_with_memory_of_its_own_cpu_layers_are_held_in_ram(
    dense: facts.ModelFacts,
) -> None:
    machine = MachineLimits(
        ram_bytes=64 * GIB,
        accelerator=Accelerator.CUDA,
        working_set_bytes=4 * GIB,
        speed=plan.prior_speed("", "cuda"),
    )
    split = plan.make_plan(dense, replace(FIXED, gpu_layers=-1), machine)
    assert split.strategy is Strategy.PARTITIONED
    assert any("held in RAM, not in the memory of the cuda" in text for text in split.warnings)


def test_the_price_in_speed_is_said_beside_the_speed_of_one_place(dense: facts.ModelFacts) -> None:
    whole = plan.make_plan(dense, FIXED, mac(24, 16.0))
    split = plan.make_plan(dense, replace(FIXED, gpu_layers=16), mac(24, 16.0))
    assert split.speed.decode.high < whole.speed.decode.high / 5

    def words(speed: Range) -> str:
        return f"{speed.low:.3g} to {speed.high:.3g}"

    cost = next(text for text in split.warnings if "instead of" in text)
    assert words(split.speed.decode) in cost
    assert words(whole.speed.decode) in cost
    assert "an estimate" in cost


def test_auto_uses_cpu_layers_only_when_nothing_else_fits(dense: facts.ModelFacts) -> None:
    roomy = plan.make_plan(dense, PlanRequest(gpu_layers=-1), mac(24, 16.0))
    tight = plan.make_plan(dense, PlanRequest(gpu_layers=-1), mac(32, 4.0))
    assert roomy.strategy is Strategy.RESIDENT
    assert tight.strategy is Strategy.PARTITIONED
    assert tight.gpu_layers is not None
    assert 0 < tight.gpu_layers < 32
    assert f"{tight.gpu_layers} of 32 layers on the accelerator" in tight.summary


def test_auto_does_not_help_where_ram_itself_is_short(dense: facts.ModelFacts) -> None:
    made = plan.make_plan(dense, PlanRequest(gpu_layers=-1), mac(8, 16.0))
    assert made.refused
    assert made.binding.name == "RAM less reserve"


def test_a_refusal_for_want_of_working_set_offers_cpu_layers_last(dense: facts.ModelFacts) -> None:
    from_memory = PlanRequest(context=4096, stream=Toggle.OFF)
    made = plan.make_plan(dense, from_memory, mac(32, 3.0))
    assert made.refused
    assert made.fixes[-1] == "--gpu-layers auto"
    assert not plan.make_plan(dense, replace(from_memory, gpu_layers=-1), mac(32, 3.0)).refused


def test_without_an_accelerator_the_wish_is_answered_in_words(dense: facts.ModelFacts) -> None:
    made = plan.make_plan(dense, replace(FIXED, gpu_layers=3), MachineLimits(ram_bytes=64 * GIB))
    assert made.gpu_layers is None
    assert any("there is no accelerator here" in warning for warning in made.warnings)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (PlanRequest(gpu_layers=33), "the model has 32"),
        (PlanRequest(gpu_layers=3, stream=Toggle.ON), "--stream-experts off"),
    ],
)
def test_what_cannot_be_split_is_a_named_error(
    request_: PlanRequest, message: str, dense: facts.ModelFacts
) -> None:
    with pytest.raises(plan.BadPlanRequest, match=message):
        plan.make_plan(dense, request_, mac(24, 16.0))
