"""What a host says of itself, so that its leader can tell whether and what it may hold."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from importlib import metadata

from swiftlm_engine.brain.plan import Accelerator, MachineLimits, prior_speed
from swiftlm_engine.cluster.link import LinkLost, Message
from swiftlm_proto.version import version

_BYTES = ("working_set_bytes", "max_buffer_bytes", "reclaimable_bytes", "cgroup_bytes")


@dataclass(frozen=True, slots=True)
class HostReport:
    version: str
    mlx_version: str
    machine: MachineLimits
    visitor: str = ""  # the address from which the leader came


def own_report(machine: MachineLimits) -> HostReport:
    return HostReport(version(), mlx_version(), machine)


def mlx_version() -> str:
    """As installed: MLX itself is not imported here."""
    try:
        return metadata.version("mlx")
    except metadata.PackageNotFoundError:
        return "none"


def to_message(report: HostReport) -> Message:
    machine = dataclasses.asdict(report.machine)
    del machine["speed"]  # the leader predicts it from the device, as for itself
    return {**dataclasses.asdict(report), "machine": machine}


def from_message(message: Message) -> HostReport:
    """Raises LinkLost for what is no report of a host."""
    try:
        fields = message["machine"]
        accelerator = Accelerator(fields["accelerator"])
        device, cores = str(fields["device_name"]), int(fields["num_cores"])
        machine = MachineLimits(
            ram_bytes=int(fields["ram_bytes"]),
            accelerator=accelerator,
            device_name=device,
            committed_bytes=int(fields["committed_bytes"]),
            num_cores=cores,
            reclaimable_is_advice=bool(fields.get("reclaimable_is_advice", False)),
            speed=prior_speed(device, accelerator, cores),
            **{name: _bytes(fields.get(name)) for name in _BYTES},
        )
        versions = str(message["version"]), str(message["mlx_version"])
        return HostReport(*versions, machine, str(message.get("visitor", "")))
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise LinkLost(f"sent no report of a host ({error!r})") from error


def _bytes(value: int | None) -> int | None:
    return None if value is None else int(value)
