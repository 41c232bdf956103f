"""The launchd user agent: install, start and stop it with the order and patience launchd needs.

Invariants: `enable` comes before `bootstrap`, `bootstrap` before `kickstart` (a disabled label is
refused, and a fresh job may sit there unstarted). `bootout` returns before the job is gone, so a
`bootstrap` after it waits until launchd no longer knows the label. Whatever happens, nothing is
ever started outside launchd as a fallback: that is how two daemons come to be.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from swiftlm_proto.exit_codes import CtlExit
from swiftlmctl.errors import CtlError
from swiftlmctl.service.base import EXIT_GRACE_S, EXIT_TIMEOUT_S, Clock, Phase, ServiceState
from swiftlmctl.service.commands import CommandReply
from swiftlmctl.service.files import write_if_changed
from swiftlmctl.service.job import LABEL, STDERR_LOG, Job
from swiftlmctl.service.launchctl import Code, Launchctl, Printed
from swiftlmctl.service.plist import encode

_POLL_S = 0.25
_SPAWN_TIMEOUT_S = 15.0
_BOOTSTRAP_TRIES = 8
_GONE = (Code.OK, Code.NO_SUCH_PROCESS, Code.NOT_FOUND, Code.NO_DOMAIN, Code.WRONG_DOMAIN)


class LaunchdAgent:
    """Implements `ServiceManager`. The domain is chosen once and kept for the whole command."""

    name = "launchd"

    def __init__(
        self,
        home: Path,
        logs: Path,
        *,
        launchctl: Launchctl | None = None,
        clock: Clock = time,
        uid: int | None = None,
    ) -> None:
        self._uid = os.getuid() if uid is None else uid
        self._plist = home / "Library" / "LaunchAgents" / f"{LABEL}.plist"
        self._logs = logs
        self._launchctl = launchctl or Launchctl()
        self._clock = clock
        self._domain = ""

    def install(self, job: Job) -> list[Path]:
        """Takes out a loaded job with another definition; `start` brings in the new one."""
        self._refuse_root()
        self._make_logs()
        if not write_if_changed(self._plist, encode(job)):
            return []
        if self._printed() is not None:
            self._bootout(self.domain)
        return [self._plist]

    def uninstall(self) -> list[Path]:
        for domain in self._domains():
            self._bootout(domain)
        for domain in self._domains():
            # Clears a `disabled` record, which would outlive the plist.
            self._launchctl.enable(f"{domain}/{LABEL}")
        if not self._plist.exists():
            return []
        self._plist.unlink()
        return [self._plist]

    def start(self) -> None:
        self._refuse_root()
        self._require_installed()
        self._make_logs()
        self._launchctl.enable(self._target)
        printed = self._printed()
        if printed is not None and printed.draining:
            printed = self._wait_until_drained()
        if printed is None:
            self._bootstrap()
        self._kickstart()
        self._wait_for_process(runs_before=printed.runs if printed else 0)

    def stop(self, *, force: bool = False) -> None:
        number = "SIGKILL" if force else "SIGTERM"
        printed = self._signal_and_wait(number)
        if printed is None:
            if not self._plist.exists():
                raise _not_installed()
        elif printed.pid or printed.state != "not running" or printed.last_exit != "0":
            # launchd starts again whatever did not end with 0: a process that was too young to
            # catch the signal, one that failed at its end. `start` brings the job back.
            self._bootout(self.domain)

    def restart(self, *, force: bool = False) -> None:
        printed = self._printed()
        if force and printed is not None:
            # SIGKILL: requests in flight are lost.
            self._expect(self._launchctl.kickstart(self._target, kill=True), "kickstart -k")
            self._wait_for_process(runs_before=printed.runs)
            return
        self._signal_and_wait()
        self.start()

    def enable(self) -> None:
        self._require_installed()
        self._expect(self._launchctl.enable(self._target), "enable")

    def disable(self) -> None:
        self._require_installed()
        self._signal_and_wait()
        self._bootout(self.domain)
        self._expect(self._launchctl.disable(self._target), "disable")

    def state(self) -> ServiceState:
        printed = self._printed()
        installed = self._plist.exists()
        if printed is None:
            phase = Phase.STOPPED if installed else Phase.NOT_INSTALLED
            return self._described(phase, installed, Printed(), "not loaded")
        return self._described(_phase(printed), installed, printed, printed.state)

    @property
    def domain(self) -> str:
        """Where the label is loaded, else gui/UID with a screen session, else user/UID."""
        if not self._domain:
            self._domain = self._choose_domain()
        return self._domain

    @property
    def _target(self) -> str:
        return f"{self.domain}/{LABEL}"

    def _domains(self) -> tuple[str, str]:
        return f"gui/{self._uid}", f"user/{self._uid}"

    def _choose_domain(self) -> str:
        gui, user = self._domains()
        for domain in (gui, user):
            if self._launchctl.print(f"{domain}/{LABEL}") is not None:
                return domain
        at_screen = self._launchctl.session() == "Aqua" or self._launchctl.domain_exists(gui)
        return gui if at_screen else user

    def _printed(self) -> Printed | None:
        return self._launchctl.print(self._target)

    def _described(
        self, phase: Phase, installed: bool, printed: Printed, detail: str
    ) -> ServiceState:
        disabled = self._launchctl.is_disabled(self.domain, LABEL)
        return ServiceState(
            manager=self.name,
            phase=phase,
            pid=printed.pid,
            enabled=installed and not disabled,
            domain=self.domain,
            runs=printed.runs,
            last_exit=printed.last_exit,
            exit_timeout_s=printed.exit_timeout_s,
            definition=self._plist if installed else None,
            detail=detail + (", disabled" if disabled else ""),
        )

    def _bootstrap(self) -> None:
        """Loads the job. Code 5 says nothing, so each refusal is followed by a look."""
        pause_s = 0.5
        for _ in range(_BOOTSTRAP_TRIES):
            reply = self._launchctl.bootstrap(self.domain, self._plist)
            if reply.code == Code.OK:
                return
            if reply.code == Code.DISABLED:
                self._launchctl.enable(self._target)
            elif reply.code not in (Code.IO, Code.FILE_EXISTS, Code.IN_PROGRESS, Code.ALREADY):
                break
            printed = self._printed()
            if printed is not None and printed.draining:
                printed = self._wait_until_drained()
            if printed is not None:
                return
            self._clock.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 2.0)
        raise self._refused(reply)

    def _refused(self, reply: CommandReply) -> CtlError:
        hints = {
            Code.WRONG_DOMAIN: "log in at the screen or over SSH as this user, then try again",
            Code.NO_DOMAIN: "log in at the screen or over SSH as this user, then try again",
            Code.WRONG_SESSION: f"reinstall the job: `swiftlmctl service install` ({self._plist})",
            Code.IO: f"check the job with `plutil -lint '{self._plist}'` and that "
            f"{self._logs} can be written",
        }
        hint = next((text for code, text in hints.items() if code == reply.code), "")
        return CtlError(f"launchd refused the job in {self.domain}: {reply.words}", hint=hint)

    def _kickstart(self) -> None:
        reply = self._launchctl.kickstart(self._target)
        if reply.code == Code.ALREADY:  # it was starting by itself just then
            return
        self._expect(reply, "kickstart")

    def _wait_for_process(self, *, runs_before: int) -> None:
        deadline = self._clock.monotonic() + _SPAWN_TIMEOUT_S
        while self._clock.monotonic() < deadline:
            printed = self._printed()
            if printed is not None and printed.pid:
                return
            if printed is not None and printed.runs > runs_before:
                if printed.last_exit == "0":  # it ran, and decided to stay down
                    return
                if printed.last_exit.startswith("78"):
                    break
            self._clock.sleep(_POLL_S)
        raise self._no_process(printed)

    def _no_process(self, printed: Printed | None) -> CtlError:
        if printed is None:
            return CtlError("launchd lost the job while it was starting")
        if printed.last_exit.startswith("78"):
            # launchd's own code when it cannot set up the files, before our first line.
            hint = f"{self._logs} must be a writable folder on the start-up disk"
        else:
            hint = f"`swiftlmctl logs --stderr -n 20` ({self._logs / STDERR_LOG})"
        return CtlError(
            f"launchd did not start the job: state = {printed.state}, "
            f"last exit code = {printed.last_exit or 'none'}",
            hint=hint,
        )

    def _signal_and_wait(self, number: str = "SIGTERM") -> Printed | None:
        """The signal, then the wait for the process; None when the job was not loaded."""
        printed = self._printed()
        if printed is None:
            return None
        if printed.pid and (not printed.draining or number == "SIGKILL"):
            reply = self._launchctl.kill(number, self._target)
            if reply.code not in _GONE:
                raise CtlError(f"launchctl kill: {reply.words}")
        first_pid = printed.pid
        deadline = self._clock.monotonic() + self._patience_s(printed)
        while printed is not None and printed.pid and printed.pid == first_pid:
            if self._clock.monotonic() >= deadline:
                raise _does_not_leave(printed.pid)
            self._clock.sleep(_POLL_S)
            printed = self._printed()
        return printed or Printed()

    def _wait_until_drained(self) -> Printed | None:
        """Waits out `SIGTERMed`: the job is gone after a bootout, or loaded and not running."""
        printed = self._printed()
        deadline = self._clock.monotonic() + self._patience_s(printed)
        while printed is not None and printed.draining:
            if self._clock.monotonic() >= deadline:
                raise _does_not_leave(printed.pid)
            self._clock.sleep(_POLL_S)
            printed = self._printed()
        return printed

    def _bootout(self, domain: str) -> None:
        target = f"{domain}/{LABEL}"
        reply = self._launchctl.bootout(target)
        if reply.code not in (*_GONE, Code.IO, Code.IN_PROGRESS):
            raise CtlError(f"launchctl bootout {target}: {reply.words}")
        printed = self._launchctl.print(target)
        deadline = self._clock.monotonic() + self._patience_s(printed)
        while printed is not None:
            if self._clock.monotonic() >= deadline:
                raise CtlError(
                    f"launchd still keeps {target} ({printed.state})", code=CtlExit.TIMEOUT
                )
            self._clock.sleep(_POLL_S)
            printed = self._launchctl.print(target)

    def _patience_s(self, printed: Printed | None) -> float:
        live = printed.exit_timeout_s if printed is not None else 0
        return (live or EXIT_TIMEOUT_S) + EXIT_GRACE_S

    def _expect(self, reply: CommandReply, verb: str) -> None:
        if reply.code != Code.OK:
            raise CtlError(f"launchctl {verb} {self._target}: {reply.words}")

    def _make_logs(self) -> None:
        # launchd creates the file but not the folder, and then dies of EX_CONFIG without a word.
        self._logs.mkdir(parents=True, exist_ok=True, mode=0o700)

    def _require_installed(self) -> None:
        if not self._plist.exists():
            raise _not_installed()

    def _refuse_root(self) -> None:
        if self._uid == 0:
            raise CtlError(
                "swiftlmd is a user's service; root has no session to run it in",
                hint="run this as yourself, without sudo",
                code=CtlExit.DENIED,
            )


def _phase(printed: Printed) -> Phase:
    if printed.draining:
        return Phase.STOPPING
    if printed.pid:
        return Phase.RUNNING
    if printed.state == "spawn scheduled":
        return Phase.STARTING if printed.last_exit in ("", "0", "(never exited)") else Phase.FAILED
    code = printed.last_exit.split(":")[0]
    return Phase.STOPPED if code in ("", "0", "(never exited)") else Phase.FAILED


def _not_installed() -> CtlError:
    return CtlError(
        "the service is not installed",
        hint="`swiftlmctl service install`",
        code=CtlExit.NOT_INSTALLED,
    )


def _does_not_leave(pid: int) -> CtlError:
    return CtlError(
        f"process {pid} has not left after SIGTERM",
        hint="`swiftlmctl stop --force` kills it (requests in flight are lost)",
        code=CtlExit.TIMEOUT,
    )
