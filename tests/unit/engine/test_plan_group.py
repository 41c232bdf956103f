"""Plans over several hosts: what each rank is priced at, which way wins, and what is said of it."""

from __future__ import annotations

import ast
import importlib.util
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from model_headers import Quant, decoder, write_model
from planned_models import DENSE_8B, mac

from swiftlm_engine.brain.facts import LayerKind, ModelFacts, WeightPart, read_model
from swiftlm_engine.brain.plan import (
    SOFT_SHARE,
    GroupHost,
    LinkSpeed,
    PlanRequest,
    Range,
    Toggle,
    best_way,
    group_report,
    make_group_plan,
)
from swiftlm_engine.brain.plan.obstacles import TENSOR_FAMILIES
from swiftlm_engine.brain.plan.share import Share, Split, share_facts

LATENT: dict[str, Any] = {
    "model_type": "deepseek_v3", "num_hidden_layers": 8, "hidden_size": 1024,
    "num_attention_heads": 16, "num_key_value_heads": 16, "intermediate_size": 2048,
    "vocab_size": 4096, "kv_lora_rank": 512, "q_lora_rank": 384, "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128, "v_head_dim": 128, "n_routed_experts": 16, "n_shared_experts": 1,
    "num_experts_per_tok": 4, "moe_intermediate_size": 512, "first_k_dense_replace": 2,
    "max_position_embeddings": 32768,
}  # fmt: skip
CABLE = LinkSpeed(Range(3e9, 4e9), Range(2e-5, 4e-5))
RADIO = LinkSpeed(Range(2e7, 5e7), Range(2e-3, 6e-3))
FIXED = PlanRequest(context=4096, parallel=1)


def facts_of(folder: Path, config: dict[str, Any], quant: Quant | None = None) -> ModelFacts:
    return read_model(write_model(folder, config, decoder(config, quant)))


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> ModelFacts:
    return facts_of(tmp_path_factory.mktemp("dense"), DENSE_8B, Quant(4))


@pytest.fixture(scope="module")
def latent(tmp_path_factory: pytest.TempPathFactory) -> ModelFacts:
    return facts_of(tmp_path_factory.mktemp("latent"), LATENT)


def host(name: str, gib: float, link: LinkSpeed | None = CABLE) -> GroupHost:
    """A Mac with room for arrays of `gib`, beside the process, in what plans may grant."""
    return GroupHost(name, mac(64, (gib + 0.37) / SOFT_SHARE), link)


@pytest.mark.parametrize("name", ["dense", "latent"])
def test_shares_of_a_pipeline_add_up_to_the_model(
    name: str, request: pytest.FixtureRequest
) -> None:
    facts: ModelFacts = request.getfixturevalue(name)
    cuts = [range(3), range(3, 5), range(5, len(facts.layers))]
    shares = [share_facts(facts, Share(Split.PIPELINE, layers)) for layers in cuts]
    layers = sum(amount.bytes_as() for amount in facts.weights.layers)
    outside = facts.weights.resident_bytes() - layers
    held = [share.weights.resident_bytes() for share in shares]
    held[0] -= outside  # embedding and head are the leader's
    assert held == [sum(facts.weights.layers[i].bytes_as() for i in part) for part in cuts]
    assert sum(share.kv_bytes(0, 1024) for share in shares) == facts.kv_bytes(0, 1024)
    assert sum(share.weights.part(WeightPart.EXPERTS) for share in shares) == facts.weights.part(
        WeightPart.EXPERTS
    )


def test_a_tensor_share_is_a_part_of_each_layer_and_of_the_key_value_heads(
    dense: ModelFacts,
) -> None:
    whole = range(len(dense.layers))
    share = share_facts(dense, Share(Split.TENSOR, whole, 4))
    layers = sum(amount.bytes_as() for amount in dense.weights.layers)
    saved = dense.weights.resident_bytes() - share.weights.resident_bytes()
    assert saved == pytest.approx(layers * 3 / 4, rel=1e-6)
    assert share.kv_bytes(0, 1024) * 4 == dense.kv_bytes(0, 1024)


def test_every_rank_caches_the_whole_latent(latent: ModelFacts) -> None:
    share = share_facts(latent, Share(Split.TENSOR, range(8), 2))
    assert share.kv_bytes(0, 1024) == latent.kv_bytes(0, 1024)


def test_a_model_that_fits_on_the_leader_stays_there(dense: ModelFacts) -> None:
    report = group_report(make_group_plan(dense, FIXED, [host("a", 24, None), host("b", 24)]))
    assert (report["verdict"], report["hosts_needed"], report["ranks"]) == ("one", 1, [])
    assert "a alone holds it" in report["reason"]


def test_a_model_too_large_for_one_takes_the_fewest_hosts_that_hold_it(dense: ModelFacts) -> None:
    hosts = [host("a", 4, None), host("b", 4), host("c", 64)]
    plan = make_group_plan(dense, FIXED, hosts)
    report = group_report(plan)
    assert (report["verdict"], report["hosts_needed"], report["split"]) == ("group", 2, "tensor")
    assert [rank["host"] for rank in report["ranks"]] == ["a", "b"]
    # 131,072 bytes per token of the whole model: 32 layers x 8 heads x 128 x 2 x 2 bytes.
    assert [rank["kv_bytes_per_token"] for rank in report["ranks"]] == [65536, 65536]
    for rank in report["ranks"]:
        assert rank["needed_bytes"] <= rank["available_bytes"]
    assert "a alone could only run it streamed" in report["reason"]


