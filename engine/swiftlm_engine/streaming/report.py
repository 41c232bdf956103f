"""What to stream, how, and what came of it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import mlx.core as mx

from swiftlm_engine.messages import EngineFault, FaultKind
from swiftlm_engine.streaming.reader import DEFAULT_THREADS, Preadv
from swiftlm_engine.streaming.slots import PolicyKind
from swiftlm_engine.streaming.streamer import Streamer


class StreamMode(StrEnum):
    AUTO = "on"  # experts where they can be read one by one, else layers
    LAYERS = "layers"
    EXPERTS = "experts"


class NoCache(StrEnum):
    """Whether what was read is kept out of the page cache."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """0 means the default."""

    slots: int = 0
    top_k: int = 0
    resident_bytes: int = 0  # of weights and slots together; what is left makes layers resident
    policy: PolicyKind = PolicyKind.LRU
    threads: int = DEFAULT_THREADS
    preadv: Preadv = os.preadv
    mode: StreamMode = StreamMode.AUTO
    nocache: NoCache = NoCache.AUTO
    prefetch: bool = False  # the next layer's router on this layer's input

    def keeps_out_of_cache(self, cycle_bytes: int = 0) -> bool:
        """Layers come round in a cycle: one that the page cache cannot hold never hits it."""
        if self.nocache is not NoCache.AUTO:
            return self.nocache is NoCache.ON
        return cycle_bytes > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


@dataclass(frozen=True, slots=True)
class StreamingReport:
    """What was installed. `streamer` is the engine thread's; close it with the model."""

    streamer: Streamer
    mode: StreamMode
    streamed_layers: int
    resident_layers: int
    record_bytes: int  # of one expert, or of one layer
    num_experts: int = 0
    experts_per_token: int = 0
    policy: PolicyKind = PolicyKind.LRU
    packed: bool = False  # read from the records beside the model

    @property
    def slots(self) -> int:
        return self.streamer.slots

    def resize(self, num_slots: int) -> None:
        """Between steps; never fewer than one token needs. What memory is freed is free at once."""
        self.streamer.resize(max(self.experts_per_token, min(self.num_experts, num_slots)))
        mx.clear_cache()

    def to_json(self) -> dict[str, Any]:  # plain JSON
        self.streamer.settle()
        return {
            "mode": self.mode,
            "slots": self.slots,
            "policy": self.policy,
            "num_experts": self.num_experts,
            "experts_per_token": self.experts_per_token,
            "streamed_layers": self.streamed_layers,
            "resident_layers": self.resident_layers,
            "record_bytes": self.record_bytes,
            "packed": self.packed,
            "nocache": self.streamer.reader.nocache,
        } | self.streamer.counters.to_json()


def refused(message: str) -> EngineFault:
    hint = "load it with --stream-experts off"
    return EngineFault(FaultKind.INVALID, f"{message}; {hint}", param="stream_experts")
