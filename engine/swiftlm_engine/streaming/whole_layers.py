"""A dense model larger than memory: its layers are read from disk for every step.

Layers of the same shapes take turns in two banks: one is read while the other computes (in one bank
where two of them never follow each other). A layer is
evaluated, with its caches, before its bank is given to another; its arithmetic is its own, so the
text is that of the resident model. Works for any architecture that calls its layers, which a trial
finds out: what is streamed are the parameters that the model takes from the checkpoint untouched,
and what it changes on the way stays resident.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.utils import _get_classes, load_config

from swiftlm_engine.brain.plan.layer_streaming import LayerSize, banks_by_kind, place_layers
from swiftlm_engine.messages import EngineFault, FaultKind
from swiftlm_engine.streaming.counters import LayerCounters, StreamCounters
from swiftlm_engine.streaming.gpu_memory import keep_on_device, make_reader
from swiftlm_engine.streaming.layer_calls import passed_over, replace_call
from swiftlm_engine.streaming.reader import Job, ReadSource, can_read
from swiftlm_engine.streaming.report import StreamingReport, StreamMode, StreamOptions, refused
from swiftlm_engine.streaming.streamer import Streamer
from swiftlm_engine.streaming.table import DTYPES, NAMES, TableError, read_headers

# The plan takes all of a layer to pass through; what the model changes on the way in does not.
SLACK = 1.05


@dataclass(frozen=True, slots=True)
class _Parameter:
    """One array of a layer that can be read straight from the file."""

    name: str
    source: ReadSource
    shape: tuple[int, ...]
    dtype: str
    owner: nn.Module  # of the layer: the module that holds it, and under which key
    key: str

    @property
    def shape_key(self) -> str:
        return f"{self.name}{self.shape}{self.dtype}"


@dataclass(frozen=True, slots=True, eq=False)
class _StreamedLayer:
    path: str
    block: nn.Module
    parameters: tuple[_Parameter, ...]
    memory_bytes: int
    counters: LayerCounters

    @property
    def kind(self) -> str:
        return " ".join(parameter.shape_key for parameter in self.parameters)

    def withhold(self) -> None:
        """Takes the streamed weights out: whatever reads one from now on fails."""
        for parameter in self.parameters:
            dict.pop(parameter.owner, parameter.key, None)


class _Bank:
    """Room for one layer of a kind. Its arrays are made once and written in place."""

    def __init__(self, layer: _StreamedLayer) -> None:
        self.holds: _StreamedLayer | None = None
        self.fresh = False  # read ahead and not used yet
        self._arrays = [mx.zeros(p.shape, dtype=DTYPES[p.dtype]) for p in layer.parameters]
        mx.eval(self._arrays)
        # A view is the array's own memory and stays valid as long as the array.
        self._views = [memoryview(array).cast("B") for array in self._arrays]
        for view in self._views:
            keep_on_device(view)

    def jobs(self, layer: _StreamedLayer) -> list[Job]:
        pairs = zip(layer.parameters, self._views, strict=True)
        return [Job(parameter.source, view, parameter.dtype) for parameter, view in pairs]

    def lend(self, layer: _StreamedLayer) -> None:
        for parameter, array in zip(layer.parameters, self._arrays, strict=True):
            dict.__setitem__(parameter.owner, parameter.key, array)


class LayerCycle:
    """The streamed layers in the order in which a step asks for them. The engine thread's."""

    def __init__(self, layers: list[_StreamedLayer], streamer: Streamer) -> None:
        self._layers = layers
        self._streamer = streamer
        self._banks: dict[str, tuple[_Bank, ...]] = {}
        num_banks = banks_by_kind([layer.kind for layer in layers])
        for kind, same in _by_kind(layers).items():
            self._banks[kind] = tuple(_Bank(same[0]) for _ in range(num_banks[kind]))
        self._lend_all()  # lets go of the lazy arrays
        self._trial: dict[str, int] | None = None  # calls by path

    @contextmanager
    def trial(self) -> Iterator[dict[str, int]]:
        """Inside, a call only counts, and a layer holds its weights during its own call alone."""
        self._trial = dict.fromkeys((layer.path for layer in self._layers), 0)
        for layer in self._layers:
            layer.withhold()
        try:
            yield self._trial
        finally:
            self._trial = None
            self._lend_all()

    @contextmanager
    def lend(self, place: int) -> Iterator[None]:
        """The layer's weights are in memory inside; nothing may read them lazily afterwards."""
        layer = self._layers[place]
        if self._trial is not None:
            self._trial[layer.path] += 1
            self._banks[layer.kind][0].lend(layer)
            try:
                yield
            finally:
                layer.withhold()
            return
        bank = self._bring(layer)
        bank.lend(layer)
        self._start_reading(self._layers[(place + 1) % len(self._layers)], bank)
        yield
        layer.counters.calls += 1

    def _lend_all(self) -> None:
        """All banks are seen among the parameters: what is resident is counted by them."""
        for kind, same in _by_kind(self._layers).items():
            banks = self._banks[kind]
            for number, layer in enumerate(same):
                banks[number % len(banks)].lend(layer)

    def finish(self, place: int, output: Any, arguments: Any) -> None:
        """Evaluates all that a layer computed: its output, its caches, what it added to a list."""
        if self._trial is not None:
            return
        arrays = _arrays(output)
        caches = [_arrays(_state(leaf)) for _, leaf in tree_flatten(arguments)]
        mx.eval(arrays, caches, _arrays(arguments))
        if arrays:
            self._layers[place].counters.tokens += arrays[0].size // arrays[0].shape[-1]

    def _bring(self, layer: _StreamedLayer) -> _Bank:
        self._streamer.settle()
        counters = layer.counters
        banks = self._banks[layer.kind]
        bank = next((b for b in banks if b.holds is layer), None)
        if bank is not None:
            counters.hits += 1
            counters.ahead_used += bank.fresh
        else:
            bank = next((b for b in banks if not b.fresh), banks[0])
            bank.holds, bank.fresh = None, False
            self._streamer.read(bank.jobs(layer))
            counters.misses += 1
        bank.holds, bank.fresh = layer, False
        counters.wanted += 1
        return bank

    def _start_reading(self, layer: _StreamedLayer, used: _Bank) -> None:
        banks = self._banks[layer.kind]
        if any(bank.holds is layer for bank in banks):
            return
        bank = next(b for b in banks if b is not used)
        bank.holds, bank.fresh = None, False

        def done(filled: bool) -> None:
            bank.holds = layer if filled else None
            bank.fresh = filled
            layer.counters.ahead += filled

        self._streamer.read_ahead(bank.jobs(layer), done)


