"""The system prompt that conversations share outlives them, on every kind of cache."""

from __future__ import annotations

import pytest
from engine_harness import EngineHarness
from prefix_runner import tokens
from tiny_models import make_model

from swiftlm_engine.messages import GenerateJob
from swiftlm_engine.text.chat import Chat, Message, TextPart

SYSTEM = "you answer in few words and name your sources " * 8


def chat(question: str) -> Chat:
    return Chat((Message("system", (TextPart(SYSTEM),)), Message("user", (TextPart(question),))))


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "qwen3_next"])
def test_a_new_conversation_finds_the_system_prompt_of_one_that_was_evicted(family, tmp_path):
    folder = make_model(family, tmp_path, max_position_embeddings=2048)
    with EngineHarness(folder, prefix_cache_bytes=3 << 20) as engine:
        engine.run(GenerateJob("first", chat("what is this"), max_tokens=4, ignore_eos=True))
        for number in range(60):
            if engine.session.prefix.stats().num_evicted >= 12:
                break
            engine.run(GenerateJob(f"other {number}", tuple(tokens(number, 600)), max_tokens=2))
        assert engine.session.prefix.stats().num_evicted >= 12
        (answer,) = engine.run(GenerateJob("new", chat("and now"), max_tokens=4, ignore_eos=True))
        started = answer.started
        assert started.cached_tokens > 0.7 * started.prompt_tokens
