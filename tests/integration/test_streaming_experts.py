"""Experts read from disk give the same text as experts in memory, and faults end one request."""

from __future__ import annotations

import errno
import string

import mlx.core as mx
import pytest
from engine_harness import EngineHarness
from tiny_models import make_model

from swiftlm_engine.load.device import Device
from swiftlm_engine.load.weights import load_weights
from swiftlm_engine.messages import EndReason, GenerateJob
from swiftlm_engine.sampling.settings import SamplingSettings
from swiftlm_engine.streaming import policy_choice
from swiftlm_engine.streaming.report import StreamOptions
from swiftlm_engine.streaming.slots import PolicyKind
from swiftlm_engine.streaming.trace import Trace
from swiftlm_engine.turboquant import policy

GREEDY = SamplingSettings(temperature=0.0)
PROMPT = "the quick brown fox jumps over the lazy dog " * 3
EXPERTS = {
    "qwen3_moe": {"num_experts": 12},
    "mixtral": {"num_local_experts": 12},
    "deepseek_v3": {"n_routed_experts": 12},
    "gpt_oss": {"num_local_experts": 12},
    "qwen3_next": {"num_experts": 12},
}


def job(name="a", prompt=PROMPT):
    return GenerateJob(name, prompt, GREEDY, max_tokens=24, ignore_eos=True)


@pytest.mark.parametrize("name", EXPERTS)
def test_streamed_greedy_text_equals_resident_text(name, tmp_path):
    folder = make_model(name, tmp_path, **EXPERTS[name])
    with EngineHarness(folder) as engine:
        resident = engine.run(job())[0].content
    for slots in (2, 11):
        with EngineHarness(folder, stream_experts="on", expert_slots=slots) as engine:
            assert engine.run(job())[0].content == resident
            counters = engine.session.streaming.to_json()
        assert counters["problems"] == []
        assert counters["bytes"] > 0
        assert counters["hits"] > 0
        if name != "deepseek_v3":  # its tiny router is all zeros and picks the same experts
            assert counters["sweeps"] > 0 or slots == 11


def test_streamed_experts_and_compressed_kv_work_together(tmp_path, monkeypatch):
    monkeypatch.setattr(policy, "MAX_KLD", 1.0)  # random weights: what comes next hangs on nothing
    folder = make_model("qwen3_moe", tmp_path, num_experts=12, head_dim=64)
    with EngineHarness(folder, kv="k4v3") as engine:
        resident = engine.run(job())[0].content
        assert engine.session.facts.kv == "k4v3"
    with EngineHarness(folder, kv="k4v3", stream_experts="on", expert_slots=4) as engine:
        assert engine.run(job())[0].content == resident
        assert engine.session.facts.kv == "k4v3"
        assert engine.session.streaming.to_json()["misses"] > 0


def test_slots_shrink_and_grow_between_requests_and_the_text_stays(tmp_path):
    folder = make_model("qwen3_moe", tmp_path, num_experts=32, moe_intermediate_size=512)
    with EngineHarness(folder) as engine:
        resident = engine.run(job())[0].content
    with EngineHarness(folder, stream_experts="on", expert_slots=24) as engine:
        report = engine.session.streaming
        assert engine.run(job("a"))[0].content == resident
        before = engine.mlx.call(mx.get_active_memory).result(10)
        for name, wanted, slots in (("b", 4, 4), ("c", 1, 2), ("d", 28, 28)):
            misses = report.to_json()["misses"]
            engine.mlx.call(report.resize, wanted).result(10)
            after = engine.mlx.call(mx.get_active_memory).result(10)
            assert report.slots == slots
            change = 2 * (slots - 24) * report.record_bytes
            assert abs(after - before - change) < 2 * report.record_bytes
            assert engine.run(job(name))[0].content == resident
            assert report.to_json()["misses"] > misses
        assert report.to_json()["problems"] == []


