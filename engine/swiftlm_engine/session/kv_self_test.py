"""Whether a KV format is good enough for the loaded weights, and whether it is faster than none."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import mlx.core as mx

from swiftlm_engine.brain.facts import KvFormat, ModelFacts, weight_files
from swiftlm_engine.load.device import Device
from swiftlm_engine.load.options import EngineOptions
from swiftlm_engine.load.weights import LoadedWeights, Report
from swiftlm_engine.prefix.fingerprint import weights_digest
from swiftlm_engine.turboquant import policy
from swiftlm_engine.turboquant.backend import default_backend
from swiftlm_engine.turboquant.calibration import AttentionShape, decode_ratio
from swiftlm_engine.turboquant.formats import DEFAULT
from swiftlm_engine.turboquant.layer_support_file import Outcome
from swiftlm_engine.turboquant.self_test_text import SELF_TEST_TEXT

# While experts or layers come from the disk, every chunk reads them all once more.
_STREAMED_CHUNK = 256
_CHUNK = 64
_SEEN = 0.1  # of a test, from which the whole is foretold: the first chunk also compiles
_WORTH_IT = 1.1  # compressed KV must be faster by this factor to be chosen for its speed
_LEAST_TOKENS, _MOST_TOKENS = 2048, 32_768

log = logging.getLogger(__name__)


def check_format(
    weights: LoadedWeights,
    options: EngineOptions,
    name: str,
    device: Device,
    report: Report,
    max_context: int | None,
    test: policy.Test | None = None,
) -> Outcome:
    """The self-test of one format: two prefills or more the first time, a file after that."""
    record = None
    if options.records_dir is not None:
        identity = weights_identity(options.folder, weights.dtype, device)
        record = options.records_dir / "kv-self-test" / f"{identity}-{name}.json"
    context = max_context or policy.TEST_TOKENS
    token_ids = policy.test_ids(weights.tokenizer.encode(SELF_TEST_TEXT), context)
    chunk = _CHUNK if weights.streaming is None else _STREAMED_CHUNK
    told = _Progress(name, report)
    if test is not None:  # on several ranks: no more is heard of it
        told(0.0)
    quick = None if test else partial(policy.measure, progress=told, sample=policy.SAMPLE)
    measure = test or partial(policy.measure, progress=told)
    return policy.self_test(weights.model, token_ids, name, record, chunk, measure, quick)


class _Progress:
    """Tells how far the test is, and once how long it takes on this machine."""

    def __init__(self, name: str, report: Report, clock: Callable[[], float] = time.monotonic):
        self._name, self._report, self._clock = name, report, clock
        self._began = 0.0
        self._takes_s = 0.0

    def __call__(self, fraction: float) -> None:
        now = self._clock()
        if not fraction:  # again where a second try leaves layers out
            self._began, self._takes_s = now, 0.0
        elif not self._takes_s and fraction >= _SEEN:
            self._takes_s = (now - self._began) / fraction
            log.info("the self-test of kv %s takes about %.0f s", self._name, self._takes_s)
        takes = f", about {max(1, round(self._takes_s))} s" if self._takes_s else ""
        self._report("checking", fraction, f"kv {self._name}{takes}, once for this model")


def failure(name: str, outcome: Outcome) -> str:
    """What failed by how much, and what would pass."""
    measured, better = outcome.measured, outcome.better
    if not measured.path_error <= policy.MAX_PATH_ERROR:
        broken = [i for i, e in enumerate(measured.path_errors) if not e <= policy.MAX_PATH_ERROR]
        return (
            f"kv {name} failed its self-test on this machine: attention over it is not what plain "
            f"arithmetic makes of the same KV in layers {', '.join(map(str, broken))}; "
            "load it with --kv fp16"
        )
    layers = ", ".join(map(str, measured.worst_layers()))
    advice = "load it with --kv fp16"
    if better is not None:
        format = next(v.format for v in better.verdict.layers if v.format is not None)
        advice = f"{format.name} passes with {better.kld:.4f}: --kv {format.name}, or --kv fp16"
    return (
        f"kv {name} failed its self-test on this model: KLD {measured.kld:.3f} nats per token "
        f"({measured.decode_kld:.3f} while decoding), at most {policy.MAX_KLD} is accepted; "
        f"worst in layers {layers}; {advice}"
    )


def weights_identity(folder: Path, dtype: str, device: Device) -> str:
    """Of the weights and of how they are computed with: MLX's kernels, and ours."""
    digest = hashlib.blake2b(f"{dtype}/{device}/{mx.__version__}".encode(), digest_size=12)
    for source in sorted(Path(policy.__file__).parent.rglob("*.py")):
        digest.update(source.read_bytes())
    digest.update((folder / "config.json").read_bytes())
    for path in weight_files(folder):
        digest.update(weights_digest(path))
    return digest.hexdigest()


def speed_gain(options: EngineOptions, facts: ModelFacts, device: Device) -> float:
    """How many times faster decoding is over compressed KV once the context is full, if that is
    worth having; else 0. Measured in a moment on one layer; only GPUs have kernels for it.

    Most requests are short and decode side by side: what only pays at full context makes those
    slower, and is left to whoever asks for it by name.
    """
    full = min(options.context or facts.max_context or 0, _MOST_TOKENS)
    if device is Device.CPU or not full or not facts.compressed_layers(KvFormat(DEFAULT.name)):
        return 0.0
    shape = _attention_shape(facts)
    for tokens, wanted in ((min(_LEAST_TOKENS, full), 1.0), (full, _WORTH_IT)):
        ratio = decode_ratio(shape, DEFAULT, tokens, default_backend())
        log.info("attention over compressed kv is %.2f x as fast at %d tokens", ratio, tokens)
        if ratio < wanted:
            return 0.0
    return ratio


def threshold_tokens(context: int, facts: ModelFacts, device: Device) -> int:
    """The shortest context, by doublings, at which compressed KV decodes faster; 0 = at none."""
    if device is Device.CPU or not facts.compressed_layers(KvFormat(DEFAULT.name)):
        return 0
    tokens = _LEAST_TOKENS
    while tokens <= min(context, _MOST_TOKENS):
        if decode_ratio(_attention_shape(facts), DEFAULT, tokens, default_backend()) >= _WORTH_IT:
            return tokens
        tokens *= 2
    return 0


def _attention_shape(facts: ModelFacts) -> AttentionShape:
    store = next(s for layer in facts.layers for s in layer.stores if not s.turbo_blocker)
    return AttentionShape(facts.shape.num_attention_heads, store.heads, store.k_dim)
