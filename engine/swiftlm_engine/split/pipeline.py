"""A range of a model's layers on this rank, for every family whose layers stand in one row.

The leader embeds, runs the first layers, and gets back from the last rank what the final norm and
the head need; the ranks between hold layers only. A model stays what it is: its layers that are
elsewhere return what they are given, the first and the last of this rank's take and hand on the
hidden states, and a follower's forward pass ends there.

Masks are made from some layer's cache. Where that layer is absent, a layer of its kind on this rank
lends its cache: layers of one kind are at the same position before a forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import CacheList, KVCache, make_prompt_cache

from swiftlm_engine.messages import EngineFault, FaultKind
from swiftlm_engine.split.placeholder_cache import AbsentCache, absent

Caches = Sequence[Any]  # mlx-lm's, one per layer


class Hop(Protocol):
    """The way to the next rank, and from the one before; in the order of the calls."""

    def send(self, h: mx.array) -> None: ...

    def receive(self, like: mx.array) -> mx.array: ...


class RingHop:
    """Neighbours on MLX's ring. Both directions are dispatched at once: what is left to a later
    evaluation of the graph may run in another order than the neighbour's, and wait for ever."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self._next = (group.rank() + 1) % group.size()
        self._before = (group.rank() - 1) % group.size()

    def send(self, h: mx.array) -> None:
        mx.async_eval(mx.distributed.send(h, self._next, group=self._group))

    def receive(self, like: mx.array) -> mx.array:
        h = mx.distributed.recv_like(like, self._before, group=self._group)
        mx.async_eval(h)
        return h


class SumHop:
    """Where a back end only adds up (MLX's NCCL): every rank takes part in every hop of a forward
    pass, hop i after rank i's layers, and all but rank i add zeros to its hidden states."""

    def __init__(self, group: Any) -> None:
        self._group = group

    def send(self, h: mx.array) -> None:
        self._sum(h)
        for _ in range(self._hops_of_others_after()):
            self._sum(mx.zeros_like(h))

    def receive(self, like: mx.array) -> mx.array:
        for _ in range(self._group.rank() or self._group.size() - 1):
            h = self._sum(mx.zeros_like(like))
        return h

    def _hops_of_others_after(self) -> int:
        """None for the leader, who takes part in those when it waits for the last rank's."""
        rank = self._group.rank()
        return self._group.size() - 1 - rank if rank else 0

    def _sum(self, part: mx.array) -> mx.array:
        h = mx.distributed.all_sum(part, group=self._group)
        mx.async_eval(h)  # in the order of the calls, as above
        return h


def install(model: nn.Module, own: range, hop: Hop) -> list[nn.Module]:
    """Leaves this rank the layers `own` of a model that is not evaluated yet; 0 is the leader's.

    Returns the modules whose weights this rank needs. Raises `EngineFault` for a family whose
    layers are not in one row with one cache each.
    """
    layers, caches = _layers(model), make_prompt_cache(model)
    if len(layers) != len(caches):
        raise _refused(model, f"{len(caches)} caches for {len(layers)} layers")
    leads = own.start == 0
    kept = [layers[i] for i in own]
    if not leads:
        _blind(model, layers)
    for i, layer in enumerate(layers):
        if i not in own:
            _remove(layer)
    stage = _Stage(model, hop, leads)
    _wrap(kept, stage)
    _divert(model, own, caches)
    return [model] if leads else kept


class _HandedOn(Exception):
    """A follower's part of the forward pass is over."""


class _Stage:
    """Where hidden states come in and leave."""

    def __init__(self, model: nn.Module, hop: Hop, leads: bool) -> None:
        self._model = model
        self._hop = hop
        self._leads = leads
        self._dtype = mx.float32

    def enter(self, h: mx.array) -> mx.array:
        self._dtype = h.dtype  # what every rank expects
        return h if self._leads else self._hop.receive(h)

    def leave(self, h: Any) -> mx.array:
        if not isinstance(h, mx.array):
            raise _refused(self._model, f"a layer returns a {type(h).__name__}")
        self._hop.send(h.astype(self._dtype))
        if self._leads:
            return self._hop.receive(h.astype(self._dtype))
        raise _HandedOn


