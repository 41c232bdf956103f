"""Quantized weights as float32 on the CPU back end: what a plan takes, prices and says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from model_headers import Quant, decoder, write_model
from planned_models import M4_24, MOE_30B

from swiftlm_engine.brain import facts, plan
from swiftlm_engine.brain.facts import Sublayer
from swiftlm_engine.brain.ledger import EntryKind
from swiftlm_engine.brain.plan import Accelerator, CpuWeights, MachineLimits, PlanRequest, Strategy
from swiftlm_engine.brain.plan.expansion import expand_all, expand_within
from swiftlmd.calibration.store import Manner
from swiftlmd.engines.placement import without_expansion
from swiftlmd.planning.planner import load_conditions

GB = 10**9
SMALL: dict[str, Any] = {
    "model_type": "llama", "num_hidden_layers": 30, "hidden_size": 576,
    "num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 1536,
    "vocab_size": 49152, "max_position_embeddings": 8192, "tie_word_embeddings": True,
    "quantization": {"group_size": 32, "bits": 4},
}  # fmt: skip
EXPAND = PlanRequest(cpu_weights=CpuWeights.EXPAND)
KEEP = PlanRequest(cpu_weights=CpuWeights.KEEP)


def cpu(gigabytes: float) -> MachineLimits:
    size = int(gigabytes * GB)
    return MachineLimits(ram_bytes=24 * GB, reclaimable_bytes=size, num_cores=2)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> facts.ModelFacts:
    folder = tmp_path_factory.mktemp("small")
    return facts.read_model(write_model(folder, SMALL, decoder(SMALL, Quant(4, 32))))


def weight_bytes(made: plan.Plan) -> int:
    return made.need.of(EntryKind.WEIGHTS)


def test_with_room_the_whole_model_is_priced_as_float32(small: facts.ModelFacts) -> None:
    made = plan.make_plan(small, PlanRequest(), cpu(16))
    assert weight_bytes(made) == 4 * small.weights.total_weights
    assert made.expansion is not None
    assert made.expansion.whole
    assert "weights expanded to float32: 538 MB" in made.summary
    assert made.to_json()["cpu_weights"]["expanded_bytes"] == made.expansion.expanded_bytes


def test_auto_takes_at_most_a_quarter_of_the_budget(small: facts.ModelFacts) -> None:
    for budget in (0.7, 0.9, 1.2, 1.6, 2.0, 2.1, 2.2, 4.0):
        made = plan.make_plan(small, PlanRequest(), cpu(budget))
        kept = plan.make_plan(small, KEEP, cpu(budget))
        assert weight_bytes(made) <= max(budget * GB / 4, weight_bytes(kept))
        if made.expansion and made.expansion.whole:
            assert budget > 2.0


def test_the_head_comes_first_then_attention_then_the_mlp(small: facts.ModelFacts) -> None:
    whole = expand_all(small)
    for room in range(0, whole.added_bytes + 1, whole.added_bytes // 40):
        found = expand_within(small, room)
        if found is None:
            assert room < 100_000_000  # the head does not fit
            continue
        assert found.added_bytes <= room
        assert found.head
        assert not found.mlp_layers or found.attention_layers == 30
    assert expand_within(small, whole.added_bytes) == whole


def test_expansion_costs_no_other_comfort(small: facts.ModelFacts) -> None:
    """A machine with little memory loads the model as it would without."""
    for budget in (0.5, 0.7, 0.8, 1.0, 1.5, 2.0, 3.0, 16):
        made = plan.make_plan(small, PlanRequest(), cpu(budget))
        kept = plan.make_plan(small, KEEP, cpu(budget))
        assert made.settings == kept.settings
        assert (made.strategy, made.reductions) == (kept.strategy, kept.reductions)
        assert made.needed_bytes <= made.available_bytes or made.refused


def test_expand_gives_up_comfort_or_is_refused(small: facts.ModelFacts) -> None:
    tight = plan.make_plan(small, EXPAND, cpu(1.2))
    assert tight.expansion is not None
    assert tight.expansion.whole
    assert weight_bytes(tight) == 4 * small.weights.total_weights
    assert tight.auto_reduced
    assert plan.make_plan(small, EXPAND, cpu(0.6)).refused
    assert not plan.make_plan(small, KEEP, cpu(0.6)).refused


def test_keep_is_what_was_loaded_before(small: facts.ModelFacts) -> None:
    made = plan.make_plan(small, KEEP, cpu(16))
    assert made.expansion is None
    assert weight_bytes(made) == small.weights.resident_bytes(4)
    assert "float32" not in made.summary


@pytest.mark.parametrize("machine", [M4_24, replace(M4_24, accelerator=Accelerator.CUDA)])
def test_accelerators_are_untouched_and_a_wish_is_answered(
    small: facts.ModelFacts, machine: MachineLimits
) -> None:
    assert plan.make_plan(small, PlanRequest(), machine).expansion is None
    asked = plan.make_plan(small, EXPAND, machine)
    assert asked.expansion is None
    assert any("not expanded" in warning for warning in asked.warnings)


def test_other_dtypes_go_through_no_blas(small: facts.ModelFacts) -> None:
    asked = plan.make_plan(small, replace(EXPAND, dtype="bfloat16"), cpu(16))
    assert asked.expansion is None
    assert any("activations are not float32" in warning for warning in asked.warnings)


def test_dense_weights_have_nothing_to_expand(tmp_path: Path) -> None:
    config = {k: v for k, v in SMALL.items() if k != "quantization"}
    dense = facts.read_model(write_model(tmp_path, config, decoder(config)))
    made = plan.make_plan(dense, EXPAND, cpu(16))
    assert made.expansion is None
    assert any("none of them are quantized" in warning for warning in made.warnings)


def test_an_embedding_beside_a_head_stays_packed(tmp_path: Path) -> None:
    config = SMALL | {"tie_word_embeddings": False}
    untied = facts.read_model(write_model(tmp_path, config, decoder(config, Quant(4, 32))))
    made = plan.make_plan(untied, PlanRequest(), cpu(16))
    assert made.expansion is not None
    packed_embedding = untied.weights.part(facts.WeightPart.EMBEDDING, 4)
    rest = untied.weights.total_weights - 49152 * 576
    assert weight_bytes(made) == 4 * rest + packed_embedding


def test_experts_stay_packed(tmp_path: Path) -> None:
    """Only what every token is multiplied with is expanded."""
    moe = facts.read_model(write_model(tmp_path, MOE_30B, decoder(MOE_30B, Quant(4))))
    made = plan.make_plan(moe, EXPAND, MachineLimits(ram_bytes=128 * GB, num_cores=8))
    assert made.strategy is Strategy.RESIDENT
    assert made.expansion is not None
    experts = moe.weights.part(facts.WeightPart.EXPERTS, 4)
    assert weight_bytes(made) < experts + 4 * (
        moe.weights.total_weights - 48 * 128 * 3 * 768 * 2048
    )
    assert weight_bytes(made) > experts
    assert "; all but the experts expanded to float32" in made.summary


def test_blocks_are_known_by_their_paths() -> None:
    blocks = {
        "lm_head": Sublayer.ENDS,
        "model.embed_tokens": Sublayer.ENDS,
        "model.layers.3.self_attn.q_proj": Sublayer.ATTENTION,
        "language_model.model.layers.11.linear_attn.in_proj": Sublayer.ATTENTION,
        "transformer.h.2.attn.c_attn": Sublayer.ATTENTION,
        "model.layers.3.mlp.down_proj": Sublayer.MLP,
        "backbone.layers.7.mixer.in_proj": Sublayer.MLP,
    }
    assert {path: facts.block_of(path) for path in blocks} == blocks


def test_predictions_know_expanded_weights(small: facts.ModelFacts) -> None:
    expanded = plan.make_plan(small, PlanRequest(), cpu(16)).speed
    kept = plan.make_plan(small, KEEP, cpu(16)).speed
    assert expanded.prefill.high > 5 * kept.prefill.high
    assert expanded.decode.low >= kept.decode.low


def test_a_plan_whose_weights_were_packed_again_has_lost_that_term(
    small: facts.ModelFacts,
) -> None:
    made = plan.make_plan(small, PlanRequest(), cpu(16))
    assert made.expansion is not None
    report = json.loads(without_expansion(json.dumps(made.to_json())))
    assert sum(term["bytes"] for term in report["terms"]) == report["total_bytes"]
    assert report["total_bytes"] == made.total_bytes - made.expansion.added_bytes
    assert report["cpu_weights"] is None
    kept = json.dumps(plan.make_plan(small, KEEP, cpu(16)).to_json())
    assert without_expansion(kept) == kept


def test_a_record_measured_with_packed_weights_predicts_no_float32(
    small: facts.ModelFacts,
) -> None:
    whole = load_conditions(plan.make_plan(small, PlanRequest(), cpu(16)))
    part = load_conditions(plan.make_plan(small, PlanRequest(), cpu(2)))
    kept = load_conditions(plan.make_plan(small, KEEP, cpu(16)))
    assert len({whole, part, kept}) == 3
    assert kept == Manner("resident", "float32")  # as records of earlier versions say
