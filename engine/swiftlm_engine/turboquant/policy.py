"""Which KV format each layer of a model gets: by its config (`decide`), then by measurement.

The self-test runs the loaded model twice over a short text, exact KV beside compressed KV, chunk by
chunk, and compares the logits; every compressed layer also reports how far its own attention output
is off. Too far: the layers that stick out go back to exact KV. Still too far: the format has failed
on this model, and keys of eight bits are tried, to be able to say what would pass. The outcome is
kept under the identity of the weights (`layer_support_file.py`).
"""

import logging
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

from swiftlm_engine.turboquant.attention import exact_attention
from swiftlm_engine.turboquant.backend import Backend, default_backend
from swiftlm_engine.turboquant.build import make_caches, model_verdict
from swiftlm_engine.turboquant.cache import TurboKVCache
from swiftlm_engine.turboquant.formats import K8V3, RECENT_TOKENS, SINK_TOKENS
from swiftlm_engine.turboquant.layer_support import LayerVerdict, Verdict, decide
from swiftlm_engine.turboquant.layer_support_file import (
    MeasuredError,
    Outcome,
    read_outcome,
    write_outcome,
)
from swiftlm_engine.turboquant.sequence import SequenceKV

__all__ = ["MAX_KLD", "TEST_TOKENS", "MeasuredError", "Outcome", "decide", "measure", "self_test"]

MAX_KLD = 0.02  # nats per token; 8-bit KV as mlx-lm makes it costs more on some models
TEST_TOKENS = 512
_CHUNK = 64
_STICKS_OUT = 3.0  # times the median error of the layers

Test = Callable[[nn.Module, Sequence[int], Verdict, int], MeasuredError]

log = logging.getLogger(__name__)


def self_test(
    model: nn.Module,
    token_ids: Sequence[int],
    mode: str,
    record: Path | None,
    chunk: int = _CHUNK,
    test: Test | None = None,
) -> Outcome:
    """How `mode` does on this model; blocks the MLX thread for two short prefills or more.

    `test` measures one verdict: here, unless the model is split over several processes.

    `record` is the file for just this model and mode: the outcome is read from there if it is
    known, else kept there. The model must be installed. Evaluated.
    """
    known = None if record is None else read_outcome(record, mode)
    if known is not None:
        return known
    outcome = _escalate(model, list(token_ids)[:TEST_TOKENS], mode, chunk, test or measure)
    if record is not None:
        write_outcome(record, mode, outcome)
    return outcome


def measure(
    model: nn.Module, token_ids: Sequence[int], verdict: Verdict, chunk: int = _CHUNK
) -> MeasuredError:
    """KLD and per-layer errors of one verdict. Evaluated."""
    probe = _Probe(default_backend())
    turbo = make_caches(model, "", verdict, probe).caches
    exact = make_prompt_cache(model)
    tokens = mx.array([list(token_ids)])
    divergences: list[float] = []
    for start in range(0, tokens.shape[1], chunk):
        fed = tokens[:, start : start + chunk]
        divergence = _divergence(model(fed, cache=exact), model(fed, cache=turbo))
        mx.eval(divergence, [c.state for c in turbo + exact], probe.pending())
        if start >= SINK_TOKENS + RECENT_TOKENS:  # before that nothing is compressed
            divergences.append(mx.mean(divergence).item())
    errors = iter(probe.errors())
    return MeasuredError(
        verdict,
        statistics.fmean(divergences) if divergences else 0.0,
        tuple(next(errors, 0.0) if type(cache) is TurboKVCache else 0.0 for cache in turbo),
    )


def _escalate(model: nn.Module, token_ids: list[int], mode: str, chunk: int, test: Test) -> Outcome:
    verdict = model_verdict(model, mode)
    first = test(model, token_ids, verdict, chunk)
    if first.kld <= MAX_KLD:
        return Outcome(first, passed=True)
    log.warning("kv %s is too far off: kld %.4f; trying without some layers", mode, first.kld)
    without = _without_outliers(first)
    if 0 < without.num_compressed_layers < verdict.num_compressed_layers:
        second = test(model, token_ids, without, chunk)
        if second.kld <= MAX_KLD:
            return Outcome(second, passed=True)
    if mode == K8V3.name:
        return Outcome(first, passed=False)
    eight = test(model, token_ids, _with_eight_bit_keys(verdict), chunk)
    return Outcome(first, passed=False, better=eight if eight.kld <= MAX_KLD else None)


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


class _Probe:
    """A backend that also computes every attention exactly, and adds up the difference."""

    def __init__(self, inner: Backend) -> None:
        self.key_order = inner.key_order
        self.encode = inner.encode
        self._inner = inner
        self._shadows: dict[int, SequenceKV] = {}
        self._sums: dict[int, tuple[mx.array, mx.array]] = {}

    def attend(self, kv: SequenceKV, queries: mx.array, scale: float) -> mx.array:
        fresh = slice(kv.num_exact - queries.shape[-2], kv.num_exact)
        shadow = self._shadows.setdefault(id(kv), SequenceKV(kv.codec))
        shadow.append(kv.exact_keys[:, fresh], kv.exact_values[:, fresh])
        out = self._inner.attend(kv, queries, scale)
        exact = exact_attention(shadow, queries, scale).astype(mx.float32)
        missed, size = self._sums.get(id(kv), (mx.array(0.0), mx.array(0.0)))
        missed = missed + mx.sum((out.astype(mx.float32) - exact) ** 2)
        self._sums[id(kv)] = missed, size + mx.sum(exact * exact)
        return out

    def pending(self) -> list[tuple[mx.array, mx.array]]:
        return list(self._sums.values())

    def errors(self) -> list[float]:
        """Per layer in the order of the first call: that is the order of the layers."""
        return [mx.sqrt(missed / size).item() for missed, size in self._sums.values()]


def _divergence(exact: mx.array, turbo: mx.array) -> mx.array:
    """(1, L, V) logits of both -> (1, L) KL divergence."""
    exact, turbo = (x.astype(mx.float32) for x in (exact, turbo))
    exact, turbo = (x - mx.logsumexp(x, -1, keepdims=True) for x in (exact, turbo))
    return mx.sum(mx.exp(exact) * (exact - turbo), -1)