def test_every_counter_moves_and_agrees_with_what_the_routers_asked_for(tmp_path):
    slots = 4
    folder = make_model("qwen3_moe", tmp_path, num_experts=32)
    wide = job(prompt=string.printable)  # wants nearly every expert
    with EngineHarness(folder) as engine:
        resident = engine.run(wide)[0].content
    options = {"expert_slots": slots, "ssd_threads": 2, "ssd_nocache": "on"}
    with EngineHarness(folder, stream_experts="on", **options) as engine:
        report = engine.session.streaming
        reader = report.streamer.reader
        assert (reader._threads, reader.nocache) == (2, True)
        trace = report.streamer.trace = Trace()
        layers = report.streamer.counters.layers
        before = {path: layer.hits + layer.misses for path, layer in layers.items()}
        assert engine.run(wide)[0].content == resident
        shown = report.to_json()
    for path, layer in layers.items():
        asked = sum(len(call.experts) for call in trace.calls if call.layer == path)
        assert layer.hits + layer.misses - before[path] == asked
        assert layer.evictions == layer.misses - layer.swept - slots  # all slots are full by now
        assert layer.swept > 16  # more than both banks hold
        assert layer.tokens >= 24
    assert shown["sweeps"] >= len(layers)
    assert shown["sweep_bytes"] == sum(x.swept for x in layers.values()) * report.record_bytes
    assert shown["bytes"] == shown["misses"] * report.record_bytes
    assert 0 < shown["reads"] <= 3 * shown["misses"]  # adjacent experts are one read
    assert shown["syncs"] == sum(layer.calls for layer in layers.values())
    for name in ("read_wall_s", "read_busy_s", "sync_s", "gb_per_s", "hits", "evictions"):
        assert shown[name] > 0, name


def test_nothing_is_read_over_weights_that_an_output_still_needs(tmp_path):
    folder = make_model("qwen3_moe", tmp_path, num_experts=40)

    def experts(options):
        loaded = load_weights(folder, "", Device.CPU, lambda *_: None, options)
        return loaded.model.layers[0].mlp.switch_mlp

    resident, streamed = experts(None), experts(StreamOptions(slots=2))
    x = mx.random.normal((1, 40, 64))
    first, other = mx.array([[[0, 1]]]), mx.array([[[2, 3]]])
    output = streamed(x[:, :1], first)
    mx.eval(streamed(x[:, :1], other))  # takes the slots of an output that nobody evaluated
    assert mx.array_equal(output, resident(x[:, :1], first))
    slow = mx.ones((1024, 1024))
    for _ in range(4):
        slow = 1e-3 * (slow @ slow)
    late = x + 0 * slow[0, 0]  # not there yet when the banks are filled for the second time
    each = mx.arange(40)[None, :, None]
    assert mx.allclose(streamed(late, each), resident(x, each), rtol=1e-4, atol=1e-4)


def test_memory_left_over_from_slots_makes_layers_whole(tmp_path):
    folder = make_model("qwen3_moe", tmp_path, num_experts=12, num_hidden_layers=4)
    with EngineHarness(folder) as engine:
        whole, resident = engine.session.facts.weight_bytes, engine.run(job())[0].content
    with EngineHarness(folder, stream_experts="on", expert_slots=4) as engine:
        record, least = engine.session.streaming.record_bytes, engine.session.facts.weight_bytes
        assert least == whole - 4 * 8 * record
    room = {"expert_slots": 4, "resident_bytes": least + 17 * record}  # two layers, and a rest
    with EngineHarness(folder, stream_experts="on", **room) as engine:
        assert engine.session.facts.weight_bytes == least + 16 * record
        report = engine.session.streaming
        assert (report.streamed_layers, report.resident_layers) == (2, 2)
        assert engine.run(job())[0].content == resident
        assert report.to_json()["problems"] == []


def test_contradicting_counters_are_an_error_in_the_log(tmp_path, caplog):
    folder = make_model("qwen3_moe", tmp_path, num_experts=12)
    with EngineHarness(folder, stream_experts="on", expert_slots=2) as engine:
        engine.run(job())
        engine.mlx.call(engine.session.watcher.idle).result(10)
        assert not [one for one in caplog.records if "slow BLAS" not in one.getMessage()]
        report = engine.session.streaming
        report.streamer.counters.bytes = 0  # a reader that forgot to count
        engine.mlx.call(engine.session.watcher.idle).result(10)
        engine.mlx.call(engine.session.watcher.idle).result(10)
        assert report.to_json()["degraded"]
        errors = [r for r in caplog.records if "contradict" in r.getMessage()]
        assert len(errors) == 1


