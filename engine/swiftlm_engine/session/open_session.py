"""From a folder to a `Session`: loads, checks and puts together, once, on the MLX thread."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx

from swiftlm_engine import turboquant
from swiftlm_engine.brain.facts import ModelFacts as FolderFacts
from swiftlm_engine.brain.facts import ModelFilesError, read_model
from swiftlm_engine.cluster.group import ProcessLimits
from swiftlm_engine.cluster.leader import Leader
from swiftlm_engine.cluster.limits import set_limits
from swiftlm_engine.cluster.unsupported import group_options
from swiftlm_engine.expansion import blas as blas_speed
from swiftlm_engine.grammar.constraint import ConstraintCompiler
from swiftlm_engine.grammar.row_constraint import make_constraints
from swiftlm_engine.load.device import Device, device_facts, find_device
from swiftlm_engine.load.options import EngineOptions
from swiftlm_engine.load.weights import DTYPES, LoadedWeights, Report, chosen_dtype, load_weights
from swiftlm_engine.messages import EngineFault, Event, FaultKind
from swiftlm_engine.prefix.pace import Pace
from swiftlm_engine.prompt.chat_prompt import Conversation
from swiftlm_engine.prompt.prepare import Preparer
from swiftlm_engine.ranks import SINGLE_PROCESS, Ranks
from swiftlm_engine.run.embedder import Embedder
from swiftlm_engine.run.event_bridge import EventBuffer
from swiftlm_engine.run.malloc_trim import trim
from swiftlm_engine.run.runner import Runner
from swiftlm_engine.run.sequence_output import SequenceOutputFactory
from swiftlm_engine.run.step_loop import StepLoop
from swiftlm_engine.schedule.kv_budget import KVBudget, LimitedKV, UnlimitedKV
from swiftlm_engine.schedule.scheduler import Limits, Scheduler
from swiftlm_engine.session import exactness, weights_check
from swiftlm_engine.session.calibration import Subject
from swiftlm_engine.session.exactness import Exactness
from swiftlm_engine.session.kv_format import KvCaches, choose_caches
from swiftlm_engine.session.kv_self_test import threshold_tokens
from swiftlm_engine.session.open_prefix_cache import open_prefix_cache
from swiftlm_engine.session.run_when_idle import RunWhenIdle
from swiftlm_engine.session.session import LoadedModelInfo, Session
from swiftlm_engine.speculation.choose import choose_speculator
from swiftlm_engine.speculation.speculator import Speculator
from swiftlm_engine.streaming.policy_choice import StreamWatcher, kept_policy
from swiftlm_engine.streaming.reader import DEFAULT_THREADS, ReadFault
from swiftlm_engine.streaming.report import NoCache, StreamingReport, StreamMode, StreamOptions
from swiftlm_engine.streaming.warm_start import kept_experts, pays, read_back
from swiftlm_engine.text.encoder import Encoder
from swiftlm_engine.text.isolated_template import IsolatedTemplates
from swiftlm_engine.text.jinja import template_sources
from swiftlm_engine.text.model_text import ModelText
from swiftlm_engine.text.reasoning import TAGS
from swiftlm_engine.vision.loading import open_images

log = logging.getLogger(__name__)

DEFAULT_PARALLEL = 16
DEFAULT_QUEUE = 64
DEFAULT_SLICE_MS = 250
DEFAULT_CHUNK = {Device.METAL: 2048, Device.CUDA: 2048, Device.CPU: 512}
MAX_CHOICES = 16
DEFAULT_CONTEXT = 4096  # for a config that states none


def open_session(
    options: EngineOptions,
    emit: Callable[[list[Event]], None],
    report: Report,
    leader: Leader | None = None,
) -> Session:
    """Loads the model, over all ranks of the leader's group. Raises `EngineFault` or `NoDevice`."""
    if leader is not None:
        options = group_options(options)
    device = find_device()
    folder_facts = _read_folder(options)
    set_limits(
        ProcessLimits(options.memory_limit_bytes, options.buffer_cache_bytes, options.wired_bytes),
        device,
    )
    stream_options = _stream_options(options, _policy_path(options, folder_facts))
    dtype = chosen_dtype(options.dtype, device)  # told to all ranks: each would choose its own
    place = leader.load(options.folder, dtype, folder_facts) if leader else None
    _check_blas(device)
    weights = load_weights(
        options.folder,
        options.dtype,
        device,
        report,
        stream_options,
        options.gpu_layers,
        place,
        options.expand,
    )
    if leader is not None:
        leader.confirm(weights.dtype)
    report("warmup", 1.0, "first token")
    stream = mx.default_stream(mx.default_device())
    test = leader.test if leader else None
    ranks = leader or SINGLE_PROCESS
    with leader.first_steps() if leader else contextlib.nullcontext():
        kv = choose_caches(weights, options, folder_facts, device, report, test)
        if leader and kv.measured:
            leader.use(kv.measured.verdict)
        vocab_size = _warm_up(weights.model, kv, ranks)
    if leader is None:
        weights = weights_check.checked(weights, kv.make, vocab_size, options)
    _warm_start(weights.streaming, options, folder_facts, report)
    ranks.clear_pool()
    mx.clear_cache()
    trim()  # what casting the weights has left
    return _assemble(options, device, weights, kv, vocab_size, stream, emit, ranks)


