"""The KV self-test against faults planted in what it tests: a kernel, the storage, the batch.

Each fault stands for one that a kernel, or a change of ours, could have. The sound code passes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import mlx.core as mx
import pytest
from mlx_lm import load
from tiny_models import make_model

from swiftlm_engine import turboquant
from swiftlm_engine.turboquant import policy
from swiftlm_engine.turboquant.attention import plain_attention
from swiftlm_engine.turboquant.backend import PlainBackend
from swiftlm_engine.turboquant.build import model_verdict
from swiftlm_engine.turboquant.cache import TurboBatchKVCache
from swiftlm_engine.turboquant.codec import Pages
from swiftlm_engine.turboquant.formats import PAGE_TOKENS, SEGMENT_PAGES, SINK_TOKENS
from swiftlm_engine.turboquant.sequence import SequenceKV

TEXT = [(11 * i * i + 5 * i) % 300 + 20 for i in range(512)]
STREAMED = 256  # a chunk size: fewer tokens are decoded then, and each fault must show all the same


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory):
    folder = make_model("llama", tmp_path_factory.mktemp("model"), num_hidden_layers=1)
    loaded = load(str(folder))[0]
    turboquant.install(loaded)
    return loaded


@pytest.fixture(autouse=True)
def generous(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random weights are far off by the format alone; what is planted must show in spite of it."""
    monkeypatch.setattr(policy, "MAX_KLD", 0.1)


def measured(model) -> policy.MeasuredError:
    ids = policy.test_ids(TEXT, 100_000)
    return policy.measure(model, ids, model_verdict(model, "k4v4"), STREAMED)


Attend = Callable[[SequenceKV, mx.array, float], mx.array]


def sound(kv: SequenceKV, queries: mx.array, scale: float) -> mx.array:
    return PlainBackend().attend(kv, queries, scale)


def decoding(fault: Attend, least_pages: int = 1) -> Attend:
    """The fault where few rows are asked over compressed tokens, as only decoding does."""

    def attend(kv: SequenceKV, queries: mx.array, scale: float) -> mx.array:
        few = queries.shape[-2] <= 4 and kv.num_pages >= least_pages
        return fault(kv, queries, scale) if few else sound(kv, queries, scale)

    return attend


def over(change: Callable[[SequenceKV, mx.array], mx.array]) -> Attend:
    """Attention over keys and values, both (H, N, d), that were changed on the way."""

    def attend(kv: SequenceKV, queries: mx.array, scale: float) -> mx.array:
        keys, values = (change(kv, x) for x in kv.keys_and_values())
        return plain_attention(queries, keys, values, scale)

    return attend


def without(start: int, stop: int) -> Callable[[SequenceKV, mx.array], mx.array]:
    return lambda kv, x: mx.concatenate([x[:, :start], x[:, stop:]], axis=1)


def end_of_pages(kv: SequenceKV) -> int:
    return SINK_TOKENS + kv.num_pages * PAGE_TOKENS


def changed_out(change: Callable[[mx.array], mx.array]) -> Attend:
    return lambda kv, queries, scale: change(sound(kv, queries, scale))


def one_head(value: float) -> Callable[[mx.array], mx.array]:
    return lambda out: mx.concatenate([mx.full(out[:, :1].shape, value), out[:, 1:]], axis=1)


def sees_the_future(kv: SequenceKV, queries: mx.array, scale: float) -> mx.array:
    parts = mx.split(queries, queries.shape[-2], axis=-2)
    keys, values = kv.keys_and_values()
    return mx.concatenate([plain_attention(q, keys, values, scale) for q in parts], axis=-2)


def hides_one_more(kv: SequenceKV, queries: mx.array, scale: float) -> mx.array:
    keys, values = kv.keys_and_values()
    return plain_attention(queries, keys[:, :-1], values[:, :-1], scale)


def unweighted_merge(kv: SequenceKV, queries: mx.array, scale: float) -> mx.array:
    cut = SINK_TOKENS + SEGMENT_PAGES * PAGE_TOKENS
    keys, values = kv.keys_and_values()
    if kv.num_pages <= SEGMENT_PAGES or queries.shape[-2] > 1:
        return sound(kv, queries, scale)
    parts = [(keys[:, :cut], values[:, :cut]), (keys[:, cut:], values[:, cut:])]
    return sum(plain_attention(queries, k, v, scale) for k, v in parts) / 2


def first_mean_everywhere(kv: SequenceKV, queries: mx.array, scale: float) -> mx.array:
    means = mx.repeat(kv.means[:, :1], kv.means.shape[1], axis=1)
    return sound(replace(kv, means=means), queries, scale)


def no_equaliser(kv: SequenceKV, queries: mx.array, scale: float) -> mx.array:
    return sound(replace(kv, equaliser=mx.ones_like(kv.equaliser) * 1.5), queries, scale)


def stale_zone(kv: SequenceKV, queries: mx.array, scale: float) -> mx.array:
    """Writes a decoded token one place too far down."""
    out = sound(kv, queries, scale)
    zone, at = kv.settled() + 0, kv.num_exact - 1
    zone[:, :, at] = zone[:, :, at - 1]
    kv.adopt_zone(zone)
    return out


