"""Calibration of a real tiny model: figures of every kind, nothing left, a request comes first."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import mlx.core as mx
import pytest
from engine_harness import EngineHarness
from tiny_models import NAMES, make_model

from swiftlm_engine.brain.calibration import Record
from swiftlm_engine.messages import GenerateJob
from swiftlm_engine.prefix.snapshot import leaves_of
from swiftlm_engine.sampling.settings import SamplingSettings
from swiftlm_engine.server.calibration import Calibration
from swiftlm_engine.session.calibration import QUICK, measure
from swiftlm_proto import messages as m


@pytest.fixture(scope="module", params=["llama", "qwen3_next"])
def folder(request, tmp_path_factory) -> Path:
    return make_model(request.param, tmp_path_factory.mktemp(request.param))


def calibration(engine: EngineHarness, busy=lambda: False) -> Calibration:
    return Calibration(engine.session.subject, engine.session.folder.path, engine.mlx, busy)


async def test_every_figure_is_measured_and_nothing_stays_behind(folder: Path) -> None:
    with EngineHarness(folder, prefill_chunk=32, context=160) as engine:
        before = engine.mlx.call(mx.get_active_memory).result(5)
        events = [event async for event in calibration(engine).run(full=False)]
        record = Record.from_json(json.loads(events[-1].record))
        after = engine.mlx.call(mx.get_active_memory).result(5)
    assert {row.chunk for row in record.prefill} == {32, 16}
    depths = [row.depth for row in record.prefill if row.chunk == 32]
    assert depths == sorted(set(depths))
    assert depths[-1] > 2 * 32  # chunks deep in a long prompt, too
    assert {row.width for row in record.decode} == {1, 2, 4}
    assert max(row.depth for row in record.decode) > depths[-1]
    assert all(row.scratch_bytes > 0 for row in record.prefill)
    assert record.memory_bytes_s.low > 0
    assert record.choices.prefill_chunk in (32, 16)
    assert after - before < 1024  # the random state stays
    fractions = [event.fraction for event in events]
    assert fractions == sorted(fractions)


async def test_a_request_ends_a_measurement_and_is_answered(folder: Path) -> None:
    job = GenerateJob("r", "hello", SamplingSettings(temperature=0.0), max_tokens=4)
    with EngineHarness(folder, prefill_chunk=32) as engine:
        run = calibration(engine, busy=lambda: engine.session.has_work)
        events = []
        async for event in run.run(full=False):
            events.append(event)
            if len(events) == 3:
                prepared = engine.session.preparer.prepare(job)
                engine.mlx.call(_hold, engine, prepared).result(10)
        assert events[-1].fault is not None
        assert events[-1].fault.kind is m.FaultKind.BUSY
        engine.mlx.call(engine.mlx.drive, engine.session).result(5)
        answers = engine.collect(1)
    assert answers["r", 0].finished is not None
    assert answers["r", 0].finished.fault is None


GPT2 = {
    "model_type": "gpt2",
    "n_embd": 64,
    "n_head": 4,
    "n_layer": 2,
    "n_positions": 64,
    "n_ctx": 64,
    "layer_norm_epsilon": 1e-5,
}
SLOW = [
    pytest.param(name, context, marks=pytest.mark.slow)
    for name in NAMES
    for context in (16, 64, 256)
]


@dataclass
class Watched:
    """A model, and the deepest position that any of its caches reached."""

    model: object
    deepest: int = 0

    def __call__(self, ids: mx.array, cache: list) -> mx.array:
        logits = self.model(ids, cache=cache)
        for leaf in leaves_of(cache):
            offset = mx.array(getattr(leaf, "offset", 0)).max().item()
            self.deepest = max(self.deepest, int(offset))
        return logits


@pytest.mark.parametrize(("name", "context"), [("gpt2", 64), ("gpt_oss", 64), *SLOW])
def test_no_position_behind_the_context_is_ever_computed(name, context, tmp_path) -> None:
    folder = make_model(GPT2 if name == "gpt2" else name, tmp_path)
    with EngineHarness(folder, context=context, prefill_chunk=512) as engine:
        watched = Watched(engine.session.subject.model)
        subject = replace(engine.session.subject, model=watched)
        engine.mlx.call(lambda: list(measure(subject, QUICK))).result(300)
    assert watched.deepest <= context


def _hold(engine: EngineHarness, prepared) -> None:
    """Queues a request that is not stepped yet, so that it is surely seen waiting."""
    engine.mlx.drive(_Waiting())
    engine.session.engine.submit(prepared)


class _Waiting:
    has_work = False

    def step(self) -> None: ...

    def idle(self) -> bool:
        return False
