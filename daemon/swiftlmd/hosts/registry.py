"""Which hosts a group has: the `[cluster]` table of the configuration, read and changed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from swiftlm_engine.cluster.transport import BY_SSH
from swiftlmd.config.live import Changes, LiveConfiguration
from swiftlmd.config.settings import Settings
from swiftlmd.faults import Kind, ServiceError

THIS = "localhost"
DEFAULT_PORT = 5415  # 5414 is HTTPS
_MAX_NAME = 253  # of a name in DNS


@dataclass(frozen=True, slots=True)
class Host:
    """One host. `agent` is where its `swiftlmd join` listens; empty = this machine, or by ssh."""

    name: str
    rank: int
    agent: str = ""

    @property
    def here(self) -> bool:
        return self.name in (THIS, "127.0.0.1")

    @property
    def way(self) -> str:
        """To its agent, which ssh starts where none listens."""
        return self.agent or f"{BY_SSH}{self.name}"


def hosts_of(settings: Settings) -> tuple[Host, ...]:
    """Every rank's host, this machine first; this machine alone where no group is configured."""
    names = settings.cluster_hosts or (THIS,)
    return tuple(
        Host(name, rank, settings.cluster_agents.get(name, "")) for rank, name in enumerate(names)
    )


def machines(hosts: Sequence[Host]) -> list[Host]:
    """Each once, the leader first: one that holds two ranks has its memory once."""
    found: dict[str, Host] = {}
    for host in hosts:
        found.setdefault(host.name, host)
    return list(found.values())


class Hosts:
    """Blocking: each change writes config.toml. One owner calls it, one call at a time."""

    def __init__(self, configuration: LiveConfiguration) -> None:
        self._configuration = configuration

    def listed(self) -> tuple[Host, ...]:
        return hosts_of(self._configuration.settings)

    def proposed(self, name: str, agent: str) -> Host:
        """The host as it would be added; raises ServiceError for what cannot be one."""
        name, agent = name.strip(), agent.strip()
        if not name or len(name) > _MAX_NAME or name.startswith("-") or not name.isprintable():
            raise ServiceError(Kind.INVALID, f"'{name}' is not a host name", param="name")
        hosts = self.listed()
        host = Host(name, len(hosts), with_port(agent) if agent else "")
        if host.here:
            raise ServiceError(Kind.INVALID, "this machine leads its group already", param="name")
        if any(known.name == name for known in hosts):
            message = f"'{name}' is in the group already; `swiftlmctl cluster remove {name}` first"
            raise ServiceError(Kind.INVALID, message, param="name")
        return host

    def add(self, host: Host, address: str) -> Changes:
        """Writes the host; `address` is this machine's, as that host reaches it.

        Raises ServiceError for one that MLX's ring, and so a rank, cannot use.
        """
        if ":" in address:
            message = (
                f"'{host.name}' reaches this machine at {address}, and ranks speak IPv4 only; "
                f"say where: `swiftlmctl cluster add {host.name} --agent A.B.C.D`"
            )
            raise ServiceError(Kind.INVALID, message, param="agent")
        settings = self._configuration.settings
        names = [known.name for known in self.listed()] + [host.name]
        if host.agent:
            agents = {**settings.cluster_agents, host.name: host.agent}
            self._configuration.set("cluster.agents", json.dumps(agents))
        if settings.cluster_address == "127.0.0.1" and address:
            self._configuration.set("cluster.address", address)
        return self._configuration.set("cluster.hosts", json.dumps(names))

    def remove(self, name: str) -> Changes:
        """Raises ServiceError for a host that is not there, or leads."""
        hosts = self.listed()
        gone = next((host for host in hosts if host.name == name), None)
        if gone is None:
            known = ", ".join(host.name for host in hosts)
            message = f"there is no host '{name}' in the group: {known}"
            raise ServiceError(Kind.INVALID, message, param="name")
        if gone.rank == 0:
            raise ServiceError(Kind.INVALID, "this machine leads the group and stays in it")
        left = [host for host in hosts if host.name != name]
        names = [host.name for host in left]
        # First of all: a host in the group without its agent would be tried by ssh.
        if len(left) > 1:
            changes = self._configuration.set("cluster.hosts", json.dumps(names))
        else:
            changes = self._configuration.unset("cluster.hosts")
        settings = self._configuration.settings
        agents = {key: agent for key, agent in settings.cluster_agents.items() if key != name}
        if agents:
            self._configuration.set("cluster.agents", json.dumps(agents))
        else:
            self._configuration.unset("cluster.agents")
        if all(host.here for host in left):  # nobody reaches this machine from outside then
            self._configuration.unset("cluster.address")
        return changes


def with_port(address: str) -> str:
    """HOST:PORT, with the usual port where none is given. Raises ServiceError."""
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if (":" in host and not bracketed) or (address.startswith("[") and address.endswith("]")):
        message = f"'{address}' is an IPv6 address, and ranks speak IPv4 only; give A.B.C.D:PORT"
        raise ServiceError(Kind.INVALID, message, param="agent")
    if not colon:
        return f"{address}:{DEFAULT_PORT}"
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ServiceError(Kind.INVALID, f"'{address}' is not HOST:PORT", param="agent")
    return address
