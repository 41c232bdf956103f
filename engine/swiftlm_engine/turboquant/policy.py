"""Which KV format each layer of a model gets: by its config (`decide`), then by measurement.

The self-test runs the loaded model twice over a short text, exact KV beside compressed KV, chunk by
chunk, and compares the logits; every compressed layer also reports how far its own attention output
is off. Too far: the layers that stick out go back to exact KV, then keys get eight bits, then the
whole model keeps exact KV. The outcome is stored under the identity of the weights.
"""

import json
import logging
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

from swiftlm_engine.turboquant.backend import Backend, default_backend, exact_attention
from swiftlm_engine.turboquant.build import make_caches, model_verdict
from swiftlm_engine.turboquant.formats import K8V3, RECENT_TOKENS, SINK_TOKENS, parse_format
from swiftlm_engine.turboquant.sequence import SequenceKV
from swiftlm_engine.turboquant.verdict import LayerVerdict, Verdict, decide

__all__ = ["MAX_KLD", "TEST_TOKENS", "Measured", "decide", "measure", "self_test"]

MAX_KLD = 0.02  # nats per token; 8-bit KV as mlx-lm makes it costs more on some models
TEST_TOKENS = 512
_CHUNK = 64
_STICKS_OUT = 3.0  # times the median error of the layers
_RECORD_VERSION = 1

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Measured:
    """A verdict with the numbers that carried it."""

    verdict: Verdict
    kld: float  # mean over the text, of the next-token distribution
    layer_errors: tuple[float, ...]  # relative error of the attention output; 0 where exact


def self_test(
    model: nn.Module, token_ids: Sequence[int], mode: str, folder: Path, identity: str
) -> Measured:
    """The measured verdict for `mode`; blocks the MLX thread for two short prefills or more.

    `identity` names the weights (a hash of them): the outcome is kept as JSON in `folder` and read
    from there next time. The model must be installed. Evaluated.
    """
    record = folder / f"{identity}-{mode}.json"
    known = _read(record, mode)
    if known is not None:
        return known
    measured = _escalate(model, list(token_ids)[:TEST_TOKENS], model_verdict(model, mode))
    _write(record, mode, measured)
    return measured


def measure(model: nn.Module, token_ids: Sequence[int], verdict: Verdict) -> Measured:
    """KLD and per-layer errors of one verdict. Evaluated."""
    probe = _Probe(default_backend())
    turbo = make_caches(model, "", verdict, probe).caches
    exact = make_prompt_cache(model)
    tokens = mx.array([list(token_ids)])
    divergences: list[float] = []
    for start in range(0, tokens.shape[1], _CHUNK):
        chunk = tokens[:, start : start + _CHUNK]
        divergence = _divergence(model(chunk, cache=exact), model(chunk, cache=turbo))
        mx.eval(divergence, [c.state for c in turbo + exact], probe.pending())
        if start >= SINK_TOKENS + RECENT_TOKENS:  # before that nothing is compressed
            divergences.append(mx.mean(divergence).item())
    errors = iter(probe.errors())
    return Measured(
        verdict,
        statistics.fmean(divergences) if divergences else 0.0,
        tuple(0.0 if layer.format is None else next(errors, 0.0) for layer in verdict.layers),
    )


def _escalate(model: nn.Module, token_ids: list[int], verdict: Verdict) -> Measured:
    if not verdict.num_compressed_layers:
        return Measured(verdict, 0.0, (0.0,) * len(verdict.layers))
    first = measure(model, token_ids, verdict)
    tried = [first]
    for candidate in (_without_outliers(first), _with_eight_bit_keys(verdict)):
        if tried[-1].kld <= MAX_KLD:
            return tried[-1]
        log.warning("kv format too far off: kld %.4f; trying another", tried[-1].kld)
        if candidate.num_compressed_layers:
            tried.append(measure(model, token_ids, candidate))
    if tried[-1].kld <= MAX_KLD:
        return tried[-1]
    why = f"self-test: KLD {tried[-1].kld:.3f} above {MAX_KLD}"
    return replace(tried[-1], verdict=_all_exact(verdict, why))


def _without_outliers(measured: Measured) -> Verdict:
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


def _all_exact(verdict: Verdict, why: str) -> Verdict:
    return Verdict(
        tuple(
            layer if layer.format is None else LayerVerdict(layer.index, None, why)
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
        fresh = slice(kv.num_exact - queries.shape[1], kv.num_exact)
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


def _read(record: Path, mode: str) -> Measured | None:
    try:
        kept = json.loads(record.read_text())
        if (kept["version"], kept["mode"]) != (_RECORD_VERSION, mode):
            return None
        layers = tuple(
            LayerVerdict(i, parse_format(one["format"]) if one["format"] else None, one["reason"])
            for i, one in enumerate(kept["layers"])
        )
        return Measured(Verdict(layers), kept["kld"], tuple(one["error"] for one in kept["layers"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        log.warning("ignoring the damaged kv self-test record %s", record)
        return None


def _write(record: Path, mode: str, measured: Measured) -> None:
    layers = [
        {
            "format": None if layer.format is None else layer.format.name,
            "reason": layer.reason,
            "error": error,
        }
        for layer, error in zip(measured.verdict.layers, measured.layer_errors, strict=True)
    ]
    text = {"version": _RECORD_VERSION, "mode": mode, "kld": measured.kld, "layers": layers}
    record.parent.mkdir(parents=True, exist_ok=True)
    half = record.with_suffix(".tmp")
    half.write_text(json.dumps(text, indent=1))
    half.replace(record)
