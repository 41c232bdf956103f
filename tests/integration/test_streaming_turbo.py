"""Experts from disk and a compressed KV cache work together, and neither changes the other."""

from __future__ import annotations

from engine_harness import EngineHarness
from tiny_models import make_model

from swiftlm_engine.messages import GenerateJob
from swiftlm_engine.sampling.settings import SamplingSettings
from swiftlm_engine.turboquant import policy

GREEDY = SamplingSettings(temperature=0.0)
PROMPT = "the quick brown fox jumps over the lazy dog " * 6


def test_streamed_experts_with_compressed_kv_give_the_text_of_resident_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(policy, "MAX_KLD", 1.0)  # the next tokens of random weights hang on nothing
    folder = make_model("qwen3_moe", tmp_path, num_experts=12, head_dim=128)
    job = GenerateJob("a", PROMPT, GREEDY, max_tokens=16, ignore_eos=True)
    kv = {"kv": "k4v3", "slice_ms": 600_000}
    with EngineHarness(folder, **kv) as engine:
        resident = engine.run(job)[0].content
    with EngineHarness(folder, **kv, stream_experts="experts", expert_slots=3) as engine:
        assert engine.run(job)[0].content == resident
        assert engine.session.facts.kv == "k4v3"
        counters = engine.session.streaming.to_json()
    assert counters["bytes"] > 0
    assert counters["problems"] == []
