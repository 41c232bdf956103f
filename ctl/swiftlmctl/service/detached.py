"""No supervisor on this machine: the daemon in a session of its own, which nobody restarts.

Only for Linux without systemd (containers, WSL). On macOS such a process loses its bootstrap
namespace, and with it Metal's compiler.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from swiftlm_proto import user_files
from swiftlm_proto.exit_codes import CtlExit
from swiftlm_proto.paths import Paths
from swiftlmctl.errors import CtlError
from swiftlmctl.service.base import EXIT_GRACE_S, EXIT_TIMEOUT_S, Clock, Phase, ServiceState
from swiftlmctl.service.job import Job

_POLL_S = 0.1
_NUM_THREADS = 17  # of the fields behind the command's name in /proc/PID/stat


class DetachedDaemon:
    """Implements `ServiceManager`."""

    name = "none"

    def __init__(
        self,
        job: Job,
        paths: Paths,
        *,
        environ: Mapping[str, str],
        clock: Clock = time,
    ) -> None:
        self._job = job
        self._paths = paths
        self._environ = environ
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None

    def install(self, job: Job) -> list[Path]:
        self._job = job
        self._job.log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return []

    def uninstall(self) -> list[Path]:
        self.stop()
        return []

    def start(self) -> None:
        if self._pid():
            return
        for folder in (self._job.log.parent, self._job.app):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(self._job.log, "ab") as log:
            self._process = self._spawned(log)
        self._remember(self._process.pid)
        self._refuse_early_end(self._process)

    def stop(self, *, force: bool = False) -> None:
        pid = self._pid()
        if not pid:
            return
        _send(pid, signal.SIGKILL if force else signal.SIGTERM)
        self._wait_until_gone(pid, EXIT_GRACE_S if force else EXIT_TIMEOUT_S + EXIT_GRACE_S)

    def restart(self, *, force: bool = False) -> None:
        self.stop(force=force)
        self.start()

    def enable(self) -> None:
        raise _no_supervisor()

    def disable(self) -> None:
        raise _no_supervisor()

    def state(self) -> ServiceState:
        pid = self._serving()
        phase = Phase.RUNNING
        if not pid:
            pid = self._starting()
            phase = Phase.STARTING if pid else Phase.STOPPED
        return ServiceState(self.name, phase, pid=pid, detail="no supervisor: nobody restarts it")

    def _spawned(self, log: BinaryIO) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                self._job.arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._job.app,
                env=dict(self._environ),
                start_new_session=True,
            )
        except OSError as e:
            raise CtlError(
                f"cannot start {self._job.arguments[0]}: {e.filename}: {e.strerror}",
                hint="`sh install.sh` makes the environment again",
            ) from e

    def _pid(self) -> int:
        return self._serving() or self._starting()

    def _serving(self) -> int:
        return lock_holder(self._paths.lock_file) or listener(self._paths.admin_socket)

    def _starting(self) -> int:
        """One that was started and is not yet so far that it holds the lock."""
        if self._process is not None and self._process.poll() is None:
            return self._process.pid
        try:
            found = json.loads(self._record.read_bytes())
            pid, since = int(found["pid"]), str(found["since"])
        except (OSError, ValueError, TypeError, KeyError):
            return 0
        return pid if alive(pid) and started_at(pid) == since else 0

    @property
    def _record(self) -> Path:
        return self._paths.state / "started.json"

    def _remember(self, pid: int) -> None:
        """For `stop` and `start` from elsewhere in the daemon's first second."""
        with contextlib.suppress(OSError):
            self._record.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            text = json.dumps({"pid": pid, "since": started_at(pid)})
            user_files.overwrite(self._record, text.encode())

    def _refuse_early_end(self, process: subprocess.Popen[bytes]) -> None:
        """A daemon that cannot even start says so within the first moments."""
        deadline = self._clock.monotonic() + 0.3
        while self._clock.monotonic() < deadline:
            if process.poll() == 0:  # another one was first, and serves
                return
            if (code := process.poll()) is not None:
                raise CtlError(
                    f"swiftlmd ended at once with code {code}",
                    hint=f"`swiftlmctl logs --stderr -n 20` ({self._job.log})",
                )
            self._clock.sleep(0.05)

    def _wait_until_gone(self, pid: int, patience_s: float) -> None:
        deadline = self._clock.monotonic() + patience_s
        # Threads of a killed process may outlive its first one, and with them the lock.
        while alive(pid) or self._serving() == pid:
            if self._clock.monotonic() >= deadline:
                raise CtlError(
                    f"process {pid} has not left after {patience_s:.0f} s",
                    hint="`swiftlmctl stop --force` kills it (requests in flight are lost)",
                    code=CtlExit.TIMEOUT,
                )
            self._clock.sleep(_POLL_S)


def lock_holder(lock: Path, locks_table: Path = Path("/proc/locks")) -> int:
    """The process that holds the flock on `lock`, or 0; looks without taking the lock.

    Trying the lock instead would make a daemon that starts in that moment believe it lost.
    """
    try:
        held = lock.stat()
        table = locks_table.read_text()
    except OSError:
        return 0
    for line in table.splitlines():
        # 1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF
        words = line.split()
        if len(words) < 6 or words[1] != "FLOCK" or not words[4].isdigit():
            continue
        device, _, inode = words[5].rpartition(":")
        if inode == str(held.st_ino) and (
            device == _device(held) or _has_open(int(words[4]), held)
        ):
            return int(words[4])
    return 0


def _device(file: os.stat_result) -> str:
    return f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}"


def _has_open(pid: int, file: os.stat_result) -> bool:
    """The table names another device than `stat` does on file systems of several volumes."""
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if os.path.samestat(descriptor.stat(), file):
                    return True
    return False


def listener(path: Path) -> int:
    """The process that listens on this Unix socket, or 0 (Linux's peer credentials)."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(1.0)
        try:
            client.connect(str(path))
            credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        except OSError:
            return 0
    return int(struct.unpack("=iII", credentials)[0])


def alive(pid: int) -> bool:
    """Whether the process runs, with any of its threads: of one that is killed the first may be
    gone before the others. A zombie that nobody has reaped does not count."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    # The state follows the command name, which may itself contain brackets.
    fields = stat.rpartition(")")[2].split()
    return fields[0] not in ("Z", "X") or int(fields[_NUM_THREADS]) > 1


def started_at(pid: int) -> str:
    """In the kernel's ticks; tells a process from a later one of the same number. "" = gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
    except PermissionError as e:
        raise CtlError(
            f"not allowed to signal process {pid}",
            hint="only the user who runs swiftlmd may stop it",
            code=CtlExit.DENIED,
        ) from e


def _no_supervisor() -> CtlError:
    return CtlError(
        "there is neither launchd nor a systemd user session here, so nothing starts at login",
        hint="`swiftlmctl start` starts the daemon until the machine goes down",
    )
