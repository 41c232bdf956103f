"""A dense model whose layers are read from disk for every step says what the resident one says."""

from __future__ import annotations

import errno

import mlx.core as mx
import pytest
from engine_harness import EngineHarness
from tiny_models import make_model

from swiftlm_engine.brain.facts import read_model
from swiftlm_engine.brain.plan.layer_streaming import layer_sizes, place_layers
from swiftlm_engine.load.device import Device
from swiftlm_engine.load.weights import load_weights
from swiftlm_engine.messages import EndReason, EngineFault, GenerateJob
from swiftlm_engine.sampling.settings import SamplingSettings
from swiftlm_engine.streaming.report import StreamMode, StreamOptions

GREEDY = SamplingSettings(temperature=0.0)
PROMPT = "the quick brown fox jumps over the lazy dog " * 3
DENSE = ("llama", "gemma3_text", "qwen3_5", "mamba2", "falcon_h1")


def job(name="a", prompt=PROMPT):
    return GenerateJob(name, prompt, GREEDY, max_tokens=16, ignore_eos=True)


@pytest.mark.parametrize("name", DENSE)
def test_text_of_streamed_layers_equals_resident_text(name, tmp_path):
    folder = make_model(name, tmp_path, num_hidden_layers=8)
    prompts = [PROMPT, "hello world ", PROMPT + " assistant"]
    jobs = [job(str(number), prompt) for number, prompt in enumerate(prompts)]
    with EngineHarness(folder) as engine:
        alone = engine.run(job())[0].content
        batched = [answer.content for answer in engine.run(*jobs)]
    with EngineHarness(folder, stream_experts="on") as engine:
        assert engine.run(job())[0].content == alone  # a miss of the prefix cache
        assert [answer.content for answer in engine.run(*jobs)] == batched  # hits, and a batch
        report = engine.session.streaming.to_json()
    assert (report["mode"], report["streamed_layers"]) == ("layers", 8)
    assert report["problems"] == []
    assert report["prefetch_used"] > 16 * 7


def test_mixture_of_experts_streams_by_layers_when_asked_to(tmp_path):
    folder = make_model("llama4", tmp_path, num_hidden_layers=8)
    with EngineHarness(folder) as engine:
        resident = engine.run(job())[0].content
    with EngineHarness(folder, stream_experts="layers") as engine:
        assert engine.run(job())[0].content == resident
        assert engine.session.streaming.to_json()["streamed_layers"] == 8


def test_memory_holds_two_layers_and_what_the_budget_gives(tmp_path):
    folder = make_model("llama", tmp_path, num_hidden_layers=12, intermediate_size=2048)
    with EngineHarness(folder) as engine:
        whole = engine.session.facts.weight_bytes
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    with EngineHarness(folder, stream_experts="on") as engine:
        layer = engine.session.streaming.record_bytes
        assert engine.session.facts.weight_bytes == whole - 10 * layer
        engine.run(job())
        assert mx.get_peak_memory() - before < whole - 10 * layer + 2 * layer
    budget = whole - 5 * layer
    with EngineHarness(folder, stream_experts="on", resident_bytes=budget) as engine:
        report = engine.session.streaming
        assert (report.streamed_layers, report.resident_layers) == (7, 5)
        assert engine.session.facts.weight_bytes == budget
        engine.run(job())
        assert report.to_json()["problems"] == []


def test_kinds_that_alternate_hold_one_layer_each_and_are_read_ahead(tmp_path):
    """Linear and full attention in turns: each is read while the other computes."""
    folder = make_model("qwen3_5", tmp_path, num_hidden_layers=12)
    with EngineHarness(folder) as engine:
        whole, resident = engine.session.facts.weight_bytes, engine.run(job())[0].content
    sizes = layer_sizes(read_model(folder), 4)
    assert len({size.bytes for size in sizes[:2]}) == 2
    with EngineHarness(folder, stream_experts="on") as engine:
        held = whole - sum(size.bytes for size in sizes[2:])
        assert engine.session.facts.weight_bytes == pytest.approx(held, rel=0.02)
        assert engine.run(job())[0].content == resident
        report = engine.session.streaming.to_json()
    assert report["prefetch_used"] > 16 * 11


def test_draft_shares_the_reading_of_layers_and_the_text_stays(tmp_path):
    folder = make_model("llama", tmp_path, num_hidden_layers=8)
    read = {}
    for draft in ("", "ngram"):
        with EngineHarness(folder, stream_experts="on", draft=draft) as engine:
            answer = engine.run(job())[0].content
            read[draft] = (answer, engine.session.streaming.to_json()["bytes"])
    assert read["ngram"][0] == read[""][0]
    assert read["ngram"][1] <= read[""][1]


@pytest.mark.parametrize("name", DENSE)
def test_engine_streams_the_layers_that_the_plan_says(name, tmp_path):
    folder = make_model(name, tmp_path, num_hidden_layers=8)
    weights = read_model(folder).weights
    sizes = layer_sizes(read_model(folder), 4)
    shared = weights.resident_bytes(4) - sum(size.bytes for size in sizes)
    for room in (0, sum(size.bytes for size in sizes) * 3 // 4):
        placed = place_layers(sizes, room)
        budget = shared + placed.held_bytes
        options = StreamOptions(resident_bytes=budget, mode=StreamMode.LAYERS)
        loaded = load_weights(folder, "", Device.CPU, lambda *_: None, options)
        assert loaded.streaming.streamed_layers == len(placed.streamed)
        assert loaded.weight_bytes == pytest.approx(budget, rel=0.02)


def test_budget_below_two_layers_is_refused_before_anything_is_read(tmp_path):
    folder = make_model("llama", tmp_path, num_hidden_layers=8)
    with pytest.raises(EngineFault, match="two that pass through"):
        EngineHarness(folder, stream_experts="on", resident_bytes=1000)


def test_layer_that_cannot_be_read_ends_the_request_and_the_next_one_is_served(tmp_path):
    folder = make_model("llama", tmp_path, num_hidden_layers=8)
    with EngineHarness(folder, stream_experts="on") as engine:
        sound = engine.run(job())[0].content
        reader = engine.session.streaming.streamer.reader
        works = reader.preadv
        reader.preadv = _io_error
        failed = engine.run(job("b", "other words " * 9))[0].finished
        assert failed.reason is EndReason.ERROR
        reader.preadv = works
        assert engine.run(job("c"))[0].content == sound
        assert engine.session.streaming.to_json()["problems"] == []


def _io_error(*_):
    raise OSError(errno.EIO, "input/output error")