def _by_kind(layers: list[_StreamedLayer]) -> dict[str, list[_StreamedLayer]]:
    found: dict[str, list[_StreamedLayer]] = {}
    for layer in layers:
        found.setdefault(layer.kind, []).append(layer)
    return found


def install_layers(model: nn.Module, folder: Path, options: StreamOptions) -> StreamingReport:
    """Raises `EngineFault`: nothing has been read."""
    try:
        layers = _find_layers(model, _find_sources(folder))
    except (TableError, OSError) as error:
        raise refused(str(error)) from error
    sizes = [LayerSize(x.memory_bytes, x.kind, x.counters.record_bytes) for x in layers]
    total = sum(array.nbytes for _, array in tree_flatten(model.parameters()))
    shared = total - sum(size.bytes for size in sizes)
    placed = place_layers(sizes, options.resident_bytes - shared)
    if 0 < options.resident_bytes * SLACK < shared + placed.held_bytes:
        raise _too_small(options.resident_bytes, shared + placed.held_bytes)
    streamed = [layers[i] for i in placed.streamed]
    streamer = _stream(model, streamed, placed.bytes_per_step, options)
    num_streamed = len(placed.streamed)
    record = max((layers[i].counters.record_bytes for i in placed.streamed), default=0)
    resident = len(layers) - num_streamed
    return StreamingReport(streamer, StreamMode.LAYERS, num_streamed, resident, record)


def _too_small(given: int, least: int) -> EngineFault:
    return EngineFault(
        FaultKind.INVALID,
        f"{given / 1e9:.2f} GB hold less than the layers that stay and two that pass through: "
        f"{least / 1e9:.2f} GB are needed",
        param="memory_budget",
    )


