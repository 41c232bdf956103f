"""The KV caches of one loaded model: their format, how they are made, what they cost.

A compressed format is used only where it passes its self-test on these very weights. If the
operator asked for it and it fails, the load is refused; if the plan chose it, KV stays exact.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

from swiftlm_engine import turboquant
from swiftlm_engine.brain.facts import KvFormat, ModelFacts, ModelFilesError
from swiftlm_engine.kv.shared_cache import Sharing, shared_caches
from swiftlm_engine.load.device import Device
from swiftlm_engine.load.options import EngineOptions
from swiftlm_engine.load.weights import LoadedWeights, Report
from swiftlm_engine.messages import EngineFault, FaultKind
from swiftlm_engine.prefix.snapshot import LeafKind, kind_of, leaves_of
from swiftlm_engine.run.row_caches import Caches
from swiftlm_engine.session.kv_self_test import check_format, failure, speed_gain
from swiftlm_engine.turboquant.formats import DEFAULT, FORMATS
from swiftlm_engine.turboquant.layer_support_file import MeasuredError
from swiftlm_engine.turboquant.policy import Test

# A lone row over two buffers pays about 50 us a layer for the second one (CPU back end): over 1,100
# tokens 0.97 x the speed of one buffer, over 2,000 no less than that. Fewer tokens are copied.
MIN_SHARED_TOKENS = 1536

log = logging.getLogger(__name__)

# What a model whose layers are not as expected raises where they are looked at or called.
_NOT_COMPRESSED = (
    ModelFilesError, LookupError, TypeError, ValueError, AttributeError, RuntimeError,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class KvCaches:
    """`notes` says in plain words what differs from what was asked, and why."""

    kv: KvFormat
    make: Callable[[], Caches]
    facts: ModelFacts
    dtype: str
    notes: tuple[str, ...] = ()
    measured: MeasuredError | None = None  # the self-test that let a compressed format pass
    exact_layers: frozenset[int] = field(default_factory=frozenset)

    def price(self, prompt_tokens: int, max_tokens: int) -> int:
        """Bytes of one sequence's caches when it has grown to its end."""
        return self.facts.kv_bytes(
            prompt_tokens, max_tokens, self.kv, self.dtype, self.exact_layers
        )

    def exact_price(self, tokens: int) -> int:
        """Bytes of exact KV of a text that nothing is generated behind."""
        return self.facts.kv_bytes(tokens, 0, KvFormat.FP16, self.dtype)

    def shared(self) -> KvCaches:
        """The same, with exact KV in buffers that sequences and the prefix cache share."""
        if self.kv.turbo:
            return self
        make, sharing = self.make, Sharing(MIN_SHARED_TOKENS)
        return replace(self, make=lambda: shared_caches(make(), sharing))

    @property
    def needs_checkpoints(self) -> bool:
        """Some layer cannot go back to an earlier position (recurrent, or a window)."""
        return any(kind_of(leaf) is not LeafKind.TRUNK for leaf in leaves_of(self.make()))

    @property
    def signature(self) -> str:
        """Equal for caches that may be exchanged through the disk, on one kind of device."""
        exact = ",".join(map(str, sorted(self.exact_layers)))
        return f"{self.kv.value}/{self.dtype}" + (f"/exact:{exact}" if exact else "")

    def report(self) -> dict[str, object]:
        """For `status`: the format of each layer, what a token costs, what was measured."""
        tokens = self.facts.max_context or 4096
        exact = self.facts.kv_bytes(tokens, 0, KvFormat.FP16, self.dtype)
        layers = [KvFormat.FP16.value] * len(self.facts.layers)
        if self.measured is not None:
            formats = (layer.format for layer in self.measured.verdict.layers)
            layers = [KvFormat.FP16.value if f is None else f.name for f in formats]
        return {
            "format": self.kv.value,
            "layers": layers,
            "bytes_per_token": round(self.price(tokens, 0) / tokens),
            "exact_bytes_per_token": round(exact / tokens),
            "kld": self.measured.kld if self.measured else 0.0,
            "layer_errors": list(self.measured.layer_errors) if self.measured else [],
        }