def test_unequal_hosts_form_a_pipeline_by_their_memory(dense: ModelFacts) -> None:
    report = group_report(make_group_plan(dense, FIXED, [host("a", 2.2, None), host("b", 4.5)]))
    assert report["split"] == "pipeline"
    first, second = report["ranks"]
    assert (first["first_layer"], second["last_layer"]) == (0, 31)
    assert second["first_layer"] == first["last_layer"] + 1
    assert second["weight_bytes"] > 1.5 * first["weight_bytes"]
    assert "tensor is not possible" in report["reason"]


def test_the_split_that_is_asked_for_is_taken_or_named_as_impossible(dense: ModelFacts) -> None:
    hosts = [host("a", 16, None), host("b", 16)]
    assert best_way(dense, FIXED, hosts).split is Split.TENSOR
    assert best_way(dense, FIXED, hosts, Split.PIPELINE).split is Split.PIPELINE
    three = best_way(dense, FIXED, [*hosts, host("c", 16)], Split.TENSOR)
    assert (three.fits, three.obstacle) == (False, "32 attention heads do not divide by 3")


def test_heads_that_do_not_divide_are_said_to_be_the_obstacle(dense: ModelFacts) -> None:
    hosts = [host("a", 2.4, None), host("b", 2.4), host("c", 2.4)]
    plan = make_group_plan(dense, FIXED, hosts)
    tensor = next(way for way in plan.ways if way.hosts == 3 and way.split is Split.TENSOR)
    assert tensor.obstacle == "32 attention heads do not divide by 3"
    assert plan.way is not None
    assert plan.way.split is Split.PIPELINE


def test_layers_that_share_their_kv_with_others_are_not_parted(
    dense: ModelFacts,
) -> None:
    shared = replace(dense.layers[-1], kind=LayerKind.SHARED, stores=())
    facts = replace(dense, outer_type="gemma4", layers=(*dense.layers[:-1], shared))
    plan = make_group_plan(facts, FIXED, [host("a", 4, None), host("b", 4)])
    assert [way.obstacle for way in plan.ways] == [
        "mlx-lm cannot cut the layers of family gemma4",
        "layers of family gemma4 share their KV with others",
    ]


def test_a_slow_link_turns_tensor_parallel_into_a_pipeline(dense: ModelFacts) -> None:
    def way(link: LinkSpeed) -> Split | None:
        plan = make_group_plan(dense, FIXED, [host("a", 4, None), host("b", 4, link)])
        return plan.way and plan.way.split

    assert way(CABLE) is Split.TENSOR
    assert way(RADIO) is Split.PIPELINE


def test_what_no_group_holds_is_refused_with_the_host_that_is_short(dense: ModelFacts) -> None:
    request = PlanRequest(context=4096, parallel=1, stream=Toggle.OFF)
    report = group_report(make_group_plan(dense, request, [host("a", 1, None), host("b", 1)]))
    assert report["verdict"] == "refused"
    assert re.search(r"tensor: a needs [23]\.\d GB, 1\.5 GB available", report["reason"])
    assert report["prediction"] is None


def test_all_ranks_get_the_settings_that_the_smallest_can_bear(dense: ModelFacts) -> None:
    plan = make_group_plan(dense, PlanRequest(kv="fp16"), [host("a", 4.2, None), host("b", 3.2)])
    assert plan.way is not None
    settings = {rank.plan.settings for rank in plan.way.ranks}
    assert len(settings) == 1
    assert settings.pop().context < 32_768


def test_ranks_keep_their_kv_in_one_format_compressed_if_one_has_to(dense: ModelFacts) -> None:
    request = PlanRequest(context=32_768, parallel=1)
    plan = make_group_plan(dense, request, [host("a", 5.5, None), host("b", 2.9)])
    assert plan.way is not None
    settings = {rank.plan.settings for rank in plan.way.ranks}
    assert len(settings) == 1
    assert settings.pop().kv.turbo


def test_the_list_of_families_is_that_of_mlx_lm() -> None:
    spec = importlib.util.find_spec("mlx_lm")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent
    modules = {path.stem: path.read_text() for path in (folder / "models").glob("*.py")}
    can = {name for name, text in modules.items() if "def shard(" in text}
    for name, text in modules.items():  # those whose Model is another's
        heir = re.search(r"^from \.(\w+) import Model as (\w+)$", text, re.MULTILINE)
        if heir and heir[1] in can and f"class Model({heir[2]})" in text:
            can.add(name)
    text = (folder / "utils.py").read_text()  # importing it takes seconds
    table = re.search(r"^MODEL_REMAPPING = (\{.*?^\})", text, re.MULTILINE | re.DOTALL)
    assert table is not None
    renamed: dict[str, str] = ast.literal_eval(table[1])
    named = can | {name for name, module in renamed.items() if module in can}
    assert named == TENSOR_FAMILIES
