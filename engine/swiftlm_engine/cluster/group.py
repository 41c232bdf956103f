"""What a group is: its hosts, its secret, and how long a rank may be silent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swiftlm_engine.brain.plan.share import Split
from swiftlm_engine.cluster.link import MAX_RANKS

LOCAL = frozenset({"localhost", "127.0.0.1"})
BACKENDS = ("ring", "nccl")


class GroupRefused(Exception):
    """The group file cannot be used as it is."""


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """Of one process, in bytes; 0 and None leave MLX's own."""

    memory: int = 0
    buffers: int | None = None
    wired: int = 0


@dataclass(frozen=True, slots=True)
class Group:
    """`hosts[0]` is the leader's own. `address` is where the others reach it.

    `split` None leaves the choice to the model; `layers` are each rank's in a planned pipeline, ()
    leaves them to the memory of the ranks. `backend` is one of mx.distributed.

    `agents` says where the hosts that lend themselves listen; the others are reached by ssh. Both
    look for the model by its fingerprint.

    `limits` are each rank's of its process, as its share was planned; () leaves MLX's own.
    `first_step_s` bounds the first steps together, which nothing else watches.
    """

    hosts: tuple[str, ...]
    secret_file: Path
    address: str = "127.0.0.1"
    lost_after_s: float = 10.0
    agents: Mapping[str, str] = field(default_factory=dict)
    fingerprint: str = ""
    split: Split | None = None
    layers: tuple[range, ...] = ()
    backend: str = "ring"
    limits: tuple[ProcessLimits, ...] = ()
    first_step_s: float = 300.0

    @property
    def size(self) -> int:
        return len(self.hosts)


def read_group(path: Path) -> Group:
    """Raises `GroupRefused` with what to change."""
    try:
        fields = json.loads(path.read_text())
        group = Group(
            tuple(str(host) for host in fields["hosts"]),
            Path(fields["secret_file"]),
            str(fields.get("address", "127.0.0.1")),
            float(fields.get("lost_after_s", 10.0)),
            {str(host): str(agent) for host, agent in fields.get("agents", {}).items()},
            str(fields.get("fingerprint", "")),
            Split(fields["split"]) if fields.get("split") else None,
            tuple(range(int(start), int(stop)) for start, stop in fields.get("layers", ())),
            str(fields.get("backend", "ring")),
            tuple(read_limits(each) for each in fields.get("limits", ())),
            float(fields.get("first_step_s", 300.0)),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise GroupRefused(f"group file {path} cannot be read: {error!r}") from error
    _check(group)
    return group


def read_limits(fields: Mapping[str, Any]) -> ProcessLimits:
    """Raises ValueError, KeyError or TypeError for what are none."""
    buffers = fields["buffers"]
    limits = ProcessLimits(
        int(fields["memory"]), None if buffers is None else int(buffers), int(fields["wired"])
    )
    if min(limits.memory, limits.buffers or 0, limits.wired) < 0:
        raise ValueError(f"negative limits: {limits}")
    return limits


def _check(group: Group) -> None:
    if not 2 <= group.size <= MAX_RANKS:
        raise GroupRefused(f"a group has 2 to {MAX_RANKS} hosts, not {group.size}")
    if group.layers and len(group.layers) != group.size:
        raise GroupRefused(f"layers of {len(group.layers)} hosts, of {group.size}")
    if group.limits and len(group.limits) != group.size:
        raise GroupRefused(f"limits of {len(group.limits)} hosts, of {group.size}")
    if group.backend not in BACKENDS:
        raise GroupRefused(f"backend '{group.backend}' is none of {', '.join(BACKENDS)}")
    if group.hosts[0] not in LOCAL:
        raise GroupRefused(f"the first host is this machine: 'localhost', not '{group.hosts[0]}'")
    remote = [host for host in group.hosts if host not in LOCAL]
    if any(host.startswith("-") or not host.strip() for host in remote):
        raise GroupRefused(f"not host names: {remote}")
    outside = [host for host in remote if not _on_loopback(group.agents.get(host, ""))]
    if bool(outside) == (group.address in LOCAL):
        raise GroupRefused(
            f"address {group.address} does not suit the hosts {list(group.hosts)}: an address of "
            "this machine's network for remote hosts, loopback for none"
        )


def _on_loopback(agent: str) -> bool:
    return agent.rpartition(":")[0] in LOCAL
