"""Which KV format each layer of a model gets: by its config (`decide`), then by measurement.

The self-test runs the loaded model twice over a text, exact KV beside compressed KV, chunk by chunk
and then as it decodes (token by token over a flush, a few drafted ones, rows of a batch), and
compares the logits; every compressed layer also reports how far its own attention output is off,
from exact KV and from plain arithmetic over what it holds (`probe.py`). Of many layers a sample
does so first, and all of them where that does not pass. Too far: the layers that stick out go back
to exact KV. Still too far: the format has failed on this model, and keys of eight
bits are tried, to be able to say what would pass. The outcome is kept under the identity of the
weights (`layer_support_file.py`).
"""

import copy
import logging
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache, make_prompt_cache

from swiftlm_engine.run.row_caches import RowCaches
from swiftlm_engine.turboquant.backend import default_backend
from swiftlm_engine.turboquant.build import make_caches, model_verdict
from swiftlm_engine.turboquant.cache import TurboBatchKVCache, TurboKVCache
from swiftlm_engine.turboquant.formats import K8V3, RECENT_TOKENS, SINK_TOKENS
from swiftlm_engine.turboquant.layer_support import LayerVerdict, Verdict, decide
from swiftlm_engine.turboquant.layer_support_file import (
    MeasuredError,
    Outcome,
    read_outcome,
    write_outcome,
)
from swiftlm_engine.turboquant.probe import Probe

__all__ = ["MAX_KLD", "TEST_TOKENS", "MeasuredError", "Outcome", "decide", "measure", "self_test"]

MAX_KLD = 0.02  # nats per token; 8-bit KV as mlx-lm makes it costs more on some models
# Few tokens are decoded, and behind all others: their mean is larger and less certain.
_DECODE_SLACK, _DECODE_KLD = 4.0, 0.08
_BATCH_KLD = 0.01  # a row in a batch differs from the same row alone by rounding only
MAX_PATH_ERROR = 1.0  # of what rounding is allowed to cost (`probe.py`)
TEST_TOKENS = 512  # whose KLD counts
_DEPTH = 704  # tokens before the first decoded one: a second segment, and a flush soon after
_CHUNK = 64
_SINGLES = 16  # tokens decoded one by one
_STREAMED_SINGLES = 5  # each of which reads all weights from disk; the fourth one flushes
_GROUP = 3  # a draft, of which all but one are taken back
_ROW_STEPS = 2  # between two rows of a batch, and together
SAMPLE = 8  # layers whose attention is judged at first
_STICKS_OUT = 3.0  # times the median error of the layers

Progress = Callable[[float], None]
Test = Callable[[nn.Module, Sequence[int], Verdict, int], MeasuredError]

log = logging.getLogger(__name__)


def self_test(
    model: nn.Module,
    token_ids: Sequence[int],
    mode: str,
    record: Path | None,
    chunk: int = _CHUNK,
    test: Test | None = None,
    quick: Test | None = None,
) -> Outcome:
    """How `mode` does on this model; blocks the MLX thread for two short prefills or more.

    `test` measures one verdict: here, unless the model is split over several processes. `quick`
    does so by a sample; what passes it is not measured again.

    `record` is the file for just this model and mode: the outcome is read from there if it is
    known, else kept there. The model must be installed. Evaluated.
    """
    known = None if record is None else read_outcome(record, mode)
    if known is not None:
        return known
    outcome = _escalate(model, list(token_ids), mode, chunk, test or measure, quick)
    if record is not None:
        write_outcome(record, mode, outcome)
    return outcome


def passes(measured: MeasuredError) -> bool:
    """Nothing that is not a number does."""
    return (
        measured.kld <= MAX_KLD
        and measured.decode_kld <= max(_DECODE_SLACK * MAX_KLD, _DECODE_KLD)
        and measured.path_error <= MAX_PATH_ERROR
    )