ATTEND: dict[str, Attend] = {
    "a few rows are answered zeros": decoding(changed_out(mx.zeros_like)),
    "zeros from the ninth page on": decoding(changed_out(mx.zeros_like), 9),
    "the newest token is not seen": decoding(over(lambda kv, x: x[:, :-1])),
    "the sinks are not seen": decoding(over(without(0, SINK_TOKENS))),
    "the newest page is not seen": decoding(
        over(lambda kv, x: without(end_of_pages(kv) - PAGE_TOKENS, end_of_pages(kv))(kv, x))
    ),
    "the oldest page is not seen": decoding(over(without(SINK_TOKENS, SINK_TOKENS + PAGE_TOKENS))),
    "the exact zone is not seen": decoding(
        over(lambda kv, x: x[:, : end_of_pages(kv)]),
    ),
    "the second segment is not seen": decoding(
        over(
            lambda kv, x: without(
                SINK_TOKENS + SEGMENT_PAGES * PAGE_TOKENS, max(end_of_pages(kv), 516)
            )(kv, x)
        ),
        SEGMENT_PAGES + 1,
    ),
    "two segments are merged without weights": decoding(unweighted_merge),
    "every segment has the first one's mean": decoding(first_mean_everywhere),
    "another equaliser": decoding(no_equaliser),
    "heads in another order": decoding(changed_out(lambda out: out[:, ::-1])),
    "query heads of another group": decoding(changed_out(lambda out: mx.roll(out, 1, axis=1))),
    "another scale": decoding(lambda kv, q, scale: sound(kv, q, scale * 1.3)),
    "a drafted row sees the rows behind it": decoding(sees_the_future),
    "every row sees one token less": decoding(hides_one_more),
    "a head that is not a number": decoding(changed_out(one_head(float("nan")))),
    "a head of zeros": decoding(changed_out(one_head(0.0))),
    "a head of zeros in the prompt alone": lambda kv, q, scale: (
        sound(kv, q, scale) if q.shape[-2] <= 4 else changed_out(one_head(0.0))(kv, q, scale)
    ),
    "a decoded token is written over": decoding(stale_zone),
}
# In a run of everybody's tests; the others are run by `make soak`.
QUICK = {"zeros from the ninth page on", "a decoded token is written over"}


def cases(names: list[str], quick: set[str]) -> list:
    slow = pytest.mark.slow
    return [pytest.param(name, marks=() if name in quick else slow) for name in names]


def test_sound_code_passes(model) -> None:
    found = measured(model)
    assert policy.passes(found)
    assert found.path_error < 0.01


@pytest.mark.parametrize("name", cases([*ATTEND], QUICK))
def test_a_fault_of_a_kernel_is_caught(model, monkeypatch, name: str) -> None:
    backend = PlainBackend()
    backend.attend = ATTEND[name]  # type: ignore[method-assign]
    monkeypatch.setattr(policy, "default_backend", lambda: backend)
    found = measured(model)
    assert not policy.passes(found)
    assert not found.path_error <= policy.MAX_PATH_ERROR  # named as what it is


def halved(pages: Pages) -> Pages:
    words, scalars, values, scales = pages.arrays()
    return Pages(words, scalars * 0.4, values, scales * 0.4)


ENCODE: dict[str, Callable[[Pages], Pages]] = {
    "pages in another order": lambda pages: Pages(*(mx.roll(a, 1, 1) for a in pages.arrays())),
    "the first page again and again": lambda pages: Pages(
        *(mx.repeat(a[:, :1], a.shape[1], axis=1) for a in pages.arrays())
    ),
    "tokens of a page in another order": lambda pages: Pages(
        pages.arrays()[0][..., ::-1], *pages.arrays()[1:]
    ),
    "scales of less than half": halved,
    "heads in another order": lambda pages: Pages(*(a[::-1] for a in pages.arrays())),
    "the last page is empty": lambda pages: Pages(
        *(mx.concatenate([a[:, :-1], mx.zeros_like(a[:, -1:])], axis=1) for a in pages.arrays())
    ),
}


@pytest.mark.parametrize("name", cases([*ENCODE], {"the last page is empty"}))
def test_a_fault_of_what_is_encoded_is_caught(model, monkeypatch, name: str) -> None:
    backend = PlainBackend()
    whole = backend.encode
    backend.encode = lambda kv, count: ENCODE[name](whole(kv, count))  # type: ignore[method-assign]
    monkeypatch.setattr(policy, "default_backend", lambda: backend)
    assert not policy.passes(measured(model))


def cut_one_more(self: SequenceKV, count: int) -> int:
    return TRIM(self, count + 1) - 1


def forked_without_a_page(self: SequenceKV) -> SequenceKV:
    twin = FORK(self)
    twin.num_pages = max(0, twin.num_pages - 1)
    return twin


def rows_swapped(self: TurboBatchKVCache, queries: mx.array, scale: float) -> mx.array:
    return BATCH(self, queries, scale)[::-1]


def flushed_one_too_many(self: SequenceKV, queries: mx.array, encode) -> None:
    before = self.num_pages
    FLUSH(self, queries, encode)
    if self.num_pages > before:
        self.num_exact -= 1


TRIM, FORK, FLUSH = SequenceKV.trim, SequenceKV.fork, SequenceKV.flush
BATCH = TurboBatchKVCache.attend
STORAGE = {
    "a draft is cut one token too deep": (SequenceKV, "trim", cut_one_more),
    "a draft is not cut": (SequenceKV, "trim", lambda self, count: count),
    "a fork lacks a page": (SequenceKV, "fork", forked_without_a_page),
    "rows of a batch change places": (TurboBatchKVCache, "attend", rows_swapped),
    "a flush drops a token": (SequenceKV, "flush", flushed_one_too_many),
}


@pytest.mark.parametrize("name", cases([*STORAGE], set()))
def test_a_fault_of_the_storage_is_caught(model, monkeypatch, name: str) -> None:
    owner, method, fault = STORAGE[name]
    monkeypatch.setattr(owner, method, fault)
    assert not policy.passes(measured(model))


def test_no_token_behind_the_models_context_is_fed(model) -> None:
    for context in (16, 64, 300, 512):
        assert len(policy.test_ids(TEXT, context)) == context
    assert len(policy.test_ids(TEXT[:100], 100_000)) > 704
