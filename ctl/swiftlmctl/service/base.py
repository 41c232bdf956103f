"""What every service manager can do and say, whoever supervises the daemon.

Verbs return when their effect is there: `start` when a process lives (readiness is the caller's
question, over the admin socket), `stop` when it is gone. All raise `CtlError`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

from swiftlmctl.service.job import Job

# The daemon drains for `service.drain` (25 s); after this the supervisor kills it.
EXIT_TIMEOUT_S = 45
# How long past the exit timeout a verb goes on waiting for a process to be gone.
EXIT_GRACE_S = 10


class Phase(Enum):
    NOT_INSTALLED = "not installed"
    STOPPED = "stopped"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ServiceState:
    manager: str  # launchd, systemd, none
    phase: Phase
    pid: int = 0
    enabled: bool = False  # starts at login
    domain: str = ""  # launchd only: gui/501
    runs: int = 0
    last_exit: str = ""
    exit_timeout_s: int = 0  # live value, which launchd may have clamped
    definition: Path | None = None  # the plist or unit file
    detail: str = ""  # the supervisor's own words

    @property
    def may_answer_soon(self) -> bool:
        return self.phase in (Phase.STARTING, Phase.RUNNING)


class Clock(Protocol):
    """The parts of `time` that waiting needs."""

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float, /) -> None: ...


class ServiceManager(Protocol):
    @property
    def name(self) -> str:
        """launchd, systemd or none."""

    def install(self, job: Job) -> list[Path]:
        """Registers the job for the next login, unstarted; the files it wrote."""

    def uninstall(self) -> list[Path]:
        """Stops and forgets the job; the files it removed."""

    def start(self) -> None: ...

    def stop(self, *, force: bool = False) -> None:
        """SIGTERM and wait; the job stays registered and starts at the next login.

        When it returns no process is there and none comes back by itself; `force` kills.
        """

    def restart(self, *, force: bool = False) -> None:
        """A graceful stop and a start; `force` kills instead of asking."""

    def enable(self) -> None: ...

    def disable(self) -> None:
        """Stops the job and keeps it from starting at login."""

    def state(self) -> ServiceState: ...
