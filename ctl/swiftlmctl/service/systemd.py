"""The systemd user unit: `systemctl --user` with the same verbs as the launchd agent."""

from __future__ import annotations

from pathlib import Path

from swiftlm_proto.exit_codes import CtlExit
from swiftlmctl.errors import CtlError
from swiftlmctl.service.base import Phase, ServiceState
from swiftlmctl.service.commands import CommandReply, Run, run
from swiftlmctl.service.files import write_if_changed
from swiftlmctl.service.job import SOCKET_UNIT, UNIT, Job
from swiftlmctl.service.unit import socket_text, unit_text

_PROPERTIES = (
    "LoadState",
    "ActiveState",
    "SubState",
    "MainPID",
    "ExecMainStatus",
    "NRestarts",
    "UnitFileState",
    "TimeoutStopUSec",
    "Result",
)
_PHASES = {
    "active": Phase.RUNNING,
    "reloading": Phase.RUNNING,
    "activating": Phase.STARTING,
    "deactivating": Phase.STOPPING,
    "failed": Phase.FAILED,
}


class SystemdUnit:
    """Implements `ServiceManager`."""

    name = "systemd"

    def __init__(self, units: Path, *, run: Run = run) -> None:
        self._unit = units / UNIT
        self._socket = units / SOCKET_UNIT
        self._run = run

    def install(self, job: Job) -> list[Path]:
        job.log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        changed = [self._unit] if write_if_changed(self._unit, unit_text(job).encode()) else []
        if job.control_socket is None:
            self._remove_socket()
        elif write_if_changed(self._socket, socket_text(job).encode()):
            changed.append(self._socket)
        if changed:
            self._expect("daemon-reload")
        self._expect("enable", UNIT)
        if job.control_socket is not None:
            self._hold_socket()
        return changed

    def uninstall(self) -> list[Path]:
        if not self._unit.exists():
            if self.state().pid:  # somebody deleted the file alone
                self._expect("stop", UNIT)
            return []
        removed = self._remove_socket()
        # Both fail on a unit that systemd has not read; the file goes in any case.
        self._systemctl("disable", "--now", UNIT)
        self._unit.unlink()
        self._expect("daemon-reload")
        self._systemctl("reset-failed", UNIT)
        return [self._unit, *removed]

    def start(self) -> None:
        self._require_installed()
        # After five failures in ten minutes systemd refuses until it is told to forget them.
        self._systemctl("reset-failed", UNIT)
        self._expect("start", "--no-block", UNIT)

    def stop(self, *, force: bool = False) -> None:
        self._require_installed()
        if force:
            self._systemctl("kill", "--signal=SIGKILL", UNIT)
        self._expect("stop", UNIT)

    def restart(self, *, force: bool = False) -> None:
        self._require_installed()
        if force:
            self._systemctl("kill", "--signal=SIGKILL", UNIT)
        self._systemctl("reset-failed", UNIT)
        self._expect("restart", "--no-block", UNIT)

    def enable(self) -> None:
        self._require_installed()
        self._expect("enable", UNIT)

    def disable(self) -> None:
        self._require_installed()
        self._expect("disable", "--now", UNIT)

    def state(self) -> ServiceState:
        fields = self._show()
        installed = self._unit.exists()
        phase = _PHASES.get(fields.get("ActiveState", ""), Phase.STOPPED)
        if not installed and phase is Phase.STOPPED:
            phase = Phase.NOT_INSTALLED
        return ServiceState(
            manager=self.name,
            phase=phase,
            pid=_number(fields.get("MainPID", "")),
            enabled=fields.get("UnitFileState") == "enabled",
            domain="user",
            runs=_number(fields.get("NRestarts", "")),
            last_exit=fields.get("ExecMainStatus", ""),
            exit_timeout_s=_span_s(fields.get("TimeoutStopUSec", "")),
            definition=self._unit if installed else None,
            detail=_detail(fields),
        )

    def _hold_socket(self) -> None:
        """systemd refuses the socket while a daemon serves one of its own."""
        if self._show(SOCKET_UNIT).get("ActiveState") != "active":
            self._systemctl("stop", UNIT)
        self._expect("enable", "--now", SOCKET_UNIT)

    def _remove_socket(self) -> list[Path]:
        if not self._socket.exists():
            return []
        self._systemctl("disable", "--now", SOCKET_UNIT)
        self._socket.unlink()
        return [self._socket]

    def _show(self, unit: str = UNIT) -> dict[str, str]:
        reply = self._systemctl("show", unit, f"--property={','.join(_PROPERTIES)}")
        lines = (line.partition("=") for line in reply.out.splitlines())
        return {name: value for name, equals, value in lines if equals}

    def _systemctl(self, *words: str) -> CommandReply:
        return self._run(["systemctl", "--user", *words])

    def _expect(self, *words: str) -> None:
        reply = self._systemctl(*words)
        if reply.code != 0:
            raise CtlError(
                f"systemctl --user {' '.join(words)}: {reply.words}",
                hint=f"`systemctl --user status {UNIT}`, `swiftlmctl logs -n 20`",
            )

    def _require_installed(self) -> None:
        if not self._unit.exists():
            raise CtlError(
                "the service is not installed",
                hint="`swiftlmctl service install`",
                code=CtlExit.NOT_INSTALLED,
            )


def _detail(fields: dict[str, str]) -> str:
    words = f"{fields.get('ActiveState', 'unknown')} ({fields.get('SubState', 'unknown')})"
    result = fields.get("Result", "")
    return words if result in ("", "success") else f"{words}, {result}"


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _span_s(text: str) -> int:
    """systemd's time spans: `45s`, `1min 30s`."""
    seconds = 0
    for part in text.split():
        for unit, length in (("min", 60), ("s", 1)):
            if part.endswith(unit) and part.removesuffix(unit).isdigit():
                seconds += int(part.removesuffix(unit)) * length
                break
    return seconds
