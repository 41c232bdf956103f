"""Every model class of mlx-lm, its layers or experts on disk: bit-equal to the resident model or
refused by name, tied or not, and also after a disk that failed. Never zeros.
"""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import every_class
import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache

from swiftlm_engine.brain.facts import ModelFilesError, read_model
from swiftlm_engine.brain.plan import BadPlanRequest, MachineLimits, PlanRequest, Toggle, make_plan
from swiftlm_engine.brain.plan.layer_streaming import NEVER_CALLED
from swiftlm_engine.load import weights
from swiftlm_engine.load.device import Device
from swiftlm_engine.load.weights import LoadedWeights, load_weights
from swiftlm_engine.messages import EngineFault
from swiftlm_engine.split import cpu_gpu
from swiftlm_engine.streaming.reader import ReadFault
from swiftlm_engine.streaming.report import StreamMode, StreamOptions

PROMPT = [(37 * i) % 300 for i in range(40)]
# Unlike the others: no call, a keyword, a head that goes, and learned positions.
QUICK = {
    ("iquestloopcoder", False), ("gptj", False), ("gemma3_text", True), ("recurrent_gemma", True),
    ("gpt2", True),
}  # fmt: skip
# mlx-lm has no tied form of these, or drops the head of a config that says so.
NEVER_TIED = frozenset({
    "Klear", "baichuan_m1", "dbrx", "deepseek", "deepseek_v2", "deepseek_v3", "deepseek_v32",
    "deepseek_v41", "glm4", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "gpt_oss", "gptj",
    "helium", "kimi_k25", "kimi_vl", "llama4", "longcat_flash", "longcat_flash_ngram",
    "mimo_v2_flash", "minicpm", "nanochat", "nemotron_h", "phi", "phimoe", "phixtral", "pixtral",
    "plamo", "qwen", "qwen2_moe", "qwen3_vl_moe", "solar_open", "stablelm", "step3p5", "talkie",
})  # fmt: skip
# All their layers are of kinds of which there are two at most: there is nothing to take turns.
NOTHING_TO_STREAM = frozenset({"nemotron-nas"})


def cases() -> list:
    wanted = [
        (name, tied)
        for name in every_class.class_names()
        for tied in (False, True)
        if not (tied and name in NEVER_TIED)
    ]
    marks = {True: (), False: (pytest.mark.slow,)}
    return [pytest.param(*case, marks=marks[case in QUICK]) for case in wanted]


