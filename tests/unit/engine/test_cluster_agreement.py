"""What every rank would work out for itself is told by the leader, confirmed, and has an end."""

import json
import queue
import socket
import threading
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from swiftlm_engine.brain.plan.share import Share, Split
from swiftlm_engine.cluster.follower import take_step
from swiftlm_engine.cluster.group import Group, GroupRefused, ProcessLimits, read_group
from swiftlm_engine.cluster.leader import Follower, Leader
from swiftlm_engine.cluster.limits import set_limits
from swiftlm_engine.cluster.link import Link, Message
from swiftlm_engine.load.device import Device
from swiftlm_engine.load.weights import chosen_dtype
from swiftlm_engine.messages import EngineFault
from swiftlm_engine.split.shares import Place


class Room:
    """A leader and one follower, of which only the link is there."""

    def __init__(self, **group: Any) -> None:
        near, far = socket.socketpair()
        self.link = Link(far)
        self.answers: queue.SimpleQueue[Message] = queue.SimpleQueue()
        follower = Follower(1, "studio", Link(near), "127.0.0.1:1", 1 << 30, self.answers)
        hosts = ("localhost", "studio")
        self.leader = Leader(Group(hosts, Path("secret"), "10.0.0.1", **group), [follower], [])
        share = Share(Split.TENSOR, range(2), 2)
        self.leader._place = Place(mx.distributed.init(), share, "ring")


def test_a_dtype_is_chosen_once_for_all_devices() -> None:
    assert chosen_dtype("", Device.CPU) == "float32"
    # What is told is never left open: on a CPU it would be chosen anew.
    assert chosen_dtype("", Device.METAL) == "auto"
    for device in Device:
        assert chosen_dtype(chosen_dtype("", device), Device.CPU) == chosen_dtype("", device)


def test_a_rank_that_loaded_another_dtype_is_refused_by_name() -> None:
    room = Room()
    room.answers.put({"loaded": 5, "dtype": "bfloat16"})
    with pytest.raises(EngineFault, match=r"rank 1 on studio: it computes in bfloat16.*float32"):
        room.leader.confirm("float32")
    room.answers.put({"loaded": 5, "dtype": "float32"})
    room.leader.confirm("float32")
    room.answers.put({"fault": "no room"})
    with pytest.raises(EngineFault, match="no room"):
        room.leader.confirm("float32")


def test_first_steps_that_never_end_end_the_group() -> None:
    room, lost, heard = Room(first_step_s=0.05), [], threading.Event()

    def on_lost(reason: str) -> None:
        lost.append(reason)
        heard.set()

    room.leader._on_lost = on_lost
    with room.leader.first_steps():
        assert heard.wait(20)
    assert lost == ["no first token within 0 s"]


def test_first_steps_that_end_end_nothing() -> None:
    room, lost = Room(first_step_s=30), []
    room.leader._on_lost = lost.append
    with room.leader.first_steps():
        pass
    assert not lost


def test_freed_memory_is_given_back_on_every_rank() -> None:
    room = Room()
    room.leader.clear_pool()
    step = room.link.receive()

    class Mirror:
        cleared = 0

        def clear_pool(self) -> None:
            self.cleared += 1

    mirror = Mirror()
    assert take_step(mirror, step) is None  # type: ignore[arg-type]  # only this is asked of it
    assert mirror.cleared == 1


def test_limits_of_each_rank_come_with_the_group(tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        "hosts": ["localhost", "localhost"], "secret_file": "s", "lost_after_s": 5.0,
        "limits": [
            {"memory": 8, "buffers": None, "wired": 0}, {"memory": 4, "buffers": 2, "wired": 1},
        ],
    }  # fmt: skip
    path = tmp_path / "group.json"
    path.write_text(json.dumps(fields))
    assert read_group(path).limits == (ProcessLimits(8, None, 0), ProcessLimits(4, 2, 1))
    for broken in (
        [fields["limits"][0]],
        [{"memory": 1}] * 2,
        [{**fields["limits"][1], "wired": -1}] * 2,
    ):
        path.write_text(json.dumps(fields | {"limits": broken}))
        with pytest.raises(GroupRefused):
            read_group(path)


def test_a_process_sets_the_limits_that_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, int]] = []
    for name in ("set_memory_limit", "set_cache_limit", "set_wired_limit"):
        monkeypatch.setattr(mx, name, lambda size, name=name: told.append((name, size)))
    set_limits(ProcessLimits(), Device.METAL)
    assert told == []
    set_limits(ProcessLimits(4, 2, 1), Device.CPU)
    set_limits(ProcessLimits(0, 0, 1), Device.METAL)
    assert told == [
        ("set_memory_limit", 4), ("set_cache_limit", 2),
        ("set_cache_limit", 0), ("set_wired_limit", 1),
    ]  # fmt: skip
