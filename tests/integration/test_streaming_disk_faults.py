"""A disk that fails under an engine process: the request ends in an error, the process lives, and
the next request is answered as if nothing had happened."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import mlx.core as mx
import pytest
import tiny_models
from engine_harness import EngineHarness
from engine_process import engine_process
from tiny_models import make_model

from swiftlm_engine.messages import EngineFault, GenerateJob
from swiftlm_engine.sampling.settings import SamplingSettings
from swiftlm_engine.streaming import install
from swiftlm_proto import messages as m
from swiftlm_proto.exit_codes import EngineExit

PROGRAM = [str(Path(tiny_models.__file__).with_name("faulty_disk_engine.py"))]
LAYERS, EXPERTS, TOP_K = 2, 12, 2


@pytest.fixture
def folder(tmp_path):
    return make_model("qwen3_moe", tmp_path / "model", num_experts=EXPERTS)


@pytest.fixture
def fault(tmp_path, monkeypatch):
    path = tmp_path / "fault"
    monkeypatch.setenv("FAULT", str(path))
    return path


@pytest.fixture
async def engine(folder, fault, tmp_path, room_path):
    async with engine_process(tmp_path, room_path, PROGRAM) as process:
        events = await process.load(folder, stream_experts="experts", expert_slots=TOP_K)
        assert events[-1].stage is m.LoadEventStage.READY, events[-1]
        yield process


def ask(text: str, name: str) -> m.GenerateRequest:
    return m.GenerateRequest(
        request_id=name, text=text, max_tokens=6, ignore_eos=True, no_cache=True,
        sampling=m.Sampling(temperature=0.0),
    )  # fmt: skip


async def embed(engine, text: str) -> m.EmbedReply:
    return await engine.stub.embed(m.EmbedRequest(inputs=[m.EmbedInput(text=text)]))


async def test_a_failed_read_ends_one_request_and_the_next_is_right(engine, fault):
    sound, _ = await engine.ask(ask("once upon a time", "first"))
    for kind in ("eio", "gone", "end"):
        fault.write_text(kind)
        _, failed = await engine.ask(ask("another tale of many words", kind))
        assert failed.reason is m.FinishedReason.ERROR, kind
        assert "model.safetensors" in failed.fault.message
        assert "model.safetensors" in (await embed(engine, "words of their own")).fault.message
        fault.unlink()
        again, finished = await engine.ask(ask("once upon a time", f"after {kind}"))
        assert (again, finished.reason) == (sound, m.FinishedReason.LENGTH), kind
    fault.write_text("short")  # is no failure: the rest is asked for
    again, finished = await engine.ask(ask("once upon a time", "short"))
    assert (again, finished.reason) == (sound, m.FinishedReason.LENGTH)
    assert engine.process.poll() is None
    stats = await engine.stub.stats(m.StatsRequest())
    counters = stats.stream
    assert counters.read_errors == 6
    assert counters.problems == []


async def test_a_replaced_file_changes_no_answer_and_a_truncated_one_ends_the_engine(
    engine, folder, tmp_path
):
    sound, _ = await engine.ask(ask("once upon a time", "first"))
    weights = folder / "model.safetensors"
    os.link(weights, tmp_path / "loaded")
    other = make_model("qwen3_moe", tmp_path / "other", num_experts=EXPERTS, seed=5)
    os.replace(other / "model.safetensors", weights)
    again, _ = await engine.ask(ask("once upon a time", "replaced"))
    assert again == sound
    os.truncate(tmp_path / "loaded", 4096)
    # For embeddings here; a chat that meets it is asked of the whole daemon elsewhere.
    failed = await embed(engine, "other words")
    assert "model.safetensors changed while its model is loaded" in failed.fault.message
    # Only a new load can go on, and the daemon does that for an engine that ends.
    assert await asyncio.to_thread(engine.process.wait, 30) == EngineExit.FILES_CHANGED


def test_a_decoded_token_waits_once_for_each_streamed_layer(folder):
    greedy = SamplingSettings(temperature=0.0)
    with EngineHarness(folder, stream_experts="on", expert_slots=TOP_K) as engine:

        def waits(name: str, tokens: int) -> int:
            before = engine.session.streaming.to_json()["syncs"]
            engine.run(GenerateJob(name, "a tale", greedy, max_tokens=tokens, ignore_eos=True))
            return engine.session.streaming.to_json()["syncs"] - before

        waits("first", 9)
        assert waits("long", 19) - waits("short", 9) == 10 * LAYERS


def test_an_unknown_kind_of_experts_is_refused_before_any_is_read(tmp_path, monkeypatch):
    folder = make_model("qwen3_moe", tmp_path, num_experts=64, moe_intermediate_size=512)
    bank = 64 * 512 * 64 * 4  # bytes of one projection of one layer
    monkeypatch.setattr(install, "EXPERT_MODULES", {})
    monkeypatch.setattr(os, "preadv", lambda *_: pytest.fail("an expert was read"))
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    with pytest.raises(EngineFault, match=r"qwen3_moe.*--stream-experts off"):
        EngineHarness(folder, stream_experts="experts")
    assert mx.get_peak_memory() - before < bank  # MLX read none, either


def test_a_bank_outside_of_what_a_family_is_known_to_have_is_refused(tmp_path, monkeypatch):
    folder = make_model("qwen3_moe", tmp_path)
    monkeypatch.setattr(install, "SwitchGLU", object)  # as if the family had another module
    with pytest.raises(EngineFault, match="is a bank of an unknown kind"):
        EngineHarness(folder, stream_experts="experts")


async def test_slots_of_a_running_engine_become_fewer_when_asked_and_the_text_stays(engine):
    sound, _ = await engine.ask(ask("once upon a time", "first"))
    for slots in (EXPERTS - 1, TOP_K):
        await engine.stub.cache(m.CacheRequest(expert_slots=slots))
        stats = await engine.stub.stats(m.StatsRequest())
        assert stats.stream.slots == slots
        again, _ = await engine.ask(ask("once upon a time", f"with {slots}"))
        assert again == sound
