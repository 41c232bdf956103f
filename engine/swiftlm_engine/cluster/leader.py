"""Rank 0's side of a group: it starts the followers, and tells them every step before it takes it.

A lost follower cannot be replaced while the model is loaded: its share of every sequence is gone.
So the first silence, broken connection or late answer ends this process, the others end with it,
and the daemon starts the group again.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Ids
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn

from swiftlm_engine.brain.facts import ModelFacts
from swiftlm_engine.brain.plan.share import Share, Split
from swiftlm_engine.brain.prefix_index import CachedPart
from swiftlm_engine.cluster.group import Group
from swiftlm_engine.cluster.link import Link, LinkLost, Message
from swiftlm_engine.cluster.ring import free_address, join_ring
from swiftlm_engine.load.device import computes_as, memory_bytes
from swiftlm_engine.messages import EngineFault, FaultKind
from swiftlm_engine.ranks import Key
from swiftlm_engine.split.shares import Place, choose_shares, encode_share
from swiftlm_engine.turboquant import policy
from swiftlm_engine.turboquant.layer_support import Verdict

log = logging.getLogger(__name__)

START_S = 120.0  # the first start after an upgrade compiles every module
BEATS = 5  # in the time that a rank may be silent

OnLost = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Follower:
    rank: int
    host: str
    link: Link
    ring_address: str
    memory_bytes: int
    answers: queue.SimpleQueue[Message]
    computes_as: str = ""


class Leader:
    """`Peers` of the runner. Made by `gather`; all but `close` belongs to the MLX thread."""

    def __init__(
        self, group: Group, followers: list[Follower], children: list[subprocess.Popen[bytes]]
    ) -> None:
        self._group = group
        self._followers = followers
        self._children = children
        self._on_lost: OnLost = log.error  # until somebody watches
        self._place: Place | None = None  # once the ranks are to load
        self._alike = False  # all have the same logits, to the bit: the sums before them are, too
        self._first_loss = threading.Lock()  # held by who reports it, and never released

    # -- the model

    def load(self, folder: Path, dtype: str, facts: ModelFacts) -> Place:
        """Every rank has checked its files and begins to load its share; returns the leader's.

        Raises `EngineFault` for a model that cannot be split as asked, or files that differ.
        """
        asked = self._group.split
        shares = self._planned_shares() or choose_shares(facts, asked, self._memories())
        model = {"folder": str(folder), "dtype": dtype, "fingerprint": facts.fingerprint}
        self._tell({"do": "check", **model})
        self.wait()
        # Followers hold theirs until they are told all, so that no two of a machine are the same.
        ring = [free_address(self._group.address), *(f.ring_address for f in self._followers)]
        for follower in self._followers:
            share = encode_share(shares[follower.rank])
            backend = self._group.backend
            told = {"do": "load", "ring": ring, "backend": backend, "share": share}
            if self._group.limits:
                told["limits"] = asdict(self._group.limits[follower.rank])
            self._tell_one(follower, told)
        joined = join_ring(ring, 0, self._group.backend)
        self._place = Place(joined, shares[0], self._group.backend)
        same = all(follower.computes_as == computes_as() for follower in self._followers)
        self._alike = same and self._place.share.split is Split.TENSOR
        return self._place

    def _planned_shares(self) -> list[Share]:
        return [Share(Split.PIPELINE, layers) for layers in self._group.layers]

    def _memories(self) -> Ids[int]:
        return [memory_bytes(), *(f.memory_bytes for f in self._followers)]

    def wait(self) -> None:
        """Until every follower has answered; raises `EngineFault` with what one found wrong."""
        for follower in self._followers:
            fault = follower.answers.get().get("fault")
            if fault is not None:
                message = f"rank {follower.rank} on {follower.host}: {fault}"
                raise EngineFault(FaultKind.UNSUPPORTED, message)

    def confirm(self, dtype: str) -> None:
        """As `wait`, for what every rank has loaded: they add up each other's arrays."""
        for follower in self._followers:
            answer = follower.answers.get()
            fault, theirs = answer.get("fault"), answer.get("dtype", dtype)
            # Ranks of a pipeline hold other layers, which may be of other dtypes.
            tensor = self._place is not None and self._place.share.split is Split.TENSOR
            if fault is None and tensor and theirs != dtype:
                fault = f"it computes in {theirs}, rank 0 in {dtype}; set engine.dtype for all"
            if fault is not None:
                message = f"rank {follower.rank} on {follower.host}: {fault}"
                raise EngineFault(FaultKind.UNSUPPORTED, message)

    @contextlib.contextmanager
    def first_steps(self) -> Iterator[None]:
        """Ranks that do not understand each other wait for ever, and are not silent meanwhile."""
        seconds = self._group.first_step_s
        late = threading.Timer(seconds, self._report, (f"no first token within {seconds:.0f} s",))
        late.daemon = True
        late.start()
        try:
            yield
        finally:
            late.cancel()

    # -- the format of KV

    def test(
        self, model: nn.Module, token_ids: Ids[int], verdict: Verdict, chunk: int
    ) -> policy.MeasuredError:
        """A self-test on all ranks. Each knows the errors of its own layers, or of its heads."""
        self._tell({"do": "test", "ids": list(token_ids), "chunk": chunk, **_formats(verdict)})
        own = policy.measure(model, token_ids, verdict, chunk)
        answers = [follower.answers.get() for follower in self._followers]
        errors = [own.layer_errors, *(answer["errors"] for answer in answers)]
        paths = [own.path_errors, *(answer["path_errors"] for answer in answers)]
        return replace(
            own,
            layer_errors=tuple(map(max, zip(*errors, strict=True))),
            path_errors=tuple(map(max, zip(*paths, strict=True))),
        )

    def use(self, verdict: Verdict) -> None:
        """Sequences that are opened from now on have these formats."""
        self._tell({"do": "use", **_formats(verdict)})

    # -- steps

    def open(self, key: Key) -> None:
        self._tell({"do": "open", "key": key})

    def prefill(self, key: Key, ids: Ids[int]) -> None:
        self._tell({"do": "prefill", "key": key, "ids": list(ids)})

    def join(self, key: Key) -> None:
        self._tell({"do": "join", "key": key})

    def decode(self, inputs: mx.array, *, known: bool, greedy: bool) -> mx.array:
        """Where every rank needs them and cannot know them, the others add zeros, so that the sum
        is these inputs."""
        assert self._place is not None
        known, greedy = known and self._alike, greedy and self._alike
        self._tell({"do": "decode", "known": known, "greedy": greedy})
        if known or self._place.share.split is Split.PIPELINE:
            return inputs
        return mx.distributed.all_sum(inputs, group=self._place.ring)

    def drop(self, key: Key) -> None:
        self._tell({"do": "drop", "key": key})

    def reset(self) -> None:
        self._tell({"do": "reset"})

    def clear_pool(self) -> None:
        self._tell({"do": "clear"})

    def offer(self, key: Key) -> None:
        self._tell({"do": "offer", "key": key})

    def keep(self, number: int, part: CachedPart) -> None:
        self._tell({"do": "keep", "number": number, "part": part.value})

    def shorten(self, number: int, kept: int, length: int, shorter_by: int) -> None:
        cut = {"kept": kept, "length": length, "shorter_by": shorter_by}
        self._tell({"do": "shorten", "number": number, **cut})

    def forget(self, number: int) -> None:
        self._tell({"do": "forget", "number": number})

    def give(self, kept: Ids[tuple[int, int]], length: int) -> None:
        self._tell({"do": "give", "kept": list(kept), "length": length})

    def resume(self, key: Key) -> None:
        self._tell({"do": "resume", "key": key})

    def _tell(self, message: Message) -> None:
        for follower in self._followers:
            self._tell_one(follower, message)

    def _tell_one(self, follower: Follower, message: Message) -> None:
        # Whoever cannot be told has been or will be reported by its reader.
        with contextlib.suppress(LinkLost):
            follower.link.send(message)

    # -- faults

    def watch(self, on_lost: OnLost) -> None:
        """From now on `on_lost` is called, on a thread of its own, for the first lost follower."""
        self._on_lost = on_lost
        for follower in self._followers:
            self._tell_one(follower, {"do": "welcome", "lost_after_s": self._group.lost_after_s})
            follower.link.set_timeout(self._group.lost_after_s)
            threading.Thread(target=self._listen, args=(follower,), daemon=True).start()
        threading.Thread(target=self._beat, daemon=True).start()

    def _listen(self, follower: Follower) -> None:
        try:
            while True:
                message = follower.link.receive()
                if message.get("do") != "beat":
                    follower.answers.put(message)
        except LinkLost as error:
            self._report(f"rank {follower.rank} on {follower.host} {error}")

    def _report(self, loss: str) -> None:
        if not self._first_loss.acquire(blocking=False):
            return  # it went because another did
        self._kill_children()  # a stopped one would not notice our end
        self._on_lost(loss)

    def _beat(self) -> None:
        while True:
            self._tell({"do": "beat"})
            time.sleep(self._group.lost_after_s / BEATS)

    def close(self) -> None:
        """Ends the followers; safe to call twice."""
        for follower in self._followers:
            follower.link.close()
        self._kill_children()

    def _kill_children(self) -> None:
        for child in self._children:
            child.kill()
            child.wait()


def _formats(verdict: Verdict) -> Message:
    return {"formats": [layer.format and layer.format.name for layer in verdict.layers]}
