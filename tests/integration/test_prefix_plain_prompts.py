"""Prompts that are no conversation, on models that cannot go back: what a second one reuses."""

from __future__ import annotations

import pytest
from engine_harness import Answer, EngineHarness
from prefix_runner import tokens
from tiny_models import make_model

from swiftlm_engine.messages import GenerateJob
from swiftlm_engine.sampling.settings import SamplingSettings

CHUNK = 32


@pytest.mark.parametrize("family", ["gemma3_text", "qwen3_next"])  # windows; recurrent states
def test_a_prompt_that_departs_near_its_end_hits_and_says_the_same(family, tmp_path):
    document = tokens(1, 215)
    first, second = document + tokens(2, 25), document + tokens(3, 25)
    folder = make_model(family, tmp_path)
    with EngineHarness(folder, prefill_chunk=CHUNK, prefix_cache_bytes=1 << 28) as engine:

        def ask(name: str, prompt: list[int], **options: object) -> Answer:
            greedy = SamplingSettings(temperature=0.0)
            job = GenerateJob(name, prompt, greedy, max_tokens=12, ignore_eos=True, **options)
            return engine.run(job)[0]

        cold = ask("cold", second, no_cache=True)
        ask("first", first)
        warm = ask("second", second)
        # The end of the first chunk behind three quarters, wherever a slow machine cuts them.
        assert 180 <= warm.started.cached_tokens <= len(document)
        assert warm.content == cold.content