def _settle_exactness(
    options: EngineOptions, weights: LoadedWeights, kv: KvCaches, vocab_size: int, ranks: Ranks
) -> Exactness:
    """Not where layers come from the disk, compute on the CPU or are spread over ranks."""
    if ranks is not SINGLE_PROCESS or weights.streaming is not None:
        return Exactness()
    if options.gpu_layers is not None:
        return Exactness()
    dtype, max_rows = DTYPES.get(weights.dtype, mx.float16), options.parallel or DEFAULT_PARALLEL
    return exactness.settle(weights.model, kv.make, options.exact, vocab_size, dtype, max_rows)


def _assemble(
    options: EngineOptions,
    device: Device,
    weights: LoadedWeights,
    kv: KvCaches,
    vocab_size: int,
    stream: Any,
    emit: Callable[[list[Event]], None],
    ranks: Ranks,
) -> Session:
    turboquant.install(weights.model)  # rows that decode together attend each for itself
    if ranks is SINGLE_PROCESS:  # the ranks of a group would have to agree
        kv = kv.shared()
    exact = _settle_exactness(options, weights, kv, vocab_size, ranks)
    if exact.note:
        weights = replace(weights, notes=(*weights.notes, exact.note))
    tokenizer = weights.tokenizer
    context = _context(options, kv.facts)
    templates = IsolatedTemplates(template_sources(tokenizer))
    encoder = Encoder(tokenizer, context)
    text = ModelText(tokenizer, options.template_kwargs, templates, encoder)
    prefix = open_prefix_cache(options, kv, device, text.template.source, ranks)
    # While experts stream, a wider batch or a draft asks for more of them than there are slots.
    # Whole layers are read once per step, so that there both are free.
    streams = weights.streaming is not None and weights.streaming.mode is StreamMode.EXPERTS
    parallel = 1 if streams else options.parallel or DEFAULT_PARALLEL
    speculator = choose_speculator(
        "" if streams else options.draft,
        options.draft_tokens,
        tokenizer,
        weights.dtype,
    )
    limits = _limits(options, device, parallel, speculator)
    images = open_images(options.model, kv.facts, weights, is_split=ranks is not SINGLE_PROCESS)
    conversation = Conversation(text, images)
    event_buffer = EventBuffer(emit)
    runner = Runner(
        weights.model,
        kv.make,
        prefix,
        stream,
        speculator,
        ranks,
        images.reader,
        event_buffer.flush,
        exact.alike,
    )
    scheduler = _scheduler(options.kv_budget_bytes, limits, runner, kv)
    factory = _choices(conversation, text, tokenizer, vocab_size, kv.needs_checkpoints)
    compiler = _compiler(text, tokenizer, vocab_size)
    engine = StepLoop(
        scheduler, runner, factory, event_buffer, kv_budget_bytes=options.kv_budget_bytes
    )
    preparer = Preparer(
        options.model,
        tokenizer,
        encoder,
        conversation.render,
        lambda job, prompt: make_constraints(compiler, job, prompt),
        context,
        vocab_size,
        min(MAX_CHOICES, parallel),
        conversation.read_images,
    )
    if kv.facts.vision and images.refusal:
        weights = replace(weights, notes=(*weights.notes, images.refusal))
    vision = images.reader is not None
    facts = _facts(options, device, weights, kv, context, vocab_size, limits, vision, text)
    embedder = Embedder(weights.model, stream, scheduler, scheduler, kv.exact_price)
    return Session(
        engine,
        preparer,
        facts,
        text,
        runner,
        prefix,
        Pace(prefix),
        embedder,
        compiler,
        _subject(device, weights, kv, stream, facts, limits, streams),
        kv.facts,
        RunWhenIdle(_both(templates.warm, compiler.warm)),
        weights.streaming,
        _watcher(weights, options, kv),
        weights.expanded,
    )


