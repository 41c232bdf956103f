"""What the planner decides: strategy, settings, what binds, and what would fit instead."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from model_headers import Quant, decoder, write_model
from planned_models import DENSE_8B, GIB, M4_16, M4_24, M4_PRO_64, MOE_30B, mac

from swiftlm_engine.brain import facts, plan
from swiftlm_engine.brain.ledger import EntryKind
from swiftlm_engine.brain.plan import MachineLimits, PlanRequest, Strategy, Toggle


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> facts.ModelFacts:
    folder = tmp_path_factory.mktemp("dense")
    return facts.read_model(write_model(folder, DENSE_8B, decoder(DENSE_8B, Quant(4))))


@pytest.fixture(scope="module")
def moe(tmp_path_factory: pytest.TempPathFactory) -> facts.ModelFacts:
    folder = tmp_path_factory.mktemp("moe")
    return facts.read_model(write_model(folder, MOE_30B, decoder(MOE_30B, Quant(4))))


def test_model_with_room_is_resident_with_nothing_reduced(dense: facts.ModelFacts) -> None:
    made = plan.make_plan(dense, PlanRequest(), M4_PRO_64)
    assert made.strategy is Strategy.RESIDENT
    assert (made.settings.context, made.settings.parallel) == (32768, 4)
    assert made.settings.kv is facts.KvFormat.FP16
    assert not made.auto_reduced
    assert not made.refused
    assert not made.warnings


def test_more_sequences_share_the_priced_kv_unless_a_number_was_asked_for(
    dense: facts.ModelFacts,
) -> None:
    assert plan.make_plan(dense, PlanRequest(), M4_PRO_64).rows == 16
    assert plan.make_plan(dense, PlanRequest(parallel=2), M4_PRO_64).rows == 2
    told = plan.make_plan(dense, PlanRequest(), M4_PRO_64).to_json()
    assert told["max_parallel"] == 16
    assert {"rows", "quantisation"}.isdisjoint(told)
    assert "quantization" in told


def test_terms_are_exact_and_name_their_source(dense: facts.ModelFacts) -> None:
    made = plan.make_plan(dense, PlanRequest(context=8192, parallel=2), M4_PRO_64)
    by_kind = {term.kind: term for term in made.terms}
    weights = by_kind[EntryKind.WEIGHTS]
    assert weights.bytes == dense.weights.resident_bytes()
    assert weights.source is plan.TermSource.HEADER
    assert by_kind[EntryKind.KV].bytes == 2 * 8192 * 131_072
    assert by_kind[EntryKind.KV].source is plan.TermSource.FORMULA
    assert made.total_bytes == sum(term.bytes for term in made.terms)


def test_auto_gives_up_comfort_before_context_and_says_so(dense: facts.ModelFacts) -> None:
    made = plan.make_plan(dense, PlanRequest(), M4_16)
    assert made.strategy is Strategy.RESIDENT
    assert made.settings.context == 32768
    assert made.reductions == ("KV compressed to k4v3 to fit",)
    assert made.binding.name == "metal working set"
    assert "KV compressed to k4v3" in made.summary
    assert made.to_json()["reductions"] == list(made.reductions)


def test_auto_shortens_the_context_last_and_says_so(dense: facts.ModelFacts) -> None:
    budget = 6_200_000_000
    made = plan.make_plan(dense, PlanRequest(budget_bytes=budget), M4_16)
    assert made.strategy is Strategy.RESIDENT
    assert 2048 <= made.settings.context < 32768
    assert made.needed_bytes <= budget
    said = " ".join(made.reductions)
    assert f"context reduced to {made.settings.context:,} tokens from 32,768" in said
    assert "parallel reduced to 1 from 4" in said
    # the next step up would not have fitted
    longer = PlanRequest(
        context=made.settings.context + 256, parallel=1, kv="k4v3", budget_bytes=budget
    )
    assert plan.make_plan(dense, longer, M4_16).refused


def test_explicit_wishes_are_refused_rather_than_changed(dense: facts.ModelFacts) -> None:
    made = plan.make_plan(dense, PlanRequest(context=131072, parallel=4, kv="fp16"), M4_24)
    assert made.refused
    assert made.settings.context == 131072
    assert made.settings.parallel == 4
    assert made.settings.kv is facts.KvFormat.FP16


def test_refusal_names_the_sum_the_limit_and_the_smallest_change(dense: facts.ModelFacts) -> None:
    made = plan.make_plan(dense, PlanRequest(context=65536, parallel=1, kv="fp16"), M4_16)
    assert made.refused
    needed, available = made.needed_bytes, made.available_bytes
    assert made.shortfall_bytes == needed - available > 0
    assert made.summary == (
        f"needs {needed / 1e9:.1f} GB, {available / 1e9:.1f} GB available (metal working set), "
        f"{(needed - available) / 1e9:.1f} GB short; smallest change that fits: --kv turbo"
    )


def test_every_single_fix_of_a_refusal_really_fits(dense: facts.ModelFacts) -> None:
    request = PlanRequest(context=32768, parallel=2, kv="fp16", budget_bytes=12_000_000_000)
    made = plan.make_plan(dense, request, M4_24)
    assert made.refused
    assert {fix.split()[0] for fix in made.fixes} == {
        "--kv", "--parallel", "--ctx", "--memory-budget",
    }  # fmt: skip
    for fix in made.fixes:
        flag, value = fix.split()
        changed = {
            "--kv": lambda v: replace(request, kv=v),
            "--parallel": lambda v: replace(request, parallel=int(v)),
            "--ctx": lambda v: replace(request, context=int(v)),
            "--memory-budget": lambda v: replace(request, budget_bytes=plan.parse_budget(v, M4_24)),
        }[flag](value)
        assert not plan.make_plan(dense, changed, M4_24).refused, fix


def test_fixes_change_everything_at_once_when_no_single_one_helps(dense: facts.ModelFacts) -> None:
    request = PlanRequest(context=131072, parallel=256, kv="fp16")
    machine = mac(16, 12.9)
    made = plan.make_plan(dense, request, machine)
    assert made.refused
    assert made.fixes == ("--kv turbo --parallel 1 --prefill-chunk 256",)
    changed = PlanRequest(context=131072, parallel=1, kv="turbo", prefill_chunk=256)
    assert not plan.make_plan(dense, changed, machine).refused


def test_fixes_shorten_the_context_too_where_even_that_is_not_enough(
    dense: facts.ModelFacts,
) -> None:
    budget = 7_000_000_000
    request = PlanRequest(context=131072, parallel=256, kv="fp16", budget_bytes=budget)
    made = plan.make_plan(dense, request, M4_16)
    (fix,) = made.fixes
    assert fix.startswith("--kv turbo --parallel 1 --prefill-chunk 256 --ctx ")
    context = int(fix.rsplit(" ", 1)[1])
    changed = PlanRequest(
        context=context, parallel=1, kv="turbo", prefill_chunk=256, budget_bytes=budget
    )
    assert not plan.make_plan(dense, changed, M4_16).refused


def test_model_that_can_never_fit_is_told_by_how_much(dense: facts.ModelFacts) -> None:
    made = plan.make_plan(dense, PlanRequest(stream=Toggle.OFF), mac(8, 5.3))
    assert made.refused
    assert made.fixes[0].startswith("--stream-experts on")
    assert made.fixes[1].startswith("a quantization that is")
    assert made.shortfall_bytes > 0


def test_force_overrides_with_a_warning(dense: facts.ModelFacts) -> None:
    made = plan.make_plan(dense, PlanRequest(context=65536, kv="fp16", force=True), M4_16)
    assert made.strategy is Strategy.RESIDENT
    assert made.forced
    assert made.shortfall_bytes > 0
    assert made.warnings[0].startswith("forced: needs")


def test_other_models_take_from_every_limit_but_what_is_reclaimable(
    dense: facts.ModelFacts,
) -> None:
    alone = plan.make_plan(dense, PlanRequest(), mac(24, 16.0, reclaimable_bytes=20 * GIB))
    beside = plan.make_plan(
        dense, PlanRequest(), mac(24, 16.0, reclaimable_bytes=20 * GIB, committed_bytes=10 * GIB)
    )
    limits = {limit.name: limit.bytes for limit in beside.limits}
    assert not alone.refused
    assert beside.refused
    assert limits["metal working set"] == int(16 * GIB * plan.SOFT_SHARE) - 10 * GIB
    assert limits["reclaimable now"] == 20 * GIB
    assert beside.fixes == (
        "unload other models, which hold 10.7 GB (`swiftlmctl ps`, `unload NAME`)",
        "--gpu-layers auto",
    )


def test_programs_in_the_way_are_named_as_such(dense: facts.ModelFacts) -> None:
    made = plan.make_plan(dense, PlanRequest(), mac(24, 16.0, reclaimable_bytes=3 * GIB))
    assert made.refused
    assert made.binding.name == "reclaimable now"
    assert made.fixes[0].startswith("close programs that hold")


@pytest.mark.parametrize(
    ("machine", "binding"),
    [
        (mac(64, 12.0), "metal working set"),
        (mac(16, 16.0), "RAM less reserve"),
        (mac(64, 48.0, reclaimable_bytes=12 * GIB), "reclaimable now"),
        (MachineLimits(ram_bytes=64 * GIB, cgroup_bytes=16 * GIB), "cgroup limit"),
    ],
)
def test_tightest_limit_binds(
    machine: MachineLimits, binding: str, dense: facts.ModelFacts
) -> None:
    made = plan.make_plan(dense, PlanRequest(context=4096, parallel=1), machine)
    assert made.binding.name == binding


def test_buffer_larger_than_metal_allows_is_refused(dense: facts.ModelFacts) -> None:
    machine = mac(192, 150.0, "Apple M2 Ultra", max_buffer_bytes=GIB // 2)
    wide = PlanRequest(context=131072, parallel=4, kv="fp16")
    made = plan.make_plan(dense, wide, machine)
    assert made.refused
    assert made.binding.name == "largest buffer"
    # keys of one layer: 4 sequences of 131,072 tokens of 8 heads of 128
    assert made.needed_bytes == 4 * 131_072 * 8 * 128 * 2


def test_experts_are_streamed_when_they_do_not_fit(moe: facts.ModelFacts) -> None:
    made = plan.make_plan(moe, PlanRequest(), M4_16)
    assert made.strategy is Strategy.STREAMED
    assert made.streaming is not None
    assert 8 <= made.streaming.slots <= 128
    assert made.needed_bytes <= made.available_bytes
    assert made.need.of(EntryKind.PAGE_CACHE) == 2 * 10**9
    assert made.streaming.slot_bytes == made.streaming.slots * 48 * 2_654_208
    assert made.speed.decode.high > made.speed.decode.low > 0


def test_streaming_runs_one_sequence_and_keeps_its_room_for_experts(moe: facts.ModelFacts) -> None:
    made = plan.make_plan(moe, PlanRequest(), M4_16)
    assert made.settings.parallel == 1
    assert (
        "parallel reduced to 1 from 4 since experts are read for one sequence at a time"
        in made.reductions
    )
    asked = plan.make_plan(moe, PlanRequest(parallel=2), M4_16)
    assert asked.settings.parallel == 1
    assert (
        "parallel reduced to 1 from 2 since experts are read for one sequence at a time"
        in asked.reductions
    )


def test_shorter_context_goes_before_streaming_but_not_a_very_short_one(
    moe: facts.ModelFacts,
) -> None:
    weights = moe.weights.resident_bytes()
    some = plan.make_plan(moe, PlanRequest(budget_bytes=weights + 1_200_000_000), M4_PRO_64)
    assert some.strategy is Strategy.RESIDENT
    assert 8192 <= some.settings.context < 32768
    little = plan.make_plan(moe, PlanRequest(budget_bytes=weights + 700_000_000), M4_PRO_64)
    assert little.strategy is Strategy.STREAMED
    assert little.settings.context == 32768


def test_engine_is_told_what_the_plan_leaves_for_weights(moe: facts.ModelFacts) -> None:
    made = plan.make_plan(moe, PlanRequest(), M4_16)
    assert made.streaming is not None
    assert made.engine.resident_bytes == moe.weights.shared_bytes() + made.streaming.slot_bytes
    assert plan.make_plan(moe, PlanRequest(), M4_PRO_64).engine.resident_bytes == 0


def test_prefill_of_streamed_experts_is_bound_by_the_disk(moe: facts.ModelFacts) -> None:
    wide = PlanRequest(stream=Toggle.ON, context=4096, parallel=1, expert_slots=16)
    slow = plan.make_plan(moe, replace(wide, prefill_chunk=256), M4_PRO_64)
    fast = plan.make_plan(moe, replace(wide, prefill_chunk=2048), M4_PRO_64)
    assert slow.streaming is not None
    # every chunk reads the 112 experts per layer that are not in memory: 14.3 GB
    assert slow.streaming.sweep_bytes == 48 * 112 * 2_654_208
    assert slow.speed.prefill.low == pytest.approx(256 * 2.5e9 / slow.streaming.sweep_bytes)
    assert fast.speed.prefill.low > 4 * slow.speed.prefill.low


def test_experts_fit_into_memory_that_allows_it(moe: facts.ModelFacts) -> None:
    made = plan.make_plan(moe, PlanRequest(), M4_PRO_64)
    assert made.strategy is Strategy.RESIDENT
    assert made.streaming is None


def test_streaming_spends_what_is_left_over_on_whole_layers(moe: facts.ModelFacts) -> None:
    request = PlanRequest(stream=Toggle.ON, context=4096, parallel=1, budget_bytes=14 * 10**9)
    made = plan.make_plan(moe, request, M4_PRO_64)
    assert made.streaming is not None
    assert made.streaming.slots == 64
    assert made.streaming.resident_layers > 0
    assert made.streaming.resident_layers + made.streaming.streamed_layers == 48
    assert made.needed_bytes <= made.available_bytes


def test_streaming_off_refuses_and_points_at_streaming(moe: facts.ModelFacts) -> None:
    made = plan.make_plan(moe, PlanRequest(stream=Toggle.OFF), M4_16)
    assert made.refused
    assert "--stream-experts on" in made.fixes


def test_more_slots_never_predict_a_slower_decode(moe: facts.ModelFacts) -> None:
    speeds = []
    for slots in (8, 16, 32, 64, 96):
        request = PlanRequest(stream=Toggle.ON, context=4096, parallel=1, expert_slots=slots)
        made = plan.make_plan(moe, request, M4_PRO_64)
        assert made.streaming is not None
        assert made.streaming.slots == slots
        speeds.append(made.speed.decode.low)
    assert speeds == sorted(speeds)


def test_predictions_hold_the_published_speeds(moe: facts.ModelFacts) -> None:
    # Reported for 30B-A3B 4-bit: about 60 to 90 tokens/s resident on an M4 Pro (273 GB/s).
    resident = plan.make_plan(moe, PlanRequest(context=4096), M4_PRO_64).speed.decode
    assert resident.low < 75 < resident.high


def test_request_costs_kv_to_its_end_and_the_scratch_of_its_prompt(
    dense: facts.ModelFacts,
) -> None:
    made = plan.make_plan(dense, PlanRequest(context=32768, kv="fp16"), M4_PRO_64)
    small, large = made.request_cost(100, 100), made.request_cost(8192, 1024)
    assert small.kv_bytes == 256 * 131_072
    assert large.kv_bytes == 9216 * 131_072
    assert 0 < small.scratch_bytes < large.scratch_bytes
    assert made.request_bytes(100, 100) == small.total_bytes
    assert large.scratch_bytes <= made.need.of(EntryKind.SCRATCH)


@pytest.mark.parametrize("kv", ["fp16", "k4v3"])
@pytest.mark.parametrize("context", [300, 4096, 20_000])
def test_full_batch_of_any_requests_never_costs_more_kv_than_planned(
    kv: str, context: int, dense: facts.ModelFacts
) -> None:
    made = plan.make_plan(dense, PlanRequest(context=context, parallel=3, kv=kv), M4_PRO_64)
    for prompt in (1, 100, context // 2, context - 1):
        cost = made.request_cost(prompt, context - prompt)
        assert 3 * cost.kv_bytes <= made.engine.kv_budget_bytes


def test_engine_limits_follow_the_plan(dense: facts.ModelFacts) -> None:
    made = plan.make_plan(dense, PlanRequest(), M4_24)
    assert 0 < made.engine.wired_bytes <= M4_24.working_set_bytes
    assert made.engine.memory_limit_bytes == M4_24.working_set_bytes
    assert made.engine.buffer_cache_bytes <= 4 * GIB
    assert made.engine.prefix_cache_bytes == made.need.of(EntryKind.PREFIX_CACHE) > 0
    assert made.engine.kv_budget_bytes == made.need.of(EntryKind.KV)
    unwired = plan.make_plan(dense, PlanRequest(wire=False), M4_24)
    assert unwired.engine.wired_bytes == 0


def test_buffer_pool_is_capped_even_where_ram_is_small(dense: facts.ModelFacts) -> None:
    made = plan.make_plan(dense, PlanRequest(context=4096, parallel=1), M4_16)
    assert 128 * 2**20 <= made.engine.buffer_cache_bytes <= M4_16.ram_bytes // 16


def test_cpu_back_end_prices_float32(dense: facts.ModelFacts) -> None:
    machine = MachineLimits(ram_bytes=64 * GIB)
    request = PlanRequest(context=4096, parallel=1, cpu_weights=plan.CpuWeights.KEEP)
    made = plan.make_plan(dense, request, machine)
    assert made.request.dtype == "float32"
    assert made.need.of(EntryKind.KV) == 2 * 4096 * 131_072
    assert made.need.of(EntryKind.WEIGHTS) == dense.weights.resident_bytes(4)


def test_plan_is_plain_json(moe: facts.ModelFacts) -> None:
    made = plan.make_plan(moe, PlanRequest(), M4_16)
    document = json.loads(json.dumps(made.to_json()))
    assert document["strategy"] == "streamed"
    assert document["total_bytes"] == sum(term["bytes"] for term in document["terms"])
    assert [limit["binding"] for limit in document["limits"]].count(True) == 1
    low, high = document["speed"]["decode_tokens_s"]
    assert 0 < low < high


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (PlanRequest(context=0), "context 0"),
        (PlanRequest(context=-5), "context -5"),
        (PlanRequest(context=200_000), "more than the 131,072 tokens"),
        (PlanRequest(parallel=0), "parallel 0"),
        (PlanRequest(kv="q4_0"), "choose from auto, turbo, fp16"),
        (PlanRequest(prefill_chunk=-1), "prefill chunk -1"),
        (PlanRequest(budget_bytes=-1), "memory budget -1"),
        (PlanRequest(dtype="int8"), "dtype 'int8'"),
    ],
)
def test_wish_that_no_machine_could_grant_is_a_named_error(
    request_: PlanRequest, message: str, dense: facts.ModelFacts
) -> None:
    with pytest.raises(plan.BadPlanRequest, match=message):
        plan.make_plan(dense, request_, M4_24)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("auto", None),
        ("24GB", 24 * 10**9),
        ("16GiB", 16 * GIB),
        ("1.5g", 1_500_000_000),
        ("off", None),
        ("50%", 12 * GIB),
        ("100%", 24 * GIB),
        (" 800 mb ", 800_000_000),
    ],
)
def test_budget_is_a_size_a_share_or_auto(text: str, size: int | None) -> None:
    assert plan.parse_budget(text, M4_24) == size


@pytest.mark.parametrize(
    "text", ["-1GB", "0", "0%", "120%", "900GB", "24 bananas", "GB", "1e9", "nan", "٣GB"]
)
def test_absurd_budget_is_a_named_error(text: str) -> None:
    with pytest.raises(plan.BadBudget, match="memory budget"):
        plan.parse_budget(text, M4_24)


def test_budget_below_the_smallest_plan_gives_the_sum(
    dense: facts.ModelFacts, tmp_path: Path
) -> None:
    made = plan.make_plan(dense, PlanRequest(budget_bytes=10**9), M4_24)
    assert made.refused
    assert made.settings.context == 2048
    assert "available (memory budget)" in made.summary
    assert made.fixes[0].startswith("--memory-budget")