def choose_caches(
    weights: LoadedWeights,
    options: EngineOptions,
    facts: ModelFacts,
    device: Device,
    report: Report,
    test: Test | None = None,
) -> KvCaches:
    """Raises `EngineFault` for a format that is unknown, fits no layer or fails its self-test,
    which is `test` where the model is split over several processes."""
    asked = options.kv
    if asked in ("", "auto", KvFormat.FP16):
        exact = _exact(weights, facts)
        gain = speed_gain(options, facts, device) if options.kv_auto else 0.0
        if not gain:
            return exact
        caches = _compressed(weights, options, DEFAULT.name, facts, device, report, test)
        note = f"kv auto: {DEFAULT.name} decodes {gain:.1f} x as fast as exact KV at full context"
        return replace(caches, notes=(note, *caches.notes)) if caches.kv.turbo else caches
    if asked not in FORMATS:
        known = ", ".join(["auto", "fp16", *FORMATS])
        message = f"kv '{asked}' is not one of {known}"
        raise EngineFault(FaultKind.INVALID, message, param="kv")
    return _compressed(weights, options, asked, facts, device, report, test)


def _exact(weights: LoadedWeights, facts: ModelFacts, *notes: str) -> KvCaches:
    model = weights.model
    return KvCaches(
        KvFormat.FP16, lambda: list(make_prompt_cache(model)), facts, weights.dtype, notes
    )


def _compressed(
    weights: LoadedWeights,
    options: EngineOptions,
    name: str,
    facts: ModelFacts,
    device: Device,
    report: Report,
    test: Test | None,
) -> KvCaches:
    model = weights.model
    if obstacle := _obstacle(model, name):
        return _after_failure(weights, options, facts, f"{obstacle}; load it with --kv fp16")
    try:
        outcome = check_format(weights, options, name, device, report, facts.max_context, test)
    except _NOT_COMPRESSED as error:
        if test is not None:  # ranks that no longer compute the same cannot go on together
            raise
        log.exception("the self-test of kv %s", name)
        why = f"the self-test of kv {name} fails on this model ({error}); load it with --kv fp16"
        return _after_failure(weights, options, facts, why)
    if not outcome.passed:
        return _after_failure(weights, options, facts, failure(name, outcome))
    measured = outcome.measured
    for line in measured.verdict.lines():
        log.info("kv %s: %s", name, line)
    exact_layers = (i for i, v in enumerate(measured.verdict.layers) if v.format is None)
    return KvCaches(
        KvFormat(name),
        lambda: turboquant.make_caches(model, name, measured.verdict).caches,
        facts,
        weights.dtype,
        tuple(measured.verdict.lines()),
        measured,
        frozenset(exact_layers),
    )


def _obstacle(model: nn.Module, name: str) -> str:
    """Why no layer of a model can be compressed; empty where one can."""
    try:
        turboquant.install(model)
        verdict = turboquant.model_verdict(model, name)
    except _NOT_COMPRESSED as error:
        log.exception("kv %s", name)
        return f"kv {name} does not know the layers of this model ({error!r})"
    if verdict.num_compressed_layers:
        return ""
    return f"kv {name} compresses no layer of this model ({'; '.join(verdict.lines())})"


def _after_failure(
    weights: LoadedWeights, options: EngineOptions, facts: ModelFacts, why: str
) -> KvCaches:
    """Exact KV if nobody insists on the format that failed, and the plan's room holds some."""
    if not options.kv_auto:
        raise EngineFault(FaultKind.UNSUPPORTED, why, param="kv")
    log.warning("kv stays exact: %s", why)
    exact = _exact(weights, facts, f"kv auto stays fp16: {why}")
    needed = exact.price(options.context or facts.max_context or 0, 0)
    if options.kv_budget_bytes and needed > options.kv_budget_bytes:
        note = (
            f"a full context needs {needed / 1e9:.1f} GB of exact KV and "
            f"{options.kv_budget_bytes / 1e9:.1f} GB are planned: what does not fit is refused"
        )
        return _exact(weights, facts, *exact.notes, note)
    return exact
