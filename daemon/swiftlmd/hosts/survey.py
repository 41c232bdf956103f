"""The hosts of a group as a plan needs them, asked before each load.

A load asks several times within a second for each model that may make room: reports are kept for
that long, and not until memory that comes back has come. Links are kept until a host is measured
anew.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from swiftlm_engine.brain.plan import GroupHost, LinkSpeed, MachineLimits, Range
from swiftlmd.config.settings import Settings
from swiftlmd.engines.placement import NOTHING_ELSEWHERE, OnHosts
from swiftlmd.faults import Kind, ServiceError
from swiftlmd.hosts.checks import Examiner, HostCheck
from swiftlmd.hosts.registry import Host, hosts_of

_FRESH_S = 1.0
# Between two ranks of one machine; nobody measures it, since nobody splits a model so but to try.
_LOOPBACK = LinkSpeed(Range(0.5e9, 5e9), Range(1e-5, 1e-4))


class Survey:
    """Blocking. Only one load asks at a time."""

    def __init__(self, examiner: Examiner, clock: Callable[[], float] = time.monotonic) -> None:
        self.examiner = examiner
        self._clock = clock
        self._links: dict[Host, LinkSpeed] = {}
        self._seen: dict[tuple[Host, str], tuple[float, HostCheck]] = {}

    def hosts(
        self,
        settings: Settings,
        name: str,
        fingerprint: str,
        own: MachineLimits,
        elsewhere: OnHosts = NOTHING_ELSEWHERE,
    ) -> list[GroupHost]:
        """One per rank, of a model whose files must be there; without a fingerprint they need not.
        `elsewhere`: what other models of this daemon hold there, which no host reports.

        Raises ServiceError with the host, its problem and what mends it.
        """
        hosts = hosts_of(settings)
        with ThreadPoolExecutor(len(hosts)) as pool:
            checks = list(pool.map(lambda host: self._checked(host, name, fingerprint), hosts))
        for check in checks:
            _must_serve(check)
        return [self._group_host(check, hosts, own, name, elsewhere) for check in checks]

    def _checked(self, host: Host, name: str, fingerprint: str) -> HostCheck:
        now, key = self._clock(), (host, fingerprint)
        known = self._seen.get(key)
        if known is None or known[1].problems or now - known[0] > _FRESH_S:
            measure = host not in self._links
            models = {name: fingerprint} if fingerprint else {}
            check = self.examiner.examine(host, models, measure=measure)
            known = self._seen[key] = (now, check)
            if check.link is not None:
                self._links[host] = check.link.speed
        return known[1]

    def _group_host(
        self,
        check: HostCheck,
        hosts: Sequence[Host],
        own: MachineLimits,
        model: str,
        elsewhere: OnHosts,
    ) -> GroupHost:
        if not check.host.here:
            assert check.report is not None
            machine = _beside(check.report.machine, check.host.name, elsewhere)
            link, layers = self._links[check.host], check.layers.get(model)
            return GroupHost(check.host.name, machine, link, layers)
        ranks = sum(host.here for host in hosts)
        near = None if check.host.rank == 0 else _LOOPBACK
        return GroupHost("this machine", _part(own, ranks), near)


def _beside(machine: MachineLimits, name: str, elsewhere: OnHosts) -> MachineLimits:
    """The host as it will be: beside the ranks that stay there, without those that leave."""
    reclaimable = machine.reclaimable_bytes
    if reclaimable is not None:
        returning = elsewhere.returning.get(name, 0)  # below 0: others have booked it
        reclaimable = min(machine.ram_bytes, max(0, reclaimable + returning))
    committed = machine.committed_bytes + elsewhere.held.get(name, 0)
    return dataclasses.replace(machine, reclaimable_bytes=reclaimable, committed_bytes=committed)


def _must_serve(check: HostCheck) -> None:
    if check.problems:
        problem = check.problems[0]
        message = f"host '{check.host.name}' of the group: {problem.reason}; {problem.fix}"
        raise ServiceError(Kind.UNSUPPORTED, message)


def _part(machine: MachineLimits, ranks: int) -> MachineLimits:
    """What one of several ranks on one machine may count on."""

    def part(size: int | None) -> int | None:
        return None if size is None else size // ranks

    return dataclasses.replace(
        machine,
        ram_bytes=machine.ram_bytes // ranks,
        working_set_bytes=part(machine.working_set_bytes),
        reclaimable_bytes=part(machine.reclaimable_bytes),
        cgroup_bytes=part(machine.cgroup_bytes),
        committed_bytes=machine.committed_bytes // ranks,
    )
