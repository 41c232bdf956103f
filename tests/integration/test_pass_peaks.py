"""What passes take stays below what the plan has for them: a prompt in chunks, rows that join,
texts that are embedded, prompts that are scored. Pictures have a page of their own
(`test_vision_scratch.py`)."""

from __future__ import annotations

import gc
from collections.abc import Callable

import mlx.core as mx
import pytest
from engine_harness import EngineHarness
from tiny_models import make_model

from swiftlm_engine.brain.facts import KvFormat, read_model
from swiftlm_engine.brain.plan.machine import Accelerator
from swiftlm_engine.brain.plan.request import Settings
from swiftlm_engine.brain.plan.scratch import prefill_scratch
from swiftlm_engine.messages import EngineFault, GenerateJob
from swiftlm_engine.sampling.settings import SamplingSettings

GREEDY = SamplingSettings(temperature=0.0)
CONTEXT, CHUNK, ROWS, TOKENS = 1024, 256, 8, 900
# The formula of scratch was fitted to within a tenth (docs/memory.md).
FITTED = 1.1
# Their hidden states are not where the embedder looks.
NOT_EMBEDDED = {"mamba2", "ministral3", "llama4", "gemma4", "gemma4_moe", "gemma4_e2b"}
SLOW = ("gemma3_text", "qwen3_moe", "qwen3_next", "deepseek_v3", "lfm2", "gpt_oss", "gemma4")
CASES = [
    ("llama", 65_536),  # logits are the largest arrays
    *(pytest.param(name, 320, marks=pytest.mark.slow) for name in ("llama", *SLOW)),
    *(pytest.param(name, 65_536, marks=pytest.mark.slow) for name in SLOW),
]


def ids(count: int, number: int = 0) -> tuple[int, ...]:
    return tuple(20 + (i * i + 37 * number) % 300 for i in range(count))


def job(name: str, prompt: tuple[int, ...], max_tokens: int, **more: object) -> GenerateJob:
    return GenerateJob(name, prompt, GREEDY, max_tokens=max_tokens, ignore_eos=True, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "vocabulary"), CASES)
def test_no_pass_takes_more_than_its_price(name, vocabulary, tmp_path):
    folder = make_model(name, tmp_path, vocab_size=vocabulary, max_position_embeddings=CONTEXT)
    settings = Settings(CONTEXT, ROWS, KvFormat.FP16, CHUNK)
    scratch = prefill_scratch(read_model(folder), settings, Accelerator.CPU, prompt=TOKENS).total
    options = {"prefill_chunk": CHUNK, "parallel": ROWS, "prefix_cache_bytes": 0, "force": True}
    with EngineHarness(folder, **options) as engine:
        kv = engine.session.engine.scheduler._price
        engine.run(job("warm", ids(40), 2))

        def check(what: str, kv_bytes: int, act: Callable[[], object]) -> None:
            gc.collect()
            engine.mlx.call(mx.clear_cache).result(60)
            before = mx.get_active_memory()
            mx.reset_peak_memory()
            act()
            peak = mx.get_peak_memory() - before
            assert peak <= FITTED * (kv_bytes + scratch), what

        check("prefill", kv(TOKENS, 4), lambda: engine.run(job("a", ids(TOKENS), 4)))
        rows = [job(str(i), ids(100 * (i % 3 + 1), i), 16) for i in range(ROWS)]
        joined = sum(kv(100 * (i % 3 + 1), 16) for i in range(ROWS))
        check("join", joined, lambda: engine.run(*rows))
        scored = job("s", ids(300), 1, echo=True, top_logprobs=5)
        check("score", kv(300, 1), lambda: engine.run(scored))
        if name not in NOT_EMBEDDED:
            embedder = engine.session.embedder
            embed = lambda: engine.mlx.call(embedder.embed, list(ids(TOKENS)), 0).result(100)  # noqa: E731
            check("embed", kv(TOKENS, 0), embed)


def test_families_that_are_not_embedded_are_refused_by_name(tmp_path):
    with (
        EngineHarness(make_model("mamba2", tmp_path)) as engine,
        pytest.raises(EngineFault, match="hidden states"),
    ):
        engine.mlx.call(engine.session.embedder.embed, [1, 2], 0).result(60)
