"""Runs one job the way launchd or systemd would: spawns it, restarts it, kills it when it lingers.

A process of its own for each loaded job (`python supervision.py FOLDER`). FOLDER/spec.json says
what to run; FOLDER/status.json says how it goes; files in FOLDER/inbox are orders. Seconds of the
spec are divided by `speed`, so that a throttle of 10 s takes 0.1 s in a test.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

POLL_S = 0.01


@dataclass
class Spec:
    argv: list[str]
    env: dict[str, str]
    cwd: str
    log: str
    umask: int
    run_at_load: bool
    restart: bool  # after a failure
    throttle_s: float
    exit_timeout_s: float
    speed: float = 1.0
    never_restart: list[int] = field(default_factory=list)
    burst: int = 0  # starts allowed within `interval_s`; 0 = any number
    interval_s: float = 0.0
    notify: bool = False  # running only after READY=1


@dataclass
class Status:
    # never, running, activating, scheduled, stopped, terminating, failed
    phase: str = "never"
    pid: int = 0
    runs: int = 0
    exit_code: int | None = None  # negative: the signal
    spawn_failed: bool = False
    limited: bool = False  # too many starts in too short a time
    supervisor: int = 0


def write(path: Path, value: object) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(value))
    os.replace(temporary, path)


def read_status(folder: Path) -> Status | None:
    try:
        return Status(**json.loads((folder / "status.json").read_text()))
    except FileNotFoundError:
        return None


def launch(folder: Path, spec: Spec) -> None:
    """Starts the supervisor and waits until it has written its first status."""
    (folder / "inbox").mkdir(parents=True, exist_ok=True)
    write(folder / "spec.json", asdict(spec))
    supervisor = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=open(folder / "supervisor.err", "ab"),  # noqa: SIM115 - the child's
        start_new_session=True,
    )
    while read_status(folder) is None:
        if supervisor.poll() is not None:
            raise RuntimeError((folder / "supervisor.err").read_text())
        time.sleep(POLL_S)


def order(folder: Path, verb: str) -> None:
    """Leaves an order and waits until the supervisor has taken it (not until it is done)."""
    path = folder / "inbox" / f"{time.monotonic_ns()}"
    write(path, verb)
    while path.exists() and read_status(folder) is not None:
        time.sleep(POLL_S / 2)


class Supervisor:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spec = Spec(**json.loads((folder / "spec.json").read_text()))
        self.status = Status(supervisor=os.getpid())
        self.child: subprocess.Popen[bytes] | None = None
        self.started: list[float] = []
        self.due = 0.0 if self.spec.run_at_load else None
        self.kill_at: float | None = None
        self.leaving = False
        self.again = False
        self.ready = self._ready_socket() if self.spec.notify else None

    def run(self) -> None:
        while True:
            self._reap()
            if self.leaving and self.child is None:
                break
            self._take_orders()
            self._kill_late()
            self._spawn_when_due()
            self._listen()
            self._publish()
            time.sleep(POLL_S)
        for path in (self.folder / "inbox").iterdir():
            path.unlink()
        (self.folder / "status.json").unlink(missing_ok=True)

    def _take_orders(self) -> None:
        for path in sorted((self.folder / "inbox").iterdir()):
            if path.name.startswith("."):
                continue
            verb = json.loads(path.read_text())
            if verb in ("start", "force"):
                self._start(kill=verb == "force")
            elif verb in ("stop", "leave"):
                self.leaving = self.leaving or verb == "leave"
                self._terminate()
            self._publish()
            path.unlink()

    def _start(self, *, kill: bool) -> None:
        if self.child is None:
            self.due = 0.0
            self.started.clear()
        elif kill:
            self.again = True
            self.child.send_signal(signal.SIGKILL)

    def _terminate(self) -> None:
        self.due = None
        if self.child is None:
            if self.status.phase not in ("never", "failed"):
                self.status.phase = "stopped"
            return
        if self.kill_at is None:
            self.child.send_signal(signal.SIGTERM)
            self.kill_at = time.monotonic() + self.spec.exit_timeout_s / self.spec.speed
            self.status.phase = "terminating"

    def _kill_late(self) -> None:
        if self.child is not None and self.kill_at and time.monotonic() > self.kill_at:
            self.child.send_signal(signal.SIGKILL)

    def _spawn_when_due(self) -> None:
        if self.child is not None or self.due is None or time.monotonic() < self.due:
            return
        self.due = None
        now = time.monotonic()
        self.started = [t for t in self.started if now - t < self.spec.interval_s / self.spec.speed]
        if self.spec.burst and len(self.started) >= self.spec.burst:
            self.status.phase, self.status.limited = "failed", True
            return
        self.status.limited = False
        self.started.append(now)
        self.status.runs += 1
        try:
            self.child = self._spawned()
        except OSError:
            self.status.spawn_failed = True
            self.status.exit_code = 78
            self._after_exit(78)
            return
        self.status.pid = self.child.pid
        self.status.phase = "activating" if self.spec.notify else "running"

    def _spawned(self) -> subprocess.Popen[bytes]:
        env = dict(self.spec.env)
        if self.ready is not None:
            env["NOTIFY_SOCKET"] = self.ready.getsockname()
        with open(self.spec.log, "ab") if self.spec.log else open(os.devnull, "ab") as log:
            return subprocess.Popen(
                self.spec.argv,
                env=env,
                cwd=self.spec.cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                umask=self.spec.umask,
                start_new_session=True,
            )

    def _reap(self) -> None:
        if self.child is None or (code := self.child.poll()) is None:
            return
        # launchd kills what is left of the job's process group.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.child.pid, signal.SIGKILL)
        stopping = self.kill_at is not None
        self.child, self.kill_at, self.status.pid = None, None, 0
        self.status.exit_code, self.status.spawn_failed = code, False
        if self.again:
            self.again, self.due = False, 0.0
        elif stopping:
            self.status.phase = "stopped"
        else:
            self._after_exit(code)

    def _after_exit(self, code: int) -> None:
        wanted = self.spec.restart and code != 0 and code not in self.spec.never_restart
        if not wanted:
            self.status.phase = "stopped" if code == 0 else "failed"
            return
        self.status.phase = "scheduled"
        self.due = self.started[-1] + self.spec.throttle_s / self.spec.speed

    def _ready_socket(self) -> socket.socket:
        # Its own short folder: a socket's path has 108 bytes, and those of test workers are long.
        path = Path(tempfile.mkdtemp(prefix="notify-")) / "notify.sock"
        atexit.register(shutil.rmtree, path.parent, ignore_errors=True)
        inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        inbox.bind(str(path))
        inbox.setblocking(False)
        return inbox

    def _listen(self) -> None:
        if self.ready is None:
            return
        with contextlib.suppress(BlockingIOError):
            if b"READY=1" in self.ready.recv(4096) and self.status.phase == "activating":
                self.status.phase = "running"

    def _publish(self) -> None:
        write(self.folder / "status.json", asdict(self.status))


if __name__ == "__main__":
    Supervisor(Path(sys.argv[1])).run()