@pytest.fixture(autouse=True)
def no_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights alone are asked here, and transformers does not know every class."""
    monkeypatch.setattr(weights, "load_tokenizer", lambda *_, **__: None)
    monkeypatch.setattr(weights, "_take_processor_template", lambda *_: None)


def load(folder: Path, stream: StreamOptions | None = None) -> LoadedWeights:
    return load_weights(folder, "", Device.CPU, lambda *_: None, stream)


def logits(model) -> mx.array:
    """Of a prompt, of tokens decoded behind it, and of another prompt."""
    caches = make_prompt_cache(model)
    found = [model(mx.array([PROMPT]), cache=caches)]
    found += [model(mx.array([[token]]), cache=caches) for token in (5, 9, 200, 7)]
    found.append(model(mx.array([[5, 6, 7]]), cache=make_prompt_cache(model)))
    together = mx.concatenate(found, axis=1)
    mx.eval(together)
    return together


class Disk:
    """A `preadv` that fails in one of several ways, now and then, once it is told to."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.fails = False

    def __call__(self, fd: int, views, offset: int) -> int:
        kind = self._random.choice(["eio", "end", "short", "memory"] + ["right"] * 40)
        if not self.fails or kind == "right":
            return os.preadv(fd, views, offset)
        if kind == "short":
            return os.preadv(fd, [views[0][: max(1, len(views[0]) // 2)]], offset)
        if kind == "end":
            return 0
        for view in views:  # what is torn is seen if it is ever computed with
            view[:] = b"\xff" * len(view)
        if kind == "memory":
            raise MemoryError
        raise OSError(errno.EIO, "input/output error")


@pytest.mark.parametrize(("name", "tied"), cases())
def test_streamed_layers_are_bit_equal_or_refused_by_name_and_survive_a_bad_disk(
    name: str, tied: bool, tmp_path: Path
) -> None:
    folder = every_class.make_class(name, tmp_path, tied=tied)
    expected = logits(load(folder).model)
    disk = Disk(seed=len(name))
    options = StreamOptions(mode=StreamMode.LAYERS, preadv=disk)
    if name in NEVER_CALLED:
        with pytest.raises(EngineFault, match="--stream-experts off"):
            load(folder, options)
        return
    loaded = load(folder, options)
    report, model = loaded.streaming, loaded.model
    assert report is not None
    try:
        assert (report.streamed_layers > 0) is (name not in NOTHING_TO_STREAM)
        assert mx.array_equal(logits(model), expected, equal_nan=True)
        disk.fails = True
        for _ in range(4):
            try:
                assert mx.array_equal(logits(model), expected, equal_nan=True)
            except ReadFault:
                continue
        disk.fails = False
        assert mx.array_equal(logits(model), expected, equal_nan=True)
        assert report.to_json()["problems"] == []
    finally:
        report.streamer.close()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=() if n in {"iquestloopcoder", "gptj"} else pytest.mark.slow)
        for n in every_class.class_names()
    ],
)
def test_layers_on_two_devices_compute_where_they_were_put_or_are_refused(
    name: str, tmp_path: Path
) -> None:
    folder = every_class.make_class(name, tmp_path)
    model = load(folder).model
    expected = logits(model)
    if name in NEVER_CALLED:
        with pytest.raises(EngineFault, match="--gpu-layers all"):
            cpu_gpu.install(model, 2, mx.new_stream(mx.cpu))
        return
    cpu_gpu.install(model, 2, mx.new_stream(mx.cpu))
    assert mx.allclose(logits(model), expected, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("name", sorted(NEVER_CALLED))
def test_the_plan_refuses_what_the_engine_would_refuse(name: str, tmp_path: Path) -> None:
    facts = read_model(every_class.make_class(name, tmp_path))
    machine = MachineLimits(ram_bytes=64 * 10**9)
    with pytest.raises(BadPlanRequest, match=rf"{name}.*--stream-experts off"):
        make_plan(facts, PlanRequest(stream=Toggle.ON), machine)
    with pytest.raises(BadPlanRequest, match=rf"{name}.*--gpu-layers all"):
        make_plan(facts, PlanRequest(gpu_layers=1), machine)
    small = MachineLimits(ram_bytes=facts.checkpoint_bytes // 2)
    assert make_plan(facts, PlanRequest(), small).layers is None


@pytest.mark.slow
@pytest.mark.parametrize("name", every_class.class_names())
def test_experts_are_bit_equal_or_refused_by_name(name: str, tmp_path: Path) -> None:
    folder = every_class.make_class(name, tmp_path)
    expected = decoded(load(folder).model)
    try:
        plan = make_plan(
            read_model(folder), PlanRequest(stream=Toggle.ON), MachineLimits(ram_bytes=64 * 10**9)
        )
    except (BadPlanRequest, ModelFilesError):
        plan = None
    options = StreamOptions(slots=2, mode=StreamMode.EXPERTS)
    if plan is None or plan.streaming is None:
        with pytest.raises(EngineFault, match="--stream-experts off"):
            load(folder, options)
        return
    loaded = load(folder, options)
    report = loaded.streaming
    assert report is not None
    assert mx.array_equal(decoded(loaded.model), expected)
    counters = report.to_json()
    report.streamer.close()
    assert (counters["problems"], counters["misses"] > 0) == ([], True)


def decoded(model) -> mx.array:
    """Token by token: a prompt swept through banks sums in another order."""
    caches = make_prompt_cache(model)
    steps = [model(mx.array([[token]]), cache=caches) for token in PROMPT[:8]]
    together = mx.concatenate(steps, axis=1)
    mx.eval(together)
    return together
