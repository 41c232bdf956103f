"""Puts streamed experts into a model that was loaded lazily, before anything is evaluated.

Fails closed: a family, module or layout that is not known is refused by name while no expert has
been read, so that a bank is never loaded whole by accident.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchGLU, SwitchLinear

from swiftlm_engine.brain.facts import read_model
from swiftlm_engine.brain.facts.expert_layout import EXPERT_MODULES
from swiftlm_engine.brain.plan.expert_families import streams_experts
from swiftlm_engine.messages import EngineFault, FaultKind
from swiftlm_engine.streaming.counters import LayerCounters, StreamCounters
from swiftlm_engine.streaming.gpu_memory import make_reader
from swiftlm_engine.streaming.layer import GROUP, Bank, StreamedExperts
from swiftlm_engine.streaming.next_router import NextLayer, Router, router_of
from swiftlm_engine.streaming.pack import open_pack, packed
from swiftlm_engine.streaming.report import StreamingReport, StreamMode, StreamOptions, refused
from swiftlm_engine.streaming.slots import SlotMap, make_policy
from swiftlm_engine.streaming.streamer import Streamer
from swiftlm_engine.streaming.table import (
    NAMES,
    Component,
    StreamedTensor,
    TableError,
    locate,
    memory_bytes,
    read_headers,
    record_bytes,
)
from swiftlm_engine.streaming.whole_layers import install_layers

MIN_SLOTS = 8
TOP_K_NAMES = ("top_k", "num_experts_per_tok", "num_experts_per_token", "top_k_experts", "k")


@dataclass(frozen=True, slots=True)
class ExpertLayer:
    """The experts of one layer: the module in memory, and where its arrays lie on disk."""

    path: str
    switch: nn.Module
    components: tuple[Component, ...]


def install(
    model: nn.Module, model_type: str, folder: Path, options: StreamOptions
) -> StreamingReport:
    """Raises `EngineFault`: nothing has been read and the model is as it was."""
    by_experts = options.mode is StreamMode.EXPERTS
    if options.mode is StreamMode.AUTO:  # without a plan, as a plan decides
        by_experts = streams_experts(read_model(folder))
    if by_experts:
        return _install_experts(model, model_type, folder, options)
    return install_layers(model, folder, options)


def _install_experts(
    model: nn.Module, model_type: str, folder: Path, options: StreamOptions
) -> StreamingReport:
    layers = find_experts(model, model_type, folder)
    pack = open_pack(folder)
    if pack is not None:
        layers = [replace(x, components=packed(pack, folder, x.path, x.components)) for x in layers]
    num_experts = len(layers[0].components[0].sources)
    top_k = _top_k(model, [layer.path for layer in layers], options.top_k)
    slots = min(num_experts, options.slots or max(MIN_SLOTS, top_k))
    if slots < top_k:
        raise EngineFault(
            FaultKind.INVALID,
            f"{slots} expert slots are fewer than the {top_k} experts of one token",
            param="expert_slots",
        )
    resident = _num_resident(model, layers, num_experts, slots, options.resident_bytes)
    routers = _routers(model, layers[resident:], top_k) if options.prefetch else []
    streamer = _stream(model, layers[resident:], slots, routers, options)
    return StreamingReport(
        streamer,
        StreamMode.EXPERTS,
        len(layers) - resident,
        resident,
        max(record_bytes(layer.components) for layer in layers),
        num_experts,
        top_k,
        options.policy,
        packed=pack is not None,
    )


def find_experts(model: nn.Module, model_type: str, folder: Path) -> list[ExpertLayer]:
    """Where the experts of a lazily loaded model lie. Raises `EngineFault` if not all is known."""
    if model_type not in EXPERT_MODULES:
        raise refused(f"experts of model type '{model_type}' cannot be streamed")
    switches = _find(model, model_type)
    try:
        tensors = read_headers(folder)
        return [ExpertLayer(p, s, _components(tensors, p, s)) for p, s in switches.items()]
    except (TableError, OSError) as error:
        raise refused(str(error)) from error


def _find(model: nn.Module, model_type: str) -> dict[str, nn.Module]:
    """Expert modules by path; every bank of experts must be inside one of them."""
    named = model.named_modules()
    found = {path: module for path, module in named if type(module) is SwitchGLU}
    for path, module in named:
        is_bank = isinstance(module, SwitchLinear | QuantizedSwitchLinear)
        if is_bank and path.rpartition(".")[0] not in found:
            raise refused(f"{path} of model type '{model_type}' is a bank of an unknown kind")
    if not found:
        raise refused(f"model type '{model_type}' has no experts to stream in this checkpoint")
    return dict(sorted(found.items(), key=lambda item: _layer_order(item[0])))


def _layer_order(path: str) -> tuple[int, ...]:
    return tuple(int(part) for part in path.split(".") if part.isdecimal())


def _components(
    tensors: dict[str, StreamedTensor], path: str, switch: nn.Module
) -> tuple[Component, ...]:
    return tuple(
        locate(tensors, path, name, tuple(array.shape), NAMES.get(array.dtype, str(array.dtype)))
        for name, array in tree_flatten(switch.parameters())
    )


def _top_k(model: nn.Module, paths: list[str], wanted: int) -> int:
    """Experts per token; lowers it where `wanted` asks for fewer."""
    modules = dict(model.named_modules())
    sites = []
    for path in paths:
        above = path.rpartition(".")[0]
        parent, outer = modules[above], modules[above.rpartition(".")[0]].get("router")
        for owner in (
            parent,
            parent.get("gate"),
            parent.get("router"),
            getattr(parent, "args", None),
            getattr(outer, "config", None),
        ):
            for name in TOP_K_NAMES:
                if isinstance(getattr(owner, name, None), int):
                    sites.append((owner, name))
    if not sites:
        raise refused("the number of experts per token is not where this model type has it")
    top_k = max(getattr(owner, name) for owner, name in sites)
    if not 0 < wanted < top_k:
        return top_k
    for owner, name in sites:
        setattr(owner, name, wanted)
    return wanted


def _num_resident(
    model: nn.Module, layers: list[ExpertLayer], num_experts: int, slots: int, resident_bytes: int
) -> int:
    """Layers that the memory left over from slots can hold whole, from the first one on.

    They are never asked for their ids. With a slot for each expert all layers are such.
    """
    if slots == num_experts:
        return len(layers)
    sizes = [memory_bytes(layer.components) for layer in layers]
    total = sum(array.nbytes for _, array in tree_flatten(model.parameters()))
    shared = total - num_experts * sum(sizes)
    spare = resident_bytes - shared - slots * sum(sizes)
    resident = 0
    while resident < len(sizes) and spare >= (num_experts - slots) * sizes[resident]:
        spare -= (num_experts - slots) * sizes[resident]
        resident += 1
    return resident


def _stream(
    model: nn.Module,
    layers: list[ExpertLayer],
    slots: int,
    routers: list[Router],
    options: StreamOptions,
) -> Streamer:
    counters = StreamCounters()
    nocache = options.keeps_out_of_cache()
    reader = make_reader(counters, options.threads, options.preadv, nocache=nocache)
    streamer = Streamer(reader, counters)
    shared: dict[tuple[object, ...], tuple[Bank, Bank]] = {}
    streamed = []
    for layer in layers:
        for source in (s for component in layer.components for s in component.sources):
            reader.open(source.path)
        own = counters.layers[layer.path] = LayerCounters(record_bytes(layer.components))
        slot_map = SlotMap(slots, make_policy(options.policy, slots))
        bank = Bank(layer.switch, layer.components, slots)
        banks = _banks(shared, layer)
        module = StreamedExperts(layer.path, layer.components, bank, slot_map, banks, streamer, own)
        streamed.append((layer.path, module))
    model.update_modules(tree_unflatten(streamed))
    streamer.slots, streamer.slotted = slots, [module for _, module in streamed]
    for (_, module), (_, following), router in zip(
        streamed, streamed[1:], routers[1:], strict=False
    ):
        module.next = NextLayer(following, router)
    return streamer


def _routers(model: nn.Module, layers: list[ExpertLayer], top_k: int) -> list[Router]:
    modules = dict(model.named_modules())
    found = [router_of(modules[layer.path.rpartition(".")[0]], top_k) for layer in layers]
    known = [router for router in found if router is not None]
    if len(known) < len(found):
        raise EngineFault(
            FaultKind.INVALID,
            "the router of this model type cannot be asked ahead; load it with --ssd-prefetch off",
            param="ssd_prefetch",
        )
    return known


def _banks(
    shared: dict[tuple[object, ...], tuple[Bank, Bank]], layer: ExpertLayer
) -> tuple[Bank, Bank]:
    """Layers with the same shapes share theirs: one layer sweeps at a time."""
    key = tuple((c.name, c.shape, c.dtype) for c in layer.components)
    if key not in shared:
        size = min(GROUP, len(layer.components[0].sources))
        shared[key] = (
            Bank(layer.switch, layer.components, size),
            Bank(layer.switch, layer.components, size),
        )
    return shared[key]