def test_policy_learned_from_requests_is_used_by_the_next_load(tmp_path, monkeypatch):
    monkeypatch.setattr(policy_choice, "MAX_CALLS", 40)
    monkeypatch.setattr(policy_choice, "LEAST_GAIN", -1.0)  # any gain counts
    folder = make_model("qwen3_moe", tmp_path / "model", num_experts=12)
    options = {"stream_experts": "on", "expert_slots": 4, "records_dir": tmp_path / "records"}
    with EngineHarness(folder, **options) as engine:
        engine.run(job("a"), job("b", "hello world "))
        engine.mlx.call(engine.session.watcher.idle).result(20)
        assert engine.session.streaming.streamer.trace is None
    [kept] = (tmp_path / "records" / "slot-policies").iterdir()
    choice = policy_choice.PolicyChoice.load(kept)
    assert choice.slots == 4
    assert policy_choice.kept_policy(kept, 4) is choice.policy
    assert policy_choice.kept_policy(kept, 8) is PolicyKind.LRU
    policy_choice.PolicyChoice(PolicyKind.LFU, 4, {}).save(kept)
    with EngineHarness(folder, **options) as engine:
        assert engine.session.streaming.to_json()["policy"] == "lfu"


def test_a_load_begins_with_the_experts_that_sat_in_slots(tmp_path):
    folder = make_model("qwen3_moe", tmp_path / "model", num_experts=12)
    options = {"stream_experts": "on", "expert_slots": 6, "records_dir": tmp_path / "records"}
    with EngineHarness(folder, **options) as engine:
        cold = engine.run(job())[0].content
        engine.mlx.call(engine.session.watcher.idle).result(20)
        sat = {layer.path: layer.wanted() for layer in engine.session.streaming.streamer.slotted}
    with EngineHarness(folder, **options) as engine:
        streaming = engine.session.streaming
        assert {layer.path: layer.wanted() for layer in streaming.streamer.slotted} == sat
        before = streaming.to_json()
        assert before["problems"] == []
        assert before["prefetched"] > 0  # what was read back, counted as read ahead
        assert engine.run(job())[0].content == cold
        assert streaming.to_json()["problems"] == []
    [kept] = (tmp_path / "records" / "expert-slots").iterdir()
    kept.write_text('{"model.layers.0.mlp.switch_mlp": [99]}')
    with EngineHarness(folder, **options) as engine:
        assert engine.run(job())[0].content == cold


def test_unreadable_expert_ends_the_request_and_the_next_one_is_served(tmp_path):
    folder = make_model("qwen3_moe", tmp_path, num_experts=12)
    with EngineHarness(folder, stream_experts="on", expert_slots=2) as engine:
        sound = engine.run(job("a"))[0].content
        reader = engine.session.streaming.streamer.reader
        works = reader.preadv
        for number, broken in enumerate((lambda *_: 0, _io_error)):
            reader.preadv = broken
            failed = engine.run(job(f"b{number}", "other words " * 9))[0].finished
            assert failed.reason is EndReason.ERROR
            assert "model.safetensors" in str(failed.fault)
            reader.preadv = works
            assert engine.run(job(f"c{number}"))[0].content == sound
        counters = engine.session.streaming.to_json()
        assert counters["read_errors"] == 2
        assert counters["problems"] == []


def _io_error(*_):
    raise OSError(errno.EIO, "input/output error")


def test_only_slots_are_resident(tmp_path):
    folder = make_model("qwen3_moe", tmp_path, num_experts=64, moe_intermediate_size=256)
    with EngineHarness(folder) as engine:
        whole = engine.session.facts.weight_bytes
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    with EngineHarness(folder, stream_experts="on", expert_slots=2) as engine:
        record = engine.session.streaming.record_bytes
        assert engine.session.facts.weight_bytes == whole - 2 * 62 * record
        engine.run(job())
        # One layer's bank is 64 records; slots of both layers and the two banks are 20.
        assert mx.get_peak_memory() - before < whole - 2 * 64 * record + 40 * record
