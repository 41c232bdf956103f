"""Hosts and checks as messages of admin.proto."""

from __future__ import annotations

from swiftlm_proto import messages as m
from swiftlmd.hosts.checks import HostCheck
from swiftlmd.hosts.link_speed import LinkMeasure
from swiftlmd.hosts.registry import Host


def host_message(host: Host) -> m.ClusterHost:
    return m.ClusterHost(name=host.name, rank=host.rank, agent=host.agent)


def check_message(check: HostCheck) -> m.HostCheck:
    message = m.HostCheck(
        host=host_message(check.host),
        problems=[m.HostProblem(p.kind, p.reason, p.fix) for p in check.problems],
        link=_link_message(check.link) if check.link else None,
        models=sorted(check.models),
    )
    if check.report is not None:
        machine = check.report.machine
        message.version = check.report.version
        message.mlx_version = check.report.mlx_version
        message.device = machine.device_name or machine.accelerator.value
        message.memory_bytes = machine.ram_bytes
        message.free_bytes = machine.reclaimable_bytes or 0
    return message


def _link_message(link: LinkMeasure) -> m.LinkMeasure:
    rate, delay = link.bytes_s, link.delay_s
    return m.LinkMeasure(
        link.rounds, rate.low, rate.median, rate.high, delay.low, delay.median, delay.high
    )
