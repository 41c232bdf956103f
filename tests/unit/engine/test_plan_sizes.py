"""Sizes that a plan takes by policy, and a checkpoint larger than any memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from huge_models import write_huge
from model_headers import Quant, decoder, write_model
from planned_models import DENSE_8B, M4_16, M4_PRO_64

from swiftlm_engine.brain import facts, plan
from swiftlm_engine.brain.ledger import EntryKind
from swiftlm_engine.brain.plan import PlanRequest, Strategy
from swiftlm_engine.brain.plan.scratch import prefill_scratch

SMALL = DENSE_8B | {"num_hidden_layers": 2, "max_position_embeddings": 2048}


def prefix(made: plan.Plan) -> plan.Term:
    return next(term for term in made.terms if term.kind is EntryKind.PREFIX_CACHE)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> facts.ModelFacts:
    folder = tmp_path_factory.mktemp("small")
    return facts.read_model(write_model(folder, SMALL, decoder(SMALL, Quant(4))))


def test_the_prefix_cache_is_no_larger_than_conversations_can_fill(small: facts.ModelFacts) -> None:
    made = plan.make_plan(small, PlanRequest(), M4_PRO_64)
    assert prefix(made).bytes == 2 * small.kv_bytes(0, 2048)
    assert prefix(made).note.startswith("2 x 2,048 tokens")
    alone = plan.make_plan(small, PlanRequest(parallel=1), M4_PRO_64)
    assert prefix(alone).bytes == small.kv_bytes(0, 2048)


def test_the_prefix_cache_takes_no_more_than_a_quarter_of_what_is_free(
    tmp_path: Path,
) -> None:
    large = facts.read_model(write_model(tmp_path, DENSE_8B, decoder(DENSE_8B, Quant(4))))
    made = plan.make_plan(large, PlanRequest(), M4_16)
    bare = plan.make_plan(large, PlanRequest(prefix_cache_bytes=0), M4_16)
    free = bare.available_bytes - bare.needed_bytes
    assert 0 < prefix(made).bytes <= max(free // 4, 2**20)
    assert "share of what is free" in prefix(made).note


@pytest.mark.parametrize(
    ("head_size", "fused"), [(64, True), (72, True), (96, True), (128, True), (192, False),
                             (256, False), (112, False)],
)  # fmt: skip
def test_metal_builds_no_score_matrix_for_the_head_sizes_that_mlx_fuses(
    tmp_path: Path, head_size: int, fused: bool
) -> None:
    config = SMALL | {"head_dim": head_size}
    model = facts.read_model(write_model(tmp_path, config, decoder(config, Quant(4))))
    settings = plan.make_plan(model, PlanRequest(), M4_PRO_64).settings
    scores = prefill_scratch(model, settings, plan.Accelerator.METAL).scores
    assert (scores == 0) is fused


def test_a_checkpoint_of_400_gb_is_planned_from_its_headers(tmp_path: Path) -> None:
    folder = write_huge(tmp_path)
    files = list(folder.glob("*.safetensors"))
    on_disk = sum(path.stat().st_size for path in files)
    blocks = sum(path.stat().st_blocks * 512 for path in files)
    assert on_disk > 400e9
    assert blocks < 10e6, "the test would fill the disk"
    made = plan.make_plan(facts.read_model(folder), PlanRequest(), M4_PRO_64)
    assert made.strategy is Strategy.STREAMED
    refused = plan.make_plan(made.facts, replace(PlanRequest(), stream=plan.Toggle.OFF), M4_PRO_64)
    assert refused.refused
    assert "GB short" in refused.summary


@pytest.mark.parametrize("context", [256, 300, 2048])
def test_kv_is_priced_for_the_dearest_split_into_prompt_and_answer(
    context: int, tmp_path: Path
) -> None:
    config = SMALL | {"model_type": "ministral3", "sliding_window": 512, "head_dim": 128}
    config |= {"layer_types": ["sliding_attention", "full_attention"]}
    windowed = facts.read_model(write_model(tmp_path, config, decoder(config, Quant(4))))
    made = plan.make_plan(windowed, PlanRequest(context=context, parallel=1), M4_PRO_64)
    dearest = max(windowed.kv_bytes(prompt, context - prompt) for prompt in range(context))
    assert made.need.of(EntryKind.KV) == dearest
