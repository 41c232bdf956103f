"""A loaded model with everything that serves it. Built once, on the MLX thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from swiftlm_engine.brain.scheduler import BudgetGate, Gate, Limits, OpenGate, Scheduler
from swiftlm_engine.choices import ChoiceFactory
from swiftlm_engine.decode_batch import Caches
from swiftlm_engine.device import Device, blas_name, find_device
from swiftlm_engine.embedder import Embedder
from swiftlm_engine.engine import Engine
from swiftlm_engine.generation import EngineFault, Event, FaultKind, GenerateJob
from swiftlm_engine.loader import LoadedWeights, Report, load_weights
from swiftlm_engine.options import EngineOptions
from swiftlm_engine.prefix.cache import PrefixCache
from swiftlm_engine.prefix.snapshot import LeafKind, kind_of, leaves_of
from swiftlm_engine.prepare import Preparer, Rendered
from swiftlm_engine.runner import Runner
from swiftlm_engine.text.messages import Chat
from swiftlm_engine.text.model_text import ModelText
from swiftlm_engine.text.output import OutputOptions
from swiftlm_engine.text.template import TemplateRefused

log = logging.getLogger(__name__)

DEFAULT_PARALLEL = 16
DEFAULT_QUEUE = 64
DEFAULT_SLICE_MS = 250
DEFAULT_CHUNK = {Device.METAL: 2048, Device.CUDA: 2048, Device.CPU: 512}
MAX_CHOICES = 16
DEFAULT_CONTEXT = 4096  # for a config that states none


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What clients and `status` are told about the loaded model."""

    model: str
    model_type: str
    context: int
    vocab_size: int
    weight_bytes: int
    dtype: str
    device: str
    blas: str
    kv: str
    load_s: float
    parallel: int
    prefill_chunk: int
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Session:
    engine: Engine
    preparer: Preparer
    facts: ModelFacts
    text: ModelText
    runner: Runner
    prefix: PrefixCache
    embedder: Embedder

    @property
    def has_work(self) -> bool:
        return self.engine.has_work

    def step(self) -> None:
        self.engine.step()

    def idle(self) -> None:
        self.engine.scheduler.check_integrity()


def open_session(
    options: EngineOptions, emit: Callable[[list[Event]], None], report: Report
) -> Session:
    """Loads the model. Raises `EngineFault` or `NoDevice`."""
    device = find_device()
    _set_limits(options, device)
    weights = load_weights(options.folder, options.dtype, device, report)
    report("warmup", 1.0, "first token")
    stream = mx.default_stream(mx.default_device())
    vocab_size = _warm_up(weights.model)
    return _assemble(options, device, weights, vocab_size, stream, emit)


def _assemble(
    options: EngineOptions,
    device: Device,
    weights: LoadedWeights,
    vocab_size: int,
    stream: Any,
    emit: Callable[[list[Event]], None],
) -> Session:
    tokenizer = weights.tokenizer
    model_type = str(weights.config.get("model_type", ""))
    text = ModelText(tokenizer, model_type, options.template_kwargs)

    def make_caches() -> Caches:
        return list(make_prompt_cache(weights.model))

    prefix = PrefixCache(make_caches, options.prefix_cache_bytes)
    context = _context(options, weights.config)
    parallel = options.parallel or DEFAULT_PARALLEL
    limits = Limits(
        parallel=parallel,
        max_queue=options.max_queue or DEFAULT_QUEUE,
        prefill_chunk=options.prefill_chunk or DEFAULT_CHUNK[device],
        slice_s=(options.slice_ms or DEFAULT_SLICE_MS) / 1000,
    )
    runner = Runner(weights.model, make_caches, prefix, stream)
    gate: Gate = BudgetGate(options.kv_budget_bytes) if options.kv_budget_bytes else OpenGate()
    scheduler = Scheduler(limits, time.monotonic, gate, runner.open)
    factory = ChoiceFactory(
        lambda prepared: text.output(OutputOptions(stop=prepared.job.stop)),
        text.texts,
        frozenset(tokenizer.eos_token_ids),
        vocab_size,
        kv_bytes=lambda tokens: 0,
        needs_checkpoints=needs_checkpoints(make_caches()),
    )
    engine = Engine(scheduler, runner, factory, emit)
    preparer = Preparer(
        tokenizer,
        lambda job, chat: _render(text, job, chat),
        context,
        vocab_size,
        min(MAX_CHOICES, parallel),
    )
    facts = ModelFacts(
        options.model,
        model_type,
        context,
        vocab_size,
        weights.weight_bytes,
        weights.dtype,
        device,
        blas_name() if device is Device.CPU else "",
        "fp16",
        weights.load_s,
        parallel,
        limits.prefill_chunk,
    )
    embedder = Embedder(weights.model, stream)
    return Session(engine, preparer, facts, text, runner, prefix, embedder)


def needs_checkpoints(caches: Caches) -> bool:
    """Some layer cannot go back to an earlier position (recurrent, or a window)."""
    return any(kind_of(leaf) is not LeafKind.TRUNK for leaf in leaves_of(caches))


def _set_limits(options: EngineOptions, device: Device) -> None:
    """Once, before anything is allocated; never toggled later (see docs/memory.md)."""
    if options.memory_limit_bytes:
        mx.set_memory_limit(options.memory_limit_bytes)
    if options.buffer_cache_bytes:
        mx.set_cache_limit(options.buffer_cache_bytes)
    if options.wired_bytes and device is Device.METAL:
        mx.set_wired_limit(options.wired_bytes)


def _warm_up(model: Any) -> int:
    """One token through the model: proves it works, compiles its kernels, tells its vocabulary."""
    caches = make_prompt_cache(model)
    logits = model(mx.array([[0]]), cache=caches)
    mx.eval(logits)
    if not mx.isfinite(logits).all().item():
        raise EngineFault(
            FaultKind.MODEL_BROKEN,
            "the model's first logits are not finite; its weights or dtype are broken",
        )
    return int(logits.shape[-1])


def _context(options: EngineOptions, config: dict[str, Any]) -> int:
    own = config.get("max_position_embeddings") or config.get("text_config", {}).get(
        "max_position_embeddings"
    )
    limit = int(own) if own else DEFAULT_CONTEXT
    return min(options.context, limit) if options.context else limit


def _render(text: ModelText, job: GenerateJob, chat: Chat) -> Rendered:
    try:
        prompt = text.render(chat)
    except TemplateRefused as error:
        raise EngineFault(FaultKind.INVALID, str(error), param="messages") from error
    return Rendered(list(prompt.token_ids), prompt.boundaries, prompt.thinking_preopened)