def _stream(
    model: nn.Module, layers: list[_StreamedLayer], cycle_bytes: int, options: StreamOptions
) -> Streamer:
    counters = StreamCounters({layer.path: layer.counters for layer in layers})
    nocache = options.keeps_out_of_cache(cycle_bytes)
    reader = make_reader(counters, options.threads, options.preadv, nocache=nocache)
    for layer in layers:
        for parameter in layer.parameters:
            reader.open(parameter.source.path)
    streamer = Streamer(reader, counters)
    cycle = LayerCycle(layers, streamer)
    for place, layer in enumerate(layers):
        _hook(layer, cycle, place)
    try:
        _check_calls(model, cycle)
    except EngineFault:
        streamer.close()
        raise
    return streamer


def _hook(layer: _StreamedLayer, cycle: LayerCycle, place: int) -> None:
    base = type(layer.block)

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:  # as the block's own
        with cycle.lend(place):
            y = base.__call__(self, *args, **kwargs)
            cycle.finish(place, y, (args, kwargs))
        return y

    replace_call(layer.block, call)


def _check_calls(model: nn.Module, cycle: LayerCycle) -> None:
    """Raises `EngineFault` where the model would compute with what is in no bank."""
    with cycle.trial() as calls:
        why = passed_over(model, lambda: calls)
    if why:
        raise refused(why)


def _arrays(tree: Any) -> list[mx.array]:  # any tree of arrays
    return [leaf for _, leaf in tree_flatten(tree) if isinstance(leaf, mx.array)]


def _state(argument: Any) -> Any:  # of a cache; nothing of anything else
    return getattr(argument, "state", None)


def _find_sources(folder: Path) -> dict[str, ReadSource]:
    """Where each parameter lies that the model takes as it is.

    `sanitize` renames tensors, and changes some: those it hands on are the same objects. It may
    change the model, too (a tied Gemma 3 loses its head), so that a bare one is made for it.
    """
    tensors = read_headers(folder)
    lazy: dict[str, mx.array] = {}
    for file in sorted({tensor.path for tensor in tensors.values()}):
        lazy |= mx.load(str(file))
    names = {id(array): name for name, array in lazy.items()}
    found = {}
    for path, array in _sanitized(folder, dict(lazy)).items():
        tensor = tensors.get(names.get(id(array), ""))
        if tensor is not None and tensor.shape == tuple(array.shape):
            found[path] = ReadSource(tensor.path, tensor.offset, tensor.num_bytes, tensor.dtype)
    return found


def _sanitized(folder: Path, weights: dict[str, mx.array]) -> dict[str, mx.array]:
    """As a load sanitizes them. Raises `TableError`."""
    config = load_config(folder)
    try:
        model_class, args_class = _get_classes(config)
        model = model_class(args_class.from_dict(config))  # its arrays are lazy and stay so
        sanitized: dict[str, mx.array] = getattr(model, "sanitize", dict)(weights)
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise TableError(f"the tensors of this model cannot be followed: {error!r}") from error
    return sanitized


def _find_layers(model: nn.Module, sources: dict[str, ReadSource]) -> list[_StreamedLayer]:
    blocks = getattr(model, "layers", None)
    if not isinstance(blocks, list) or not all(isinstance(b, nn.Module) for b in blocks):
        raise refused("the layers of this model are not where they are known to be")
    paths = {id(module): path for path, module in model.named_modules()}
    return [_layer(paths[id(block)], block, sources) for block in blocks]


def _layer(path: str, block: nn.Module, sources: dict[str, ReadSource]) -> _StreamedLayer:
    parameters, memory_bytes = [], 0
    for name, array in tree_flatten(block.parameters()):
        source, dtype = sources.get(f"{path}.{name}"), NAMES.get(array.dtype, "")
        if source is None or not can_read(source.dtype, dtype):
            continue
        owner, key = _owner(block, name)
        parameters.append(_Parameter(name, source, tuple(array.shape), dtype, owner, key))
        memory_bytes += array.nbytes
    disk_bytes = sum(parameter.source.num_bytes for parameter in parameters)
    return _StreamedLayer(path, block, tuple(parameters), memory_bytes, LayerCounters(disk_bytes))


def _owner(block: nn.Module, name: str) -> tuple[nn.Module, str]:
    *parts, key = name.split(".")
    owner: Any = block  # a module, or a list of them
    for part in parts:
        owner = owner[int(part)] if isinstance(owner, list) else owner[part]
    return owner, key
