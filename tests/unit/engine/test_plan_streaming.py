"""What a plan decides about reading experts or layers from disk, and how it says so."""

from dataclasses import replace
from pathlib import Path

import pytest
from model_headers import Quant, decoder, write_model
from planned_models import DENSE_8B, GIB, M4_16, MOE_30B, mac

from swiftlm_engine.brain import facts, plan
from swiftlm_engine.brain.ledger import EntryKind
from swiftlm_engine.brain.plan import MachineLimits, PlanRequest, Range, Strategy, Toggle

SMALL_MAC = mac(8, 4.0)


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> facts.ModelFacts:
    folder: Path = tmp_path_factory.mktemp("dense")
    return facts.read_model(write_model(folder, DENSE_8B, decoder(DENSE_8B, Quant(4))))


@pytest.fixture(scope="module")
def moe(tmp_path_factory: pytest.TempPathFactory) -> facts.ModelFacts:
    folder: Path = tmp_path_factory.mktemp("moe")
    return facts.read_model(write_model(folder, MOE_30B, decoder(MOE_30B, Quant(4))))


def test_summary_and_json_say_that_experts_are_streamed_and_how_fast(moe: facts.ModelFacts) -> None:
    made = plan.make_plan(moe, PlanRequest(), M4_16)
    slots = made.streaming.slots if made.streaming else 0
    assert f"{slots} of 128 experts in memory" in made.summary
    assert "tokens/s predicted" in made.summary
    fast = replace(made, speed=replace(made.speed, decode=Range(0.142, 183.4)))
    assert "0.14 to 180 tokens/s predicted" in fast.summary
    described = made.to_json()["streaming"]
    assert described["mode"] == "experts"
    assert described["note"] in made.summary
    assert described["ssd_measured"] is False


def test_engine_environment_starts_the_router_sooner_only_where_layers_wait(
    moe: facts.ModelFacts,
) -> None:
    streamed = plan.make_plan(moe, PlanRequest(), M4_16)
    assert streamed.environment == {"MLX_MAX_OPS_PER_BUFFER": "8"}
    resident = plan.make_plan(moe, PlanRequest(), mac(64, 48.0))
    assert resident.environment == {}
    on_cuda = plan.make_plan(moe, PlanRequest(), replace(M4_16, accelerator=plan.Accelerator.CUDA))
    assert on_cuda.environment == {"MLX_USE_CUDA_GRAPHS": "0"}
    on_cpu = plan.make_plan(moe, PlanRequest(), replace(M4_16, accelerator=plan.Accelerator.CPU))
    assert on_cpu.streaming is not None
    assert on_cpu.environment == {}


def test_measured_disk_replaces_the_prior_in_the_prediction(moe: facts.ModelFacts) -> None:
    def made(ssd: float) -> plan.Plan:
        speed = replace(M4_16.speed, ssd_bytes_s=Range(ssd, ssd), ssd_threads=4)
        return plan.make_plan(moe, PlanRequest(), replace(M4_16, speed=speed))

    slow, fast = made(0.5e9), made(6e9)
    assert fast.speed.prefill.low == pytest.approx(12 * slow.speed.prefill.low)
    assert fast.speed.decode.low > 2 * slow.speed.decode.low
    described = fast.to_json()["streaming"]
    assert described["ssd_measured"] is True
    assert described["ssd_threads"] == 4


def test_fewer_experts_per_token_are_priced_as_fewer_reads(moe: facts.ModelFacts) -> None:
    full = plan.make_plan(moe, PlanRequest(expert_slots=16, stream=Toggle.ON), M4_16)
    half = plan.make_plan(
        moe, PlanRequest(expert_slots=16, stream=Toggle.ON, top_k_experts=4), M4_16
    )
    assert full.streaming is not None
    assert half.streaming is not None
    assert half.streaming.miss_bytes_low == pytest.approx(full.streaming.miss_bytes_low / 2)
    assert half.speed.decode.low > full.speed.decode.low
    assert half.to_json()["streaming"]["experts_per_token"] == 4


def test_fewer_slots_than_experts_of_a_token_are_refused(moe: facts.ModelFacts) -> None:
    with pytest.raises(plan.BadPlanRequest, match="one token uses 8"):
        plan.make_plan(moe, PlanRequest(expert_slots=4), M4_16)
    made = plan.make_plan(
        moe, PlanRequest(expert_slots=4, top_k_experts=4, stream=Toggle.ON), M4_16
    )
    assert made.streaming is not None
    assert made.streaming.slots == 4


def test_slots_are_priced_as_they_are_in_memory_and_reads_as_they_are_on_disk(
    moe: facts.ModelFacts,
) -> None:
    request = PlanRequest(stream=Toggle.ON, expert_slots=16, context=4096)
    made = plan.make_plan(moe, request, MachineLimits(ram_bytes=64 * GIB))  # casts to float32
    assert made.streaming is not None
    expert = moe.weights.experts[0]
    assert expert.record_bytes(128, 4) > expert.record_bytes(128)
    assert made.streaming.slot_bytes == 48 * 16 * expert.record_bytes(128, 4)
    assert made.streaming.sweep_bytes == 48 * 112 * expert.record_bytes(128)