def _wrap(kept: Sequence[nn.Module], stage: _Stage) -> None:
    """Models look at types and attributes of their layers: they stay, but for the call."""
    first, last = kept[0], kept[-1]
    enters = type(first)

    def enter(self: nn.Module, h: mx.array, *args: Any, **kwargs: Any) -> Any:
        return enters.__call__(self, stage.enter(h), *args, **kwargs)

    first.__class__ = type(enters.__name__, (enters,), {"__call__": enter})
    leaves = type(last)  # the same layer may be both

    def leave(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return stage.leave(leaves.__call__(self, *args, **kwargs))

    last.__class__ = type(leaves.__name__, (leaves,), {"__call__": leave})


def _remove(layer: nn.Module) -> None:
    """Without its weights, which nobody has read yet; hidden states pass through."""
    base = type(layer)
    for part in layer.modules():
        for name in [name for name, value in part.items() if isinstance(value, mx.array)]:
            del part[name]

    def call(self: nn.Module, h: mx.array, *args: Any, **kwargs: Any) -> mx.array:
        return h

    layer.__class__ = type(base.__name__, (base,), {"__call__": call})


def _blind(model: nn.Module, layers: Sequence[nn.Module]) -> None:
    """Embeddings of a follower: the shape and type of what the leader will send, and no values."""
    inside = {id(part) for layer in layers for part in layer.modules()}
    for part in model.modules():
        if isinstance(part, nn.Embedding | nn.QuantizedEmbedding) and id(part) not in inside:
            _blind_one(part)


def _blind_one(embedding: nn.Module) -> None:
    base = type(embedding)
    like = base.__call__(embedding, mx.array([0]))  # lazy, and never evaluated

    def call(self: nn.Module, ids: mx.array) -> mx.array:
        return mx.zeros((*ids.shape, like.shape[-1]), like.dtype)

    embedding.__class__ = type(base.__name__, (base,), {"__call__": call})


def _divert(model: nn.Module, own: range, caches: Caches) -> None:
    """The model makes and takes one cache per layer, absent ones among them."""
    base = type(model)
    placeholders = {i: absent(cache) for i, cache in enumerate(caches) if i not in own}
    lenders = {i: _lender(i, own, caches) for i in placeholders}

    def make_cache(self: nn.Module) -> list[Any]:
        if hasattr(base, "make_cache"):
            fresh = base.make_cache(self)
        else:  # what mlx-lm makes then
            fresh = [KVCache() for _ in caches]
        return [placeholders.get(i, cache) for i, cache in enumerate(fresh)]

    def call(self: nn.Module, inputs: mx.array, cache: Caches | None = None) -> mx.array:
        if cache is not None:
            cache = [
                _lent(i, cache, lenders, caches) if isinstance(own_, AbsentCache) else own_
                for i, own_ in enumerate(cache)
            ]
        try:
            return base.__call__(self, inputs, cache=cache)
        except _HandedOn:
            return mx.zeros((*inputs.shape, 1))  # nobody reads a follower's logits

    members = {"__call__": call, "make_cache": make_cache}
    model.__class__ = type(base.__name__, (base,), members)


def _lent(i: int, cache: Caches, lenders: dict[int, int | None], empty: Caches) -> Any:
    lender = lenders[i]
    return empty[i] if lender is None else cache[lender]


def _lender(i: int, own: range, caches: Caches) -> int | None:
    """None where no layer of this rank needs a mask of that kind."""
    return next((j for j in own if _kind(caches[j]) == _kind(caches[i])), None)


def _kind(cache: Any) -> object:
    if isinstance(cache, CacheList):
        return tuple(_kind(part) for part in cache.caches)
    return type(cache), getattr(cache, "max_size", 0), getattr(cache, "chunk_size", 0)


def _layers(model: nn.Module) -> list[nn.Module]:
    layers = getattr(model, "layers", None)
    if not isinstance(layers, list) or not all(isinstance(x, nn.Module) for x in layers):
        raise _refused(model, "its layers are not where they are known to be")
    return layers


def _refused(model: nn.Module, why: str) -> EngineFault:
    family = getattr(model, "model_type", type(model).__name__)
    return EngineFault(
        FaultKind.UNSUPPORTED,
        f"family '{family}' cannot be split over several machines: {why}; load it on one",
    )