def _scheduler(budget_bytes: int, limits: Limits, runner: Runner, kv: KvCaches) -> Scheduler:
    """What running sequences hold together, the runner knows."""
    gate: KVBudget = UnlimitedKV()
    if budget_bytes:
        gate = LimitedKV(budget_bytes, lambda: runner.counted_twice(scheduler.running))
    scheduler = Scheduler(
        limits,
        time.monotonic,
        gate,
        runner.open,
        kv.price,
        lambda waiting: runner.held_already(waiting, scheduler.running),
    )
    return scheduler


def _choices(
    conversation: Conversation,
    text: ModelText,
    tokenizer: Any,
    vocab_size: int,
    needs_checkpoints: bool,
) -> SequenceOutputFactory:
    return SequenceOutputFactory(
        conversation.parser,
        text.remember,
        _closing_ids(text, tokenizer, HARMONY_END),
        _closing_ids(text, tokenizer, HARMONY_ANSWER),
        tuple(tokenizer.encode("\n")),
        text.texts,
        frozenset(tokenizer.eos_token_ids),
        vocab_size,
        needs_checkpoints=needs_checkpoints,
    )


def _both(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        first()
        second()

    return run


def _compiler(text: ModelText, tokenizer: Any, vocab_size: int) -> ConstraintCompiler:
    return ConstraintCompiler(
        tokenizer,
        text.texts,
        text.format,
        text.template.source,
        vocab_size,
        tokenizer.eos_token_ids,
    )


def _watcher(weights: LoadedWeights, options: EngineOptions, kv: KvCaches) -> StreamWatcher | None:
    if weights.streaming is None:
        return None
    policy, slots = _policy_path(options, kv.facts), _slots_path(options, kv.facts)
    return StreamWatcher(weights.streaming, policy, slots)


def _warm_start(
    streaming: StreamingReport | None, options: EngineOptions, facts: FolderFacts, report: Report
) -> None:
    """The experts that sat in slots before come back, ahead of the first request."""
    if streaming is None or streaming.mode is not StreamMode.EXPERTS:
        return
    kept = kept_experts(_slots_path(options, facts), streaming.num_experts)
    if not kept or not pays(streaming.slots, streaming.num_experts):
        return
    began = time.monotonic()

    def told(fraction: float) -> None:
        report("warmup", fraction, "experts that were in use")

    layers = streaming.streamer.slotted
    num_read = read_back(layers, kept, streaming.slots, told)
    log.info("warm start: %d experts read in %.1f s", num_read, time.monotonic() - began)


def _subject(
    device: Device,
    weights: LoadedWeights,
    kv: KvCaches,
    stream: Any,
    facts: LoadedModelInfo,
    limits: Limits,
    streams: bool,
) -> Subject:
    """What a calibration measures."""
    return Subject(
        model=weights.model,
        make_caches=kv.make,
        stream=stream,
        vocab_size=facts.vocab_size,
        context=facts.context,
        chunk=limits.prefill_chunk,
        slice_s=limits.slice_s,
        max_width=1 if streams else MAX_CHOICES,
        kv_threshold=lambda: threshold_tokens(facts.context, kv.facts, device),
    )


def _limits(
    options: EngineOptions, device: Device, parallel: int, speculator: Speculator | None
) -> Limits:
    return Limits(
        parallel=parallel,
        max_queue=options.max_queue or DEFAULT_QUEUE,
        prefill_chunk=options.prefill_chunk or DEFAULT_CHUNK[device],
        slice_s=(options.slice_ms or DEFAULT_SLICE_MS) / 1000,
        lookahead_tokens=2 + (speculator.draft_tokens if speculator else 0),
    )


def _check_blas(device: Device) -> None:
    if device is Device.CPU and (blas := blas_speed.measure()).slow:
        log.warning("slow BLAS, see `swiftlmctl doctor`: %s", blas)


def _facts(
    options: EngineOptions,
    device: Device,
    weights: LoadedWeights,
    kv: KvCaches,
    context: int,
    vocab_size: int,
    limits: Limits,
    vision: bool,
    text: ModelText,
) -> LoadedModelInfo:
    return LoadedModelInfo(
        options.model,
        str(weights.config.get("model_type", "")),
        context,
        vocab_size,
        weights.weight_bytes,
        weights.dtype,
        device,
        str(blas_speed.measure()) if device is Device.CPU else "",
        kv.kv,
        limits.parallel,
        limits.prefill_chunk,
        kv.facts.fingerprint,
        (
            *weights.notes,
            *kv.notes,
            *_streaming_notes(options, weights.streaming),
            *_tool_notes(text),
        ),
        weights.expanded.note if weights.expanded else "",
        kv.report(),
        vision,
        text.format.reasons,
        text.tool_format,
        device_facts(),
    )


def _tool_notes(text: ModelText) -> tuple[str, ...]:
    if not text.template.knows_tools or text.tool_format:
        return ()
    note = "tools are off: its chat template writes calls in a form that is not known here"
    return (note,)


def _streaming_notes(options: EngineOptions, streaming: StreamingReport | None) -> tuple[str, ...]:
    """What was asked for and is off, or changes answers, while experts stream."""
    if streaming is None or streaming.mode is not StreamMode.EXPERTS:
        return ()
    notes = []
    if options.draft:
        notes.append("drafts are off while experts are read from disk")
    if options.parallel > 1:
        notes.append("one sequence at a time while experts are read from disk")
    if options.top_k_experts:
        notes.append(f"{streaming.experts_per_token} experts per token, as asked")
    return tuple(notes)


def _policy_path(options: EngineOptions, facts: FolderFacts) -> Path | None:
    if options.records_dir is None:
        return None
    return options.records_dir / "slot-policies" / f"{facts.fingerprint}.json"


def _slots_path(options: EngineOptions, facts: FolderFacts) -> Path | None:
    if options.records_dir is None:
        return None
    return options.records_dir / "expert-slots" / f"{facts.fingerprint}.json"


def _stream_options(options: EngineOptions, policy_path: Path | None) -> StreamOptions | None:
    if options.stream_experts not in list(StreamMode):
        return None
    return StreamOptions(
        options.expert_slots,
        options.top_k_experts,
        options.resident_bytes,
        kept_policy(policy_path, options.expert_slots),
        mode=StreamMode(options.stream_experts),
        nocache=NoCache(options.ssd_nocache or "auto"),
        prefetch=options.ssd_prefetch == "next-router",
        threads=options.ssd_threads or DEFAULT_THREADS,
    )


def _read_folder(options: EngineOptions) -> FolderFacts:
    """Config and headers, checked for completeness before anything is loaded."""
    try:
        return read_model(options.folder)
    except ModelFilesError as error:
        raise EngineFault(FaultKind.MODEL_BROKEN, str(error)) from error


def _warm_up(model: Any, kv: KvCaches, ranks: Ranks) -> int:
    """One token through the model: proves it works, compiles its kernels, tells its vocabulary."""
    try:
        key = ("", 0)
        ranks.open(key)
        ranks.join(key)
        inputs = ranks.decode(mx.array([0]), known=False, greedy=False)
        logits = model(inputs[None], cache=kv.make())
        ranks.drop(key)
    except ReadFault as error:
        raise EngineFault(FaultKind.MODEL_BROKEN, str(error)) from error
    mx.eval(logits)
    if not mx.isfinite(logits).all().item():
        raise EngineFault(
            FaultKind.MODEL_BROKEN,
            "the model's first logits are not finite; its weights or dtype are broken",
        )
    return int(logits.shape[-1])


def _context(options: EngineOptions, facts: FolderFacts) -> int:
    limit = facts.max_context or DEFAULT_CONTEXT
    return min(options.context, limit) if options.context else limit


# First the model may choose where to go on (a call, the answer); if it thinks again, it answers.
HARMONY_END = "<|end|><|start|>assistant"
HARMONY_ANSWER = f"{HARMONY_END}<|channel|>final<|message|>"


def _closing_ids(text: ModelText, tokenizer: Any, harmony: str) -> tuple[int, ...]:
    """What a model is made to say when its thinking budget is spent."""
    if text.format.harmony:
        closing = harmony
    else:
        vocabulary = tokenizer.get_vocab()
        known = [tags for tags in TAGS if tags.opener in text.template.source]
        known += [tags for tags in TAGS if tags.closer in vocabulary]
        closing = f"{(known or TAGS)[0].closer}\n\n"
    return tuple(tokenizer.encode(closing, add_special_tokens=False))