def test_dense_model_larger_than_the_machine_streams_its_layers(dense: facts.ModelFacts) -> None:
    made = plan.make_plan(dense, PlanRequest(), SMALL_MAC)
    assert made.strategy is Strategy.STREAMED
    assert made.layers is not None
    assert 0 < len(made.layers.streamed) < 32
    assert made.needed_bytes <= made.available_bytes
    assert made.engine.resident_bytes == made.need.of(EntryKind.WEIGHTS)
    assert made.engine.resident_bytes < dense.weights.resident_bytes()
    assert f"{len(made.layers.streamed)} of 32 layers are read from disk" in made.summary
    # 2.5 to 6.5 GB/s: what every token reads bounds it
    assert made.speed.decode.high < 6.5e9 / made.layers.bytes_per_step
    assert made.to_json()["streaming"]["mode"] == "layers"


def test_more_memory_never_turns_a_plan_into_a_refusal(dense: facts.ModelFacts) -> None:
    made = [plan.make_plan(dense, PlanRequest(), mac(16, 4.5 + step / 16)) for step in range(36)]
    assert [p.strategy for p in made].count(Strategy.REFUSED) == 0
    resident = [p.strategy is Strategy.RESIDENT for p in made]
    assert resident == sorted(resident)  # once it fits, it stays resident
    assert True in resident


def test_experts_of_an_unknown_family_stream_with_their_layers(moe: facts.ModelFacts) -> None:
    unknown = replace(moe, model_type="moe_of_tomorrow")
    made = plan.make_plan(unknown, PlanRequest(), SMALL_MAC)
    assert made.strategy is Strategy.STREAMED
    assert made.streaming is None
    assert made.to_json()["streaming"]["mode"] == "layers"
    assert plan.make_plan(moe, PlanRequest(), SMALL_MAC).layers is None


def test_dense_model_that_only_others_crowd_out_is_not_streamed(dense: facts.ModelFacts) -> None:
    crowded = mac(24, 16.0, committed_bytes=11 * GIB)
    assert plan.make_plan(dense, PlanRequest(), crowded).refused
    asked = plan.make_plan(dense, PlanRequest(stream=Toggle.ON, context=4096), crowded)
    assert asked.strategy is Strategy.STREAMED


def test_dense_model_is_not_streamed_where_that_is_off(dense: facts.ModelFacts) -> None:
    made = plan.make_plan(dense, PlanRequest(stream=Toggle.OFF), SMALL_MAC)
    assert made.refused
    assert made.fixes[0].startswith("--stream-experts on")


@pytest.mark.parametrize("room", [16, 24, 64, 512])
@pytest.mark.parametrize("stream", list(Toggle))
def test_a_plan_that_says_streamed_reads_something(
    moe: facts.ModelFacts, dense: facts.ModelFacts, room: int, stream: Toggle
) -> None:
    for model in (moe, dense):
        made = plan.make_plan(model, PlanRequest(stream=stream), mac(room, room * 0.7))
        streams = made.strategy is Strategy.STREAMED
        read = made.streaming.streamed_layers if made.streaming else 0
        read += len(made.layers.streamed) if made.layers else 0
        assert bool(read) == streams == bool(made.streaming_note), made.summary
        if stream is Toggle.ON:
            assert streams
        if not streams and not made.refused and stream is not Toggle.ON:
            assert "disk" not in " ".join(made.warnings)


def test_on_keeps_half_of_what_would_fit_on_disk(
    moe: facts.ModelFacts, dense: facts.ModelFacts
) -> None:
    roomy = mac(512, 400)
    experts = plan.make_plan(moe, PlanRequest(stream=Toggle.ON), roomy).streaming
    assert experts is not None
    assert (experts.slots, experts.streamed_layers, experts.resident_layers) == (64, 48, 0)
    made = plan.make_plan(dense, PlanRequest(stream=Toggle.ON), roomy)
    assert made.layers is not None
    assert len(made.layers.streamed) == 16
    resident = plan.make_plan(dense, PlanRequest(), roomy)
    assert made.settings.parallel == resident.settings.parallel  # it would cost no layer
    assert not [text for text in made.reductions if "parallel" in text]


def test_slots_for_all_experts_are_a_resident_model_with_its_parallel_untouched(
    moe: facts.ModelFacts,
) -> None:
    roomy = mac(512, 400)
    made = plan.make_plan(moe, PlanRequest(stream=Toggle.ON, expert_slots=128), roomy)
    usual = plan.make_plan(moe, PlanRequest(), roomy)
    assert made.strategy is Strategy.RESIDENT
    assert made.settings.parallel == usual.settings.parallel > 1
    assert not made.reductions
    assert any("nothing has to be read from disk" in warning for warning in made.warnings)


def test_predicted_hits_bear_out_what_the_trained_mixture_did(moe: facts.ModelFacts) -> None:
    """Shares of experts in slots and the hits measured there (docs/streaming.md)."""
    for share, hits in ((0.125, 0.34), (0.25, 0.41), (0.25, 0.49), (0.375, 0.64), (0.5, 0.79),
                        (0.75, 0.90)):  # fmt: skip
        slots = int(share * 128)
        made = plan.make_plan(moe, PlanRequest(stream=Toggle.ON, expert_slots=slots), M4_16)
        assert made.streaming is not None
        assert made.streaming.hit_low <= hits <= made.streaming.hit_high
