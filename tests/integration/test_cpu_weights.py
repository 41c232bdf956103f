"""Quantized weights held as float32 say what the packed ones say, at the price that was named."""

from __future__ import annotations

import itertools
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import pytest
from engine_harness import EngineHarness
from quantized_models import make_quantized

from swiftlm_engine.brain.facts import read_model
from swiftlm_engine.brain.ledger import EntryKind
from swiftlm_engine.brain.plan import CpuWeights, MachineLimits, PlanRequest, make_plan
from swiftlm_engine.expansion.options import ExpandOptions
from swiftlm_engine.expansion.weights import ExpandedWeights
from swiftlm_engine.load.device import Device
from swiftlm_engine.load.weights import LoadedWeights, load_weights
from swiftlm_engine.messages import GenerateJob
from swiftlm_engine.sampling.settings import SamplingSettings

GREEDY = SamplingSettings(temperature=0.0)
WHOLE = ExpandOptions(head=True, attention_layers=99, mlp_layers=99)
PROMPTS = ("the quick brown fox", "lazy dogs jump", "zebras and quick dogs over the lazy fox")
FAMILIES = ("llama", "qwen2", "gemma3_text", "qwen3_moe", "deepseek_v3")

pytestmark = pytest.mark.usefixtures("on_the_cpu")


def loaded(folder: Path, expand: ExpandOptions = WHOLE) -> LoadedWeights:
    return load_weights(folder, "", Device.CPU, lambda *_: None, expand=expand)


def texts(engine: EngineHarness, tag: str = "") -> list[str]:
    jobs = [
        GenerateJob(f"{tag}{i}", prompt, GREEDY, max_tokens=24, ignore_eos=True)
        for i, prompt in enumerate(PROMPTS)
    ]
    alone = [engine.run(job)[0].content for job in jobs]
    assert [answer.content for answer in engine.run(*jobs)] == alone
    return alone


def packed_modules(model: nn.Module) -> set[str]:
    return {path for path, module in model.named_modules() if "scales" in module}


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_text_is_that_of_the_packed_weights(family: str, tmp_path: Path) -> None:
    folder = make_quantized(family, tmp_path)
    with EngineHarness(folder) as engine:
        expected = texts(engine)
        assert engine.session.expanded is None
    with EngineHarness(folder, expand=WHOLE) as engine:
        assert texts(engine) == expected
        whole = "some of" not in engine.session.facts.weights_note
        assert "expanded to float32" in engine.session.facts.weights_note
        assert whole is ("moe" not in family and family != "deepseek_v3")  # experts stay packed


@pytest.mark.parametrize(("bits", "group_size", "mode"), [(8, 64, "affine"), (4, 32, "mxfp4")])
def test_other_packings_are_the_same_numbers(
    bits: int, group_size: int, mode: str, tmp_path: Path
) -> None:
    folder = make_quantized("llama", tmp_path, bits=bits, group_size=group_size, mode=mode)
    ids = mx.array([[5, 6, 7, 8]])
    packed = loaded(folder, ExpandOptions()).model(ids)
    expanded = loaded(folder).model(ids)
    assert mx.allclose(packed, expanded, rtol=1e-4, atol=1e-4).item()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_ledgers_price_is_what_the_model_holds(family: str, tmp_path: Path) -> None:
    folder = make_quantized(family, tmp_path)
    plan = make_plan(
        read_model(folder),
        PlanRequest(context=256, cpu_weights=CpuWeights.EXPAND),
        MachineLimits(ram_bytes=8 * 10**9),
    )
    assert plan.expansion is not None
    options = ExpandOptions(
        plan.expansion.head, plan.expansion.attention_layers, plan.expansion.mlp_layers
    )
    weights = loaded(folder, options)
    assert weights.weight_bytes == pytest.approx(plan.need.of(EntryKind.WEIGHTS), rel=0.05)
    assert weights.expanded is not None
    assert weights.expanded.expanded_bytes == pytest.approx(plan.expansion.expanded_bytes, rel=0.05)


@pytest.mark.parametrize(
    ("head", "attention", "mlp"), list(itertools.product((False, True), (0, 1), (0, 2)))
)
def test_only_what_was_asked_for_is_expanded(
    head: bool, attention: int, mlp: int, tmp_path: Path
) -> None:
    folder = make_quantized("llama", tmp_path)
    left = packed_modules(loaded(folder, ExpandOptions(head, attention, mlp)).model)
    assert ("lm_head" in left) is not head
    assert "model.embed_tokens" in left  # single rows of it are read
    for layer in (0, 1):
        assert (f"model.layers.{layer}.self_attn.q_proj" in left) is (layer >= attention)
        assert (f"model.layers.{layer}.mlp.up_proj" in left) is (layer >= mlp)


def test_given_back_weights_are_the_packed_ones_and_expand_again(tmp_path: Path) -> None:
    folder = make_quantized("llama", tmp_path)
    with EngineHarness(folder, expand=WHOLE) as engine:
        before = texts(engine)
        expanded = engine.session.expanded
        assert isinstance(expanded, ExpandedWeights)
        held = expanded.expanded_bytes
        engine.mlx.call(expanded.give_back).result(60)
        assert expanded.freed_bytes > held / 2
        assert not expanded.expanded
        assert packed_modules(engine.session.subject.model)
        assert texts(engine, "packed") == before
        engine.mlx.call(expanded.expand).result(60)
        assert (expanded.freed_bytes, expanded.expanded_bytes) == (0, held)
        assert texts(engine, "again") == before
