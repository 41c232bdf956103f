"""The module that takes the place of a `SwitchGLU` whose experts stay on disk.

Its arithmetic is the replaced module's own, on a bank that holds some experts: ids are exchanged
for slots and nothing else changes. Arrays of a bank are made once and written in place; a write
happens only when nothing that was queued still reads the bank.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from swiftlm_engine.streaming.counters import LayerCounters
from swiftlm_engine.streaming.gpu_memory import keep_on_device
from swiftlm_engine.streaming.next_router import NextLayer
from swiftlm_engine.streaming.reader import Job
from swiftlm_engine.streaming.slots import Move, SlotMap, SlotPlan
from swiftlm_engine.streaming.streamer import Streamer
from swiftlm_engine.streaming.table import DTYPES, Component
from swiftlm_engine.streaming.trace import seat

GROUP = 8  # experts in each of the two banks of a sweep; the plan sets their memory aside
MAX_UNREAD = 16  # outputs kept alive; all but the last have long been evaluated
LAZY_ROWS = 64  # outputs of more rows are evaluated at once: keeping them would cost memory


class Bank:
    """Room for some experts, with the replaced module's arithmetic on them."""

    def __init__(self, switch: nn.Module, components: tuple[Component, ...], size: int) -> None:
        self.module = _shell(switch)
        self._targets: list[tuple[memoryview, int]] = []
        for component in components:
            array = mx.zeros((size, *component.shape), dtype=DTYPES[component.dtype])
            mx.eval(array)
            child, _, parameter = component.name.partition(".")
            dict.__setitem__(self.module[child], parameter, array)
            # The view is the array's own memory and stays valid as long as the array.
            view = memoryview(array).cast("B")
            keep_on_device(view)
            self._targets.append((view, array.nbytes // size))

    def jobs(self, components: tuple[Component, ...], expert: int, slot: int) -> list[Job]:
        """Reads of one expert; the components of any layer with the same shapes."""
        return [
            Job(component.sources[expert], view[slot * size : (slot + 1) * size], component.dtype)
            for component, (view, size) in zip(components, self._targets, strict=True)
        ]

    def copy(self, other: Bank, moves: Sequence[Move]) -> None:
        """Experts from a bank of the same shapes, which nothing queued may still write."""
        for (view, size), (source, _) in zip(self._targets, other._targets, strict=True):
            for move in moves:
                old = source[move.old * size : (move.old + 1) * size]
                view[move.new * size : (move.new + 1) * size] = old


class StreamedExperts(nn.Module):
    def __init__(
        self,
        path: str,
        components: tuple[Component, ...],
        slots_bank: Bank,
        slots: SlotMap,
        banks: tuple[Bank, Bank],
        streamer: Streamer,
        counters: LayerCounters,
    ) -> None:
        super().__init__()
        self.experts = slots_bank.module  # seen by `parameters`: what is resident
        self.slots = slots
        self.path = path
        self._bank = slots_bank
        self._source = _Source(components)
        self._banks = _Pair(*banks)
        self._streamer = streamer
        self._counters = counters
        self._unread = _Unread()
        self._fresh = _Fresh()
        self.next: NextLayer | None = None

    def __call__(self, x: mx.array, indices: mx.array) -> mx.array:
        foreseen = None
        if self.next is not None and indices.size <= LAZY_ROWS:
            foreseen = self.next.router(x)
            mx.async_eval(foreseen)
        ids = self._read_ids(indices)
        self._streamer.settle()  # what is read ahead for this layer is in its slots from here on
        wanted = _most_wanted_first(ids)
        if self._streamer.trace is not None:
            self._streamer.trace.add(self.path, wanted)
        seated, swept = seat(self.slots, wanted)
        self._fill_slots(seated)
        y = self._sweep(x, ids, seated, swept) if swept else self._direct(x, ids, seated)
        if self.next is not None and foreseen is not None:
            self.next.layer.read_ahead(tuple(dict.fromkeys(foreseen.flatten().tolist())))
        self._counters.calls += 1
        self._counters.tokens += ids.size // ids.shape[-1]
        return y

    def read_ahead(self, experts: tuple[int, ...]) -> None:
        """Starts to read what is foreseen for the next call, most likely first."""
        self._streamer.settle()
        plan = self.slots.plan(experts[: self.slots.num_slots])
        if not plan.installs:
            return
        try:
            self._unread.evaluate()
        except BaseException:
            self.slots.abandon(plan)
            raise
        self._forget(plan)
        self._counters.evictions += plan.num_evicted

        def done(filled: bool) -> None:  # before anybody's `settle` returns
            if not filled:
                self.slots.abandon(plan)
                return
            self.slots.commit(plan)
            self._counters.ahead += len(plan.installs)
            self._fresh.experts.update(install.expert for install in plan.installs)

        self._streamer.read_ahead(self._jobs(plan), done)

    def wanted(self) -> list[int]:
        return self.slots.most_wanted()

    def take_in(self, experts: Sequence[int]) -> int:
        plan = self.slots.plan(experts)
        try:
            self._unread.evaluate()
            self._streamer.read(self._jobs(plan))
        except BaseException:
            self.slots.abandon(plan)
            raise
        self._forget(plan)
        self.slots.commit(plan)
        self._counters.evictions += plan.num_evicted
        self._counters.ahead += len(plan.installs)
        self._fresh.experts.update(install.expert for install in plan.installs)
        return len(plan.installs)

    def rank(self, experts: Sequence[int]) -> None:
        self.slots.touch([expert for expert in reversed(experts) if expert in self.slots])

    def _jobs(self, plan: SlotPlan) -> list[Job]:
        source = self._source.components
        return [j for i in plan.installs for j in self._bank.jobs(source, i.expert, i.slot)]

    def _forget(self, plan: SlotPlan) -> None:
        self._fresh.experts.difference_update(i.evicted for i in plan.installs)

    def resize(self, num_slots: int) -> None:
        """Between steps. Holds both banks until it returns."""
        self._unread.evaluate()
        bank = Bank(self._bank.module, self._source.components, num_slots)
        bank.copy(self._bank, self.slots.resize(num_slots))
        self.experts, self._bank = bank.module, bank

    def _read_ids(self, indices: mx.array) -> np.ndarray[Any, Any]:
        """The one wait of a streamed layer: the router's choice comes to the host."""
        started = time.perf_counter()
        ids = np.array(indices)
        self._streamer.counters.syncs += 1
        self._streamer.counters.sync_s += time.perf_counter() - started
        return ids

    def _fill_slots(self, experts: tuple[int, ...]) -> None:
        plan = self.slots.plan(experts)
        try:
            if plan.installs:
                self._unread.evaluate()
                self._streamer.read(self._jobs(plan))
        except BaseException:
            self.slots.abandon(plan)
            raise
        self.slots.commit(plan)
        self._counters.wanted += len(experts)
        self._counters.hits += len(plan.hits)
        self._counters.misses += len(plan.installs)
        self._counters.evictions += plan.num_evicted
        if self._fresh.experts:
            self._counters.ahead_used += len(self._fresh.experts.intersection(plan.hits))
            self._fresh.experts.difference_update(plan.hits)
            self._forget(plan)

    def _direct(self, x: mx.array, ids: np.ndarray[Any, Any], wanted: tuple[int, ...]) -> mx.array:
        y: mx.array = self.experts(x, mx.array(_exchange(ids, wanted, self._slots_of(wanted))))
        if ids.size > LAZY_ROWS:
            mx.eval(y)
        else:
            self._unread.add(y)
        return y

    def _slots_of(self, experts: tuple[int, ...]) -> list[int]:
        return [self.slots.slot(expert) for expert in experts]

    def _sweep(
        self,
        x: mx.array,
        ids: np.ndarray[Any, Any],
        seated: tuple[int, ...],
        swept: tuple[int, ...],
    ) -> mx.array:
        """Expert by expert instead of token by token; a group is read while another computes."""
        rows = x.reshape(-1, x.shape[-1])  # (tokens, hidden)
        flat = ids.reshape(-1)  # (tokens * k,)
        picked = [np.nonzero(np.isin(flat, seated))[0]]
        places = _exchange(flat[picked[0]], seated, self._slots_of(seated))
        outputs = [self._part(self.experts, rows, ids, picked[0], places)]
        mx.async_eval(outputs[0])
        for number, start in enumerate(range(0, len(swept), GROUP)):
            group, bank = swept[start : start + GROUP], self._banks[number]
            if number >= 2:
                mx.eval(outputs[number - 1])  # the last user of this bank
            self._read_group(bank, group)
            picked.append(np.nonzero(np.isin(flat, group))[0])
            places = _exchange(flat[picked[-1]], group, range(len(group)))
            outputs.append(self._part(bank.module, rows, ids, picked[-1], places))
            mx.async_eval(outputs[-1])
        back = np.argsort(np.concatenate(picked))
        y = mx.concatenate(outputs)[mx.array(back)].reshape(*ids.shape, -1)
        mx.eval(y)  # the banks are the next layer's, too
        self._counters.sweeps += 1
        return y

    def _read_group(self, bank: Bank, group: tuple[int, ...]) -> None:
        source = self._source.components
        jobs = [j for place, e in enumerate(group) for j in bank.jobs(source, e, place)]
        try:
            self._streamer.read(jobs)
        except BaseException:
            mx.synchronize()  # nothing may be left that reads a bank
            raise
        self._counters.wanted += len(group)
        self._counters.misses += len(group)
        self._counters.swept += len(group)

    @staticmethod
    def _part(
        experts: nn.Module,
        rows: mx.array,
        ids: np.ndarray[Any, Any],
        picked: np.ndarray[Any, Any],
        places: np.ndarray[Any, Any],
    ) -> mx.array:
        """Outputs of the (token, expert) pairs `picked`.  # (pairs, hidden)"""
        tokens = mx.array(picked // ids.shape[-1])
        y: mx.array = experts(rows[tokens], mx.array(places)[:, None])
        return y.squeeze(-2)


# `nn.Module` keeps lists and tuples among its parameters, so these are held in objects.


@dataclass(frozen=True, slots=True)
class _Source:
    components: tuple[Component, ...]


class _Unread:
    """Outputs that may still have to read the slots."""

    def __init__(self) -> None:
        self._arrays: list[mx.array] = []

    def add(self, array: mx.array) -> None:
        self._arrays.append(array)
        if len(self._arrays) > MAX_UNREAD:
            self.evaluate()

    def evaluate(self) -> None:
        mx.eval(self._arrays)
        self._arrays.clear()


class _Fresh:
    """Experts that were read ahead and not asked for yet."""

    def __init__(self) -> None:
        self.experts: set[int | None] = set()


class _Pair:
    """Two banks, taken in turn."""

    def __init__(self, first: Bank, second: Bank) -> None:
        self._banks = (first, second)

    def __getitem__(self, number: int) -> Bank:
        return self._banks[number % 2]


def _most_wanted_first(ids: np.ndarray[Any, Any]) -> tuple[int, ...]:
    """The distinct experts of a call."""
    if ids.size == ids.shape[-1]:  # those of one token are: decode has no time to count
        return tuple(ids.ravel().tolist())
    experts, counts = np.unique(ids, return_counts=True)
    return tuple(experts[np.argsort(-counts, kind="stable")].tolist())


def _exchange(
    ids: np.ndarray[Any, Any], experts: Sequence[int], places: Sequence[int]
) -> np.ndarray[Any, Any]:
    table = np.empty(max(experts, default=0) + 1, np.uint32)
    table[list(experts)] = places
    exchanged: np.ndarray[Any, Any] = table[ids]
    return exchanged


def _shell(module: nn.Module) -> nn.Module:
    """The same module and children, as own objects: their arrays can be others."""
    shell: nn.Module = nn.Module.__new__(type(module))
    shell.__dict__.update(module.__dict__)
    for key, value in module.items():
        dict.__setitem__(shell, key, _shell(value) if isinstance(value, nn.Module) else value)
    return shell
