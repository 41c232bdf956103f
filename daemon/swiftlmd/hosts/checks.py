"""What is wrong with a host, and what its owner can do: one look over its agent, nothing loaded."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from swiftlm_engine.brain.plan import MachineLimits
from swiftlm_engine.cluster.link import LinkLost, Stranger, read_secret
from swiftlm_engine.cluster.transport import LocalNetworkDenied, Unreachable
from swiftlm_proto import messages as m
from swiftlm_proto.paths import Paths
from swiftlmd.engines.group_secret import secret_file
from swiftlmd.hosts.link_speed import LinkMeasure
from swiftlmd.hosts.registry import Host
from swiftlmd.hosts.report import HostReport, own_report
from swiftlmd.hosts.visit import Visit, visiting

Kind = m.HostProblemKind


@dataclass(frozen=True, slots=True)
class Problem:
    kind: m.HostProblemKind
    reason: str
    fix: str


@dataclass(frozen=True, slots=True)
class HostCheck:
    """One host as found. Without a report it could not be asked; this machine has no link."""

    host: Host
    problems: tuple[Problem, ...] = ()
    report: HostReport | None = None
    link: LinkMeasure | None = None
    models: frozenset[str] = frozenset()
    layers: Mapping[str, frozenset[int]] = field(default_factory=dict)  # of those here in part

    @property
    def usable(self) -> bool:
        """It could hold a share, once the model's files are there."""
        return all(problem.kind is Kind.MODEL_MISSING for problem in self.problems)


class ReadsLimits(Protocol):
    def limits(self, *, committed_bytes: int, returning_bytes: int) -> MachineLimits: ...


class Examiner:
    """Blocking, and safe to call for several hosts at once."""

    def __init__(self, paths: Paths, machine: ReadsLimits) -> None:
        self.secret_file = secret_file(paths)
        self.machine = machine
        self._measuring = threading.Lock()  # two transfers at once would measure each other

    def examine(self, host: Host, models: Mapping[str, str], *, measure: bool = True) -> HostCheck:
        """`models`: name to fingerprint, of what should be there."""
        if host.here:
            return HostCheck(host, report=self._own_report(), models=frozenset(models))
        try:
            secret = read_secret(self.secret_file)
        except LinkLost as error:
            fix = "mend that, or move the file away: `swiftlmctl cluster add` makes a new one"
            return HostCheck(host, (Problem(Kind.SECRET, str(error), fix),))
        try:
            with visiting(host.way, secret) as visit:
                return self._look(host, visit, models, measure)
        except LinkLost as error:
            return HostCheck(host, (self._lost(host, error),))

    def _look(
        self, host: Host, visit: Visit, models: Mapping[str, str], measure: bool
    ) -> HostCheck:
        report = visit.report()
        found = visit.found(list(models.values())) if models else {}
        link = None
        if measure:
            with self._measuring:
                link = visit.measure()
        here = frozenset(name for name, mark in models.items() if mark in found)
        parts = {name: held for name in here if (held := found[models[name]]) is not None}
        problems = [*_version_problems(host, report, self._own_report())]
        problems += [_missing(host, name) for name in models if name not in here]
        return HostCheck(host, tuple(problems), report, link, here, parts)

    def _copy(self) -> str:
        return f"a copy of {self.secret_file} (mode 0600)"

    def _own_report(self) -> HostReport:
        return own_report(self.machine.limits(committed_bytes=0, returning_bytes=0))

    def _lost(self, host: Host, error: LinkLost) -> Problem:
        if isinstance(error, LocalNetworkDenied):
            program = os.path.realpath(sys.executable)
            fix = (
                "on this Mac: System Settings, Privacy & Security, Local Network: allow "
                f"{program}, then `swiftlmctl restart`; if it is allowed there, see that "
                f"{host.name} is on"
            )
            return Problem(Kind.PRIVACY, f"it {error}; macOS may forbid it to the service", fix)
        if isinstance(error, Unreachable):
            fix = f"on {host.name}: `swiftlmd join --listen {host.agent}`, beside {self._copy()}"
            if not host.agent:
                needed = f"swiftlm at {sys.executable}, {self._copy()}"
                fix = f"`ssh {host.name}` must log in and ask nothing; on it: {needed}"
            return Problem(Kind.UNREACHABLE, f"it {error}", fix)
        if isinstance(error, Stranger):
            fix = f"copy {self.secret_file} to the same file on {host.name}, mode 0600"
            return Problem(Kind.SECRET, "it has another secret than this machine", fix)
        fix = f"look at what `swiftlmd join` says on {host.name}, and start it again"
        if not host.agent:
            fix = f"see that `ssh {host.name} true` prints nothing, and that the host is not busy"
        return Problem(Kind.SILENT, f"it {error}", fix)


def _version_problems(host: Host, report: HostReport, own: HostReport) -> list[Problem]:
    found = []
    for kind, name, theirs, ours in (
        (Kind.VERSION, "swiftlm", report.version, own.version),
        (Kind.MLX_VERSION, "MLX", report.mlx_version, own.mlx_version),
    ):
        if theirs != ours:
            fix = f"install one version on both, then start `swiftlmd join` on {host.name} again"
            found.append(Problem(kind, f"it has {name} {theirs}, this machine {ours}", fix))
    return found


def _missing(host: Host, model: str) -> Problem:
    return Problem(
        Kind.MODEL_MISSING,
        f"the files of '{model}' are not there, or are not the same",
        f"`swiftlmctl cluster pull {model}` has each host fetch its share; or copy the folder to "
        f"{host.name}",
    )
