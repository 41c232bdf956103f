"""The terms of a plan: every kind of byte a loaded model holds, and where the number is from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from swiftlm_engine.brain.calibration import Record
from swiftlm_engine.brain.facts import ModelFacts, WeightPart
from swiftlm_engine.brain.facts.layers import LayerKind
from swiftlm_engine.brain.ledger import EntryKind
from swiftlm_engine.brain.plan.expansion import Expansion
from swiftlm_engine.brain.plan.image_scratch import image_scratch
from swiftlm_engine.brain.plan.layer_streaming import LayerPlacement, layer_sizes
from swiftlm_engine.brain.plan.machine import GB, Accelerator, Covers, Limit, MachineLimits
from swiftlm_engine.brain.plan.request import AUTO_PARALLEL, PlanRequest, Settings
from swiftlm_engine.brain.plan.scratch import prefill_scratch
from swiftlm_engine.brain.plan.streaming import Streaming
from swiftlm_engine.brain.vision import FEATURE_BYTES, PREPARED_BYTES

# An engine process before any weight: Python, MLX and gRPC (79 MB measured on Linux, with room),
# and the tokenizer's tables, which grow with the vocabulary.
PROCESS_BYTES = 130_000_000
# In RAM, for the driver: CUDA's context and libraries hold about 1.2 GB once kernels have run.
DRIVER_BYTES = {Accelerator.CPU: 0, Accelerator.METAL: 150_000_000, Accelerator.CUDA: 1_200_000_000}
TOKENIZER_BYTES_PER_TOKEN = 900
WRITE_BUFFER_BYTES = 64 * 2**20
MIN_POOL_BYTES = 128 * 2**20
MAX_POOL_BYTES = 4 * 2**30
# Slots are held for life, so freed buffers are only small ones; a large pool would cost slots.
STREAMING_POOL_BYTES = 2**30


# Of a process, wherever its layers compute.
_AROUND = (EntryKind.PROCESS, EntryKind.WRITE_BUFFERS)


class TermSource(StrEnum):
    HEADER = "header"
    FORMULA = "formula"
    MEASURED = "measured"
    POLICY = "policy"


@dataclass(frozen=True, slots=True)
class MeasuredTerms:
    """Corrections from earlier loads of this model on this machine; None = not measured yet."""

    process_bytes: int | None = None
    scratch_ratio: float | None = None
    record: Record | None = None

    @property
    def parallel(self) -> int:
        """The batch that `auto` starts from."""
        return self.record.choices.parallel if self.record else AUTO_PARALLEL

    def compresses(self, context: int) -> bool:
        """Whether compressed KV decodes faster at this length."""
        threshold = self.record.choices.kv_threshold if self.record else 0
        return 0 < threshold <= context


@dataclass(frozen=True, slots=True)
class Term:
    """One row of the table."""

    kind: EntryKind
    bytes: int
    source: TermSource
    note: str = ""
    covers: Covers = Covers.DEVICE


@dataclass(frozen=True, slots=True)
class Need:
    """The terms of one way to run the model, and the largest single buffer among them."""

    terms: tuple[Term, ...]
    largest_buffer: int

    @property
    def total(self) -> int:
        return sum(term.bytes for term in self.terms)

    def counted_by(self, limit: Limit) -> int:
        """The bytes this limit counts."""
        if limit.covers is Covers.BUFFER:
            return self.largest_buffer
        if limit.covers is Covers.ALL:
            return self.total
        own = [term for term in self.terms if term.kind is not EntryKind.PAGE_CACHE]
        if limit.covers is Covers.OWN:
            return sum(term.bytes for term in own)
        if limit.covers is Covers.UNIFIED:
            return sum(t.bytes for t in own if t.covers is Covers.DEVICE or t.kind in _AROUND)
        return sum(term.bytes for term in own if term.covers is limit.covers)

    def of(self, kind: EntryKind) -> int:
        return sum(term.bytes for term in self.terms if term.kind is kind)


def resident_need(
    facts: ModelFacts,
    settings: Settings,
    request: PlanRequest,
    machine: MachineLimits,
    measured: MeasuredTerms,
    expansion: Expansion | None = None,
) -> Need:
    """Everything in memory."""
    cast = facts.cast_itemsize(request.dtype)
    weights = facts.weights.resident_bytes(cast)
    rows = [Term(EntryKind.WEIGHTS, weights, TermSource.HEADER, facts.quantisation.describe())]
    if expansion is not None:
        rows.append(
            Term(EntryKind.WEIGHTS, expansion.added_bytes, TermSource.HEADER, expansion.note)
        )
    rows += _working_terms(facts, settings, request, machine, measured)
    return Need(tuple(rows), _largest_buffer(facts, settings, request))


def streamed_need(
    facts: ModelFacts,
    settings: Settings,
    request: PlanRequest,
    machine: MachineLimits,
    measured: MeasuredTerms,
    streaming: Streaming,
) -> Need:
    """Experts in slots, the rest resident, and room for the page cache beside them."""
    shared = facts.weights.shared_bytes(facts.cast_itemsize(request.dtype))
    note = f"{streaming.slots} of {streaming.num_experts} per layer"
    if streaming.resident_layers:
        note += f", {streaming.resident_layers} layers whole"
    rows = [
        Term(EntryKind.WEIGHTS, shared, TermSource.HEADER, "without experts"),
        Term(EntryKind.EXPERTS, streaming.slot_bytes, TermSource.HEADER, note),
        Term(EntryKind.EXPERTS, streaming.bank_bytes, TermSource.HEADER, "read-ahead banks"),
        Term(EntryKind.PAGE_CACHE, streaming.page_cache_bytes, TermSource.POLICY,
             "left to the operating system", Covers.HOST),
    ]  # fmt: skip
    rows += _working_terms(facts, settings, request, machine, measured, STREAMING_POOL_BYTES)
    slots = max(streaming.largest_bank_bytes, facts.weights.largest_tensor_bytes // 8)
    kv = _largest_buffer(facts, settings, request, weights=False)
    return Need(tuple(rows), max(slots, kv))


def streamed_layers_need(
    facts: ModelFacts,
    settings: Settings,
    request: PlanRequest,
    machine: MachineLimits,
    measured: MeasuredTerms,
    placement: LayerPlacement,
) -> Need:
    """The layers that stay, banks for those that pass through, and what no layer holds."""
    cast = facts.cast_itemsize(request.dtype)
    layers = layer_sizes(facts, cast)
    shared = facts.weights.resident_bytes(cast) - sum(layer.bytes for layer in layers)
    note = f"{len(layers) - len(placement.streamed)} of {len(layers)} layers, and the rest"
    rows = [
        Term(EntryKind.WEIGHTS, shared + placement.resident_bytes, TermSource.HEADER, note),
        Term(EntryKind.WEIGHTS, placement.bank_bytes, TermSource.HEADER, "read-ahead banks"),
    ]
    rows += _working_terms(facts, settings, request, machine, measured, STREAMING_POOL_BYTES)
    return Need(tuple(rows), _largest_buffer(facts, settings, request))


def _working_terms(
    facts: ModelFacts,
    settings: Settings,
    request: PlanRequest,
    machine: MachineLimits,
    measured: MeasuredTerms,
    max_pool: int = MAX_POOL_BYTES,
) -> list[Term]:
    # Windows grow by whole strides: the dearest way to fill a context is to decode all of it, or,
    # where it is shorter than the window, to decode one stride behind a prompt.
    per_sequence = max(
        facts.kv_bytes(prompt, settings.context - prompt, settings.kv, request.dtype)
        for prompt in (0, settings.context - 1)
    )
    scratch, source = _scratch(facts, settings, request, machine, measured)
    note = f"prefill of {settings.prefill_chunk:,} tokens"
    picture = _picture_scratch(facts, request, machine)
    if picture > scratch:  # a picture and a chunk never run at once
        scratch, source, note = picture, TermSource.FORMULA, "the pass over one picture"
    rows = [
        Term(EntryKind.KV, per_sequence * settings.parallel, TermSource.FORMULA,
             f"{settings.parallel} x {settings.context:,} tokens, {_kv_note(facts, settings)}"),
        Term(EntryKind.SCRATCH, scratch, source, note),
        Term(EntryKind.BUFFER_POOL,
             buffer_pool_bytes(request, machine, _pool_wish(scratch, measured), max_pool),
             TermSource.POLICY, "buffers MLX keeps for reuse"),
    ]  # fmt: skip
    if request.prefix_cache_bytes:
        rows.append(Term(EntryKind.PREFIX_CACHE, request.prefix_cache_bytes, TermSource.POLICY))
    if request.prefix_disk:
        rows.append(
            Term(EntryKind.WRITE_BUFFERS, WRITE_BUFFER_BYTES, TermSource.POLICY, "SSD tier",
                 Covers.HOST)
        )  # fmt: skip
    if request.images and facts.reads_images:
        tower = facts.weights.part(WeightPart.VISION, facts.cast_itemsize(request.dtype))
        rows.append(Term(EntryKind.IMAGES, tower + FEATURE_BYTES, TermSource.HEADER,
                         "and pictures it has read"))  # fmt: skip
    rows.append(_process_term(facts, request, machine, measured))
    return rows


def _process_term(
    facts: ModelFacts, request: PlanRequest, machine: MachineLimits, measured: MeasuredTerms
) -> Term:
    size, source = measured.process_bytes, TermSource.MEASURED
    if size is None:
        size, source = PROCESS_BYTES, TermSource.POLICY
        size += TOKENIZER_BYTES_PER_TOKEN * facts.shape.vocab_size
        size += DRIVER_BYTES[machine.accelerator]
        size += PREPARED_BYTES if request.images and facts.reads_images else 0
    return Term(EntryKind.PROCESS, size, source, "Python, MLX, tokenizer", Covers.HOST)


def buffer_pool_bytes(
    request: PlanRequest, machine: MachineLimits, wish: int, max_pool: int = MAX_POOL_BYTES
) -> int:
    """The pool exists to reuse scratch; more than one chunk's scratch in it is memory lost."""
    if request.buffer_cache_bytes is not None:
        return request.buffer_cache_bytes
    ceiling = min(max_pool, max(4 * MIN_POOL_BYTES, machine.ram_bytes // 20))
    return min(wish, max(MIN_POOL_BYTES, ceiling))


def _pool_wish(scratch: int, measured: MeasuredTerms) -> int:
    """A record's choice as it is: below the least pool it is a person's, 0 included."""
    if measured.record:
        return measured.record.choices.buffer_cache_bytes
    return max(MIN_POOL_BYTES, scratch)


def _scratch(
    facts: ModelFacts,
    settings: Settings,
    request: PlanRequest,
    machine: MachineLimits,
    measured: MeasuredTerms,
) -> tuple[int, TermSource]:
    total = prefill_scratch(facts, settings, machine.accelerator, dtype=request.dtype).total
    if measured.scratch_ratio is None:
        return total, TermSource.FORMULA
    return int(total * measured.scratch_ratio), TermSource.MEASURED


def _picture_scratch(facts: ModelFacts, request: PlanRequest, machine: MachineLimits) -> int:
    if not request.images or not facts.reads_images or facts.tower is None:
        return 0
    return image_scratch(facts.tower, machine.accelerator, facts.itemsize(request.dtype))


def _largest_buffer(
    facts: ModelFacts, settings: Settings, request: PlanRequest, *, weights: bool = True
) -> int:
    size = facts.itemsize(request.dtype)
    arrays = [
        store.heads * max(store.k_dim, store.v_dim) * store.held_tokens(settings.context) * size
        for layer in facts.layers
        for store in layer.stores
    ]
    largest = max(arrays, default=0) * settings.parallel
    return max(largest, facts.weights.largest_tensor_bytes) if weights else largest


def _kv_note(facts: ModelFacts, settings: Settings) -> str:
    if not settings.kv.turbo:
        kinds = [k for k in facts.layer_kinds if k not in (LayerKind.FULL, LayerKind.NONE)]
        return "exact" + (f" ({', '.join(kinds)} layers bounded or shared)" if kinds else "")
    done = facts.compressed_layers(settings.kv)
    return f"{settings.kv} in {done} of {len(facts.layers)} layers"


def whole_gigabytes(size: int) -> str:
    """For flags: rounded up to a tenth, so that what is printed is enough."""
    return f"{-(-size * 10 // GB) / 10:.1f}GB"
