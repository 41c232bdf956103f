"""Prompts that share a forward pass say what mlx-lm's own loop says."""

from __future__ import annotations

import mlx.core as mx
from engine_harness import EngineHarness
from mlx_lm.generate import generate_step
from mlx_lm.utils import load
from tiny_models import make_model

from swiftlm_engine.messages import GenerateJob
from swiftlm_engine.run.runner import Runner
from swiftlm_engine.sampling.settings import SamplingSettings

NUM_TOKENS = 24


def reference(folder, prompt_ids):
    model, _ = load(str(folder))
    return [t for t, _ in generate_step(mx.array(prompt_ids), model, max_tokens=NUM_TOKENS)]


def job(name, prompt):
    greedy = SamplingSettings(temperature=0.0)
    return GenerateJob(
        name, prompt, greedy, max_tokens=NUM_TOKENS, ignore_eos=True, return_token_ids=True
    )


def submit_all(engine, prepared):
    """Within one call, so that no step comes between."""
    for one in prepared:
        engine.submit(one)


def ids_of(answer):
    return [token_id for delta in answer.deltas for token_id in delta.token_ids]


def test_short_prompts_that_share_a_pass_give_the_text_of_each_alone(tmp_path, monkeypatch):
    folder = make_model("llama", tmp_path / "llama")
    _, tokenizer = load(str(folder))
    prompts = ["a", "lazy dogs jump over", "the quick brown fox", "zebras", "x" * 40]
    passes = []
    together = Runner._prefill_together
    monkeypatch.setattr(
        Runner,
        "_prefill_together",
        lambda self, chunks: passes.append(len(chunks)) or together(self, chunks),
    )
    with EngineHarness(folder, prefix_cache_bytes=10**7) as engine:
        for turn in range(2):  # the second time from the prefix cache
            prepared = [
                engine.session.preparer.prepare(job(f"{turn}.{i}", prompt))
                for i, prompt in enumerate(prompts)
            ]
            engine.mlx.call(submit_all, engine.session.engine, prepared).result(60)
            answers = engine.collect(len(prompts))
            for i, prompt in enumerate(prompts):
                expected = reference(folder, tokenizer.encode(prompt))
                assert ids_of(answers[f"{turn}.{i}", 0]) == expected
    assert max(passes) > 2
