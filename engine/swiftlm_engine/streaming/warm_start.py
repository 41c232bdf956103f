"""Which experts sat in slots, kept per model and read back before the first request of a load.

A load begins with slots that hold what its self-tests asked for: the first tokens of the first
answer would read nearly all of their experts. What is read back may be wrong, and costs time only.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from swiftlm_engine.streaming.reader import ReadFault
from swiftlm_engine.streaming.record import write_record

LIMIT_S = 10.0  # of reading, by which a load may become longer
SAVE_EVERY_S = 30.0
_RANKS = 8  # experts of one layer, before the next layer's: the most wanted of all come first

log = logging.getLogger(__name__)

Experts = Mapping[str, Sequence[int]]  # by layer, the most wanted first


class WarmLayer(Protocol):
    path: str

    def wanted(self) -> list[int]:
        """The experts in its slots, the last to leave first."""

    def take_in(self, experts: Sequence[int]) -> int:
        """Reads those that are not in a slot; how many. Raises ReadFault."""

    def rank(self, experts: Sequence[int]) -> None:
        """Those in slots leave in the opposite order of this one."""


def read_back(
    layers: Sequence[WarmLayer],
    kept: Experts,
    num_slots: int,
    report: Callable[[float], None] = lambda fraction: None,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Fills slots of all layers evenly, as far as the limit allows; the number of experts read."""
    until, num_read = clock() + LIMIT_S, 0
    asked = {layer.path: list(kept.get(layer.path, ()))[:num_slots] for layer in layers}
    try:
        for start in range(0, num_slots, _RANKS):
            if clock() > until:
                break
            report(start / num_slots)
            num_read += sum(layer.take_in(asked[layer.path][: start + _RANKS]) for layer in layers)
    except ReadFault as fault:  # the first request reads again, and fails then
        log.warning("the warm start ended early: %s", fault)
    for layer in layers:
        layer.rank(asked[layer.path])
    return num_read


class SlotKeeper:
    """Keeps what sits in slots, now and then, in idle moments. The engine thread's."""

    def __init__(
        self, layers: Sequence[WarmLayer], path: Path, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._layers = layers
        self._path = path
        self._clock = clock
        self._saved: dict[str, list[int]] = self._now()  # of the load itself: nobody's wish
        self._saved_at = -SAVE_EVERY_S

    def idle(self) -> None:
        if self._clock() - self._saved_at < SAVE_EVERY_S:
            return
        found = self._now()
        if found == self._saved:
            return
        self._saved, self._saved_at = found, self._clock()
        try:
            write_record(self._path, found)
        except OSError as error:
            log.warning("the next load starts with cold slots: %s", error)

    def _now(self) -> dict[str, list[int]]:
        return {layer.path: layer.wanted() for layer in self._layers}


def pays(num_slots: int, num_experts: int) -> bool:
    """Fewer slots are refilled by the prompt alone: nothing was gained with a quarter of them."""
    return num_slots * 8 >= num_experts * 3


def kept_experts(path: Path | None, num_experts: int) -> dict[str, list[int]]:
    """What an earlier load kept; empty where that cannot be read or is no list of experts."""
    if path is None:
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {str(layer): _experts(listed, num_experts) for layer, listed in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _experts(listed: list[int], num_experts: int) -> list[int]:
    found = list(dict.fromkeys(listed))
    if not all(type(expert) is int and 0 <= expert < num_experts for expert in found):
        raise ValueError("no experts of this model")
    return found
