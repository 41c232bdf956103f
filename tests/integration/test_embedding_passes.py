"""A long text is embedded in passes: nobody who reads an answer waits for all of it, and the vector
is that of one pass."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import nullcontext

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.utils import load
from tiny_models import NAMES, make_model

from swiftlm_engine.messages import EngineFault
from swiftlm_engine.run.embedder import Embedder
from swiftlm_engine.schedule.kv_budget import LimitedKV
from swiftlm_engine.schedule.scheduler import Limits, Scheduler

pytestmark = pytest.mark.usefixtures("on_the_cpu")

QUICK = ("llama", "gemma3_text", "qwen3_next")
# Their hidden states are not where the embedder looks: embeddings are refused.
REFUSED = {"mamba2", "ministral3", "llama4", "gemma4", "gemma4_moe", "gemma4_e2b"}
FAMILIES = [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
    for name in NAMES
    if name not in REFUSED
]
IDS = [5 + i * i % 300 for i in range(300)]


class OfSize:
    """Passes of so many tokens."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.done: list[tuple[int, int]] = []

    def side_pass_tokens(self, left: int) -> int:
        return min(left, self.size)

    def side_pass_done(self, tokens: int, seconds: float, depth: int) -> None:
        self.done.append((tokens, depth))


@pytest.fixture(scope="module", params=FAMILIES)
def model(request, tmp_path_factory):
    return load(str(make_model(request.param, tmp_path_factory.mktemp(request.param))))[0]


def vector(model, size: int) -> np.ndarray:
    sizes = OfSize(size)
    embedded = Embedder(model, mx.cpu, sizes).embed(IDS, 0)
    assert sizes.done == [(min(size, 300 - at), at) for at in range(0, 300, size)]
    return np.frombuffer(embedded, "<f4")


def test_vector_does_not_depend_on_how_the_text_was_cut(model):
    whole = vector(model, 300)
    assert np.linalg.norm(whole) == pytest.approx(1, abs=1e-5)
    for size in (64, 299):
        assert np.abs(vector(model, size) - whole).max() < 1e-4


def test_there_is_a_pause_behind_each_pass_but_the_last(tmp_path):
    model = load(str(make_model("llama", tmp_path)))[0]
    passes = Embedder(model, mx.cpu, OfSize(100)).passes(IDS, 0)
    assert isinstance(passes, Generator)
    assert len(list(passes)) == 2


def test_texts_beside_each_other_hold_no_more_kv_than_the_budget(tmp_path):
    model = load(str(make_model("llama", tmp_path)))[0]
    gate = LimitedKV(700)
    scheduler = Scheduler(Limits(), lambda: 0.0, gate)
    embedder = Embedder(model, mx.cpu, OfSize(100), scheduler, lambda tokens: tokens)
    whole = np.frombuffer(Embedder(model, mx.cpu, OfSize(100)).embed(IDS, 0), "<f4")
    texts = [embedder.passes(IDS, 0) for _ in range(5)]
    vectors: list[bytes] = []
    for _ in range(12):  # in turns, as several clients ask
        for text in list(texts):
            try:
                next(text)
            except StopIteration as end:
                vectors.append(end.value)
                texts.remove(text)
            assert gate.reserved_bytes <= 700
    assert [np.array_equal(np.frombuffer(v, "<f4"), whole) for v in vectors] == [True] * 5
    assert gate.reserved_bytes == 0


def test_a_text_that_is_given_up_gives_its_kv_back(tmp_path):
    model = load(str(make_model("llama", tmp_path)))[0]
    gate = LimitedKV(700)
    scheduler = Scheduler(Limits(), lambda: 0.0, gate)
    text = Embedder(model, mx.cpu, OfSize(100), scheduler, lambda n: n).passes(IDS, 0)
    next(text)
    assert gate.reserved_bytes == 300
    text.close()
    assert gate.reserved_bytes == 0


def test_a_text_that_can_never_be_held_is_refused_and_one_of_a_pass_is_not(tmp_path):
    model = load(str(make_model("llama", tmp_path)))[0]
    for size, refused in ((100, True), (300, False)):
        scheduler = Scheduler(Limits(), lambda: 0.0, LimitedKV(200))
        embedder = Embedder(model, mx.cpu, OfSize(size), scheduler, lambda tokens: tokens)
        with pytest.raises(EngineFault, match="in parts") if refused else nullcontext():
            embedder.embed(IDS, 0)


def test_a_pass_takes_a_slice_where_somebody_is_served_and_learns_what_passes_cost():
    scheduler = Scheduler(Limits(slice_s=0.25, prefill_chunk=2048), lambda: 0.0)
    assert scheduler.side_pass_tokens(8000) <= 256  # a guess: a slow machine must not take 10 s
    for _ in range(8):
        count = scheduler.side_pass_tokens(8000)
        scheduler.side_pass_done(count, count / 1000, 0)
    assert scheduler.side_pass_tokens(8000) == pytest.approx(500, abs=20)  # nobody is here
    assert scheduler.side_pass_tokens(7) == 7