def test_ids(token_ids: Sequence[int], max_context: int) -> list[int]:
    """The text, repeated until a second segment opens and some tokens are decoded behind it; no
    longer than the model's context, behind which its tables may end."""
    length = min(max_context, _DEPTH + _SINGLES + _GROUP + _ROW_STEPS + 1)
    text = list(token_ids)[:TEST_TOKENS]
    return (text * -(-length // max(1, len(text))))[:length]


def measure(
    model: nn.Module,
    token_ids: Sequence[int],
    verdict: Verdict,
    chunk: int = _CHUNK,
    progress: Progress = lambda fraction: None,
    sample: int = 0,
) -> MeasuredError:
    """What one verdict comes to; `progress` counts up to 1. `sample`: the most layers whose
    attention is judged (0 = all), evenly spread, the first and the last among them. Evaluated."""
    walk = _Walk(model, verdict, _sampled(verdict.num_compressed_layers, sample))
    singles = _SINGLES if chunk <= _CHUNK else _STREAMED_SINGLES
    ids = list(token_ids)
    decoded = singles + _GROUP + _ROW_STEPS + 1
    depth = len(ids) - decoded if len(ids) >= 2 * decoded else len(ids)
    # A decoded token costs about a tenth of a chunk.
    total = depth + (len(ids) - depth) * chunk / 10
    progress(0.0)
    for start in range(0, depth, chunk):
        walk.feed(ids[start : min(depth, start + chunk)], counts=start < TEST_TOKENS)
        progress(min(depth, start + chunk) / total)
    if depth < len(ids):
        walk.decode(ids[depth:], singles, lambda n: progress((depth + n * chunk / 10) / total))
    progress(1.0)
    return walk.measured()


def _sampled(count: int, most: int) -> frozenset[int]:
    if not 1 < most < count:
        return frozenset(range(count))
    return frozenset(round(i * (count - 1) / (most - 1)) for i in range(most))


class _Walk:
    """One text over exact and over compressed caches side by side, and what they differed by."""

    def __init__(self, model: nn.Module, verdict: Verdict, judged: frozenset[int]) -> None:
        self._model = model
        self._verdict = verdict
        self._probe = Probe(default_backend(), judged.__contains__)
        self._turbo = make_caches(model, "", verdict, self._probe).caches
        self._exact = make_prompt_cache(model)
        self._num_fed = 0
        self._prefilled: list[float] = []  # KLD
        self._decoded: list[float] = []
        self._batch_error = 0.0  # of rows together, from the same rows alone

    def feed(self, ids: list[int], *, counts: bool) -> None:
        """A chunk of the prompt; what is too short to be compressed or too deep counts for no KLD,
        so that it is that of the same tokens for every model."""
        counts = counts and self._num_fed >= SINK_TOKENS + RECENT_TOKENS
        divergence = self._pass(ids)
        if counts:
            self._prefilled.append(divergence)

    def decode(self, ids: list[int], singles: int, decoded: Callable[[int], None]) -> None:
        """As served: one by one, a group with a part that is taken back, and rows of a batch."""
        for count, token in enumerate(ids[:singles], start=1):
            self._decoded.append(self._pass([token]))
            decoded(count)
        group = ids[singles : singles + _GROUP]
        self._decoded.append(self._pass(group))
        rest = ids[singles + _GROUP :]
        if _all_trimmable(self._exact) and _all_trimmable(self._turbo):
            for cache in (*self._turbo, *self._exact):
                cache.trim(_GROUP - 1)
            self._num_fed -= _GROUP - 1
        self._decoded.append(self._pass(rest[:1]))
        self._rows(rest[1:])

    def measured(self) -> MeasuredError:
        formats, paths = iter(self._probe.format_errors()), iter(self._probe.path_errors())
        own = [type(cache) is TurboKVCache for cache in self._turbo]
        return MeasuredError(
            self._verdict,
            statistics.fmean(self._prefilled) if self._prefilled else 0.0,
            tuple(next(formats, 0.0) if turbo else 0.0 for turbo in own),
            statistics.fmean(self._decoded) if self._decoded else 0.0,
            tuple(_worse(next(paths, 0.0), self._batch_error) if turbo else 0.0 for turbo in own),
        )

    def _pass(self, ids: list[int]) -> float:
        fed = mx.array([ids])
        self._num_fed += len(ids)
        divergence = _divergence(
            self._model(fed, cache=self._exact), self._model(fed, cache=self._turbo)
        )
        states = [c.state for c in self._turbo + self._exact if not c.empty()]
        mx.eval(divergence, states, self._probe.pending())
        for cache in self._turbo:
            if type(cache) is TurboKVCache:
                self._probe.expect(cache.kv, self._num_fed)
        return float(mx.mean(divergence).item())

    def _rows(self, ids: list[int]) -> None:
        """Two rows of unequal length decode together, each compared with itself alone."""
        *between, last = ids
        exact = [copy.deepcopy(self._exact)]
        rows = [self._forked(self._turbo)]
        for token in between:
            self._decoded.append(self._pass([token]))
        exact.append(self._exact)
        rows.append(self._turbo)
        asked = [between[0], last]
        singles = [self._forked(row) for row in rows]
        alone = [self._alone(asked, exact), self._alone(asked, singles)]
        batch = RowCaches()
        batch.extend(rows)
        for merged, *layer in zip(batch.only, *rows, strict=True):
            if isinstance(merged, TurboBatchKVCache):
                for row, origin in zip(merged.rows, layer, strict=True):
                    self._probe.follow_fork(row.kv, origin.kv)
        together = batch.forward(self._model, mx.array(asked))[None]
        from_exact, from_alone = (mx.mean(_divergence(one, together)) for one in alone)
        mx.eval(from_exact, from_alone, self._probe.pending())
        self._decoded.append(float(from_exact.item()))
        self._batch_error = float(from_alone.item()) / _BATCH_KLD

    def _alone(self, tokens: list[int], rows: list[list[Any]]) -> mx.array:
        """Logits (1, rows, V) of each row by itself."""
        outs = [
            self._model(mx.array([[token]]), cache=caches)[:, -1]
            for token, caches in zip(tokens, rows, strict=True)
        ]
        return mx.stack(outs, axis=1)

    def _forked(self, caches: list[Any]) -> list[Any]:
        """The compressed caches as they are now."""
        copies = copy.deepcopy(caches)
        for fork, origin in zip(copies, caches, strict=True):
            if type(fork) is TurboKVCache:
                self._probe.follow_fork(fork.kv, origin.kv)
        return copies


def _worse(first: float, second: float) -> float:
    """The larger one; infinite if one is not a number."""
    return max(first, second) if first + second < math.inf else math.inf


def _all_trimmable(caches: Sequence[Any]) -> bool:
    """By kind alone, so that every rank of a group says the same."""
    return all(
        type(cache) in (KVCache, TurboKVCache)
        or getattr(cache, "always_trimmable", False)
        or (hasattr(cache, "caches") and _all_trimmable(cache.caches))
        for cache in caches
    )


def _escalate(
    model: nn.Module,
    token_ids: list[int],
    mode: str,
    chunk: int,
    test: Test,
    quick: Test | None,
) -> Outcome:
    verdict = model_verdict(model, mode)
    if quick is not None and verdict.num_compressed_layers > SAMPLE:
        rough = quick(model, token_ids, verdict, chunk)
        if passes(rough):
            return Outcome(rough, passed=True)
    first = test(model, token_ids, verdict, chunk)
    if passes(first):
        return Outcome(first, passed=True)
    if not first.path_error <= MAX_PATH_ERROR:  # no format is to blame
        return Outcome(first, passed=False)
    log.warning("kv %s is too far off: kld %.4f; trying without some layers", mode, first.kld)
    without = _without_outliers(first)
    if 0 < without.num_compressed_layers < verdict.num_compressed_layers:
        second = test(model, token_ids, without, chunk)
        if passes(second):
            return Outcome(second, passed=True)
    if mode == K8V3.name:
        return Outcome(first, passed=False)
    eight = test(model, token_ids, _with_eight_bit_keys(verdict), chunk)
    return Outcome(first, passed=False, better=eight if passes(eight) else None)


def _without_outliers(measured: MeasuredError) -> Verdict:
    errors = measured.layer_errors
    limit = _STICKS_OUT * statistics.median([e for e in errors if e] or [0.0])
    return Verdict(
        tuple(
            LayerVerdict(layer.index, None, f"self-test: attention off by {error:.2f}")
            if layer.format is not None and error > limit
            else layer
            for layer, error in zip(measured.verdict.layers, errors, strict=True)
        )
    )


def _with_eight_bit_keys(verdict: Verdict) -> Verdict:
    return Verdict(
        tuple(
            layer if layer.format is None else replace(layer, format=K8V3)
            for layer in verdict.layers
        )
    )


def _divergence(exact: mx.array, turbo: mx.array) -> mx.array:
    """(1, L, V) logits of both -> (1, L) KL divergence."""
    exact, turbo = (x.astype(mx.float32) for x in (exact, turbo))
    exact, turbo = (x - mx.logsumexp(x, -1, keepdims=True) for x in (exact, turbo))
    return mx.sum(mx.exp(exact) * (exact - turbo), -1)
