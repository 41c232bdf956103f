"""What a test holds in its hands: a fake supervisor with its folder, its modes and its journal."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fakes_bin.fake_launchctl import Launchctl
from fakes_bin.fake_systemctl import Systemctl

from swiftlmctl.service.commands import CommandReply

HERE = Path(__file__).parent


class FakeSupervisor:
    """`run` has the signature the service managers want; `bin` goes to the front of a PATH."""

    program: str
    variable: str

    def __init__(self, root: Path, home: Path) -> None:
        self.root = root
        self.home = home
        root.mkdir(parents=True)
        home.mkdir(parents=True, exist_ok=True)
        self.bin = root / "bin"
        self.bin.mkdir()
        self._wrap(self.program)
        self.environ = {self.variable: str(root), "HOME": str(home)}

    def _wrap(self, program: str) -> None:
        wrapper = self.bin / program
        wrapper.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{HERE / program}" "$@"\n')
        wrapper.chmod(0o755)

    def run(self, words: Sequence[str]) -> CommandReply:
        """As `service.commands.run`, without the price of a process for each call."""
        return CommandReply(*self.call(words[1:]))

    def call(self, words: Sequence[str]) -> tuple[int, str, str]:
        raise NotImplementedError

    def put(self, name: str, value: object) -> None:
        (self.root / f"{name}.json").write_text(json.dumps(value))

    def calls(self) -> list[list[str]]:
        path = self.root / "calls.log"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def verbs(self, *of: str) -> list[str]:
        """The verbs called so far, in order; only those named."""
        words = (self._verb(call) for call in self.calls())
        return [word for word in words if not of or word in of]

    def _verb(self, call: list[str]) -> str:
        return next(word for word in call if not word.startswith("-"))

    def close(self) -> None:
        """Ends every supervisor and its job, and waits until they are gone."""
        for path in (self.root / "jobs").rglob("status.json"):
            try:
                status = json.loads(path.read_text())
            except FileNotFoundError:
                continue
            for pid in (status["supervisor"], status["pid"]):
                if pid:
                    _kill(pid)


class FakeLaunchd(FakeSupervisor):
    program = "launchctl"
    variable = "FAKE_LAUNCHD_DIR"
    uid = 501

    def __init__(self, root: Path, home: Path) -> None:
        super().__init__(root, home)
        self.environ["FAKE_LAUNCHD_UID"] = str(self.uid)

    def call(self, words: Sequence[str]) -> tuple[int, str, str]:
        return Launchctl(self.environ).call(words)

    def session(self, *domains: str, manager: str) -> None:
        self.put("session", {"domains": list(domains), "manager": manager})


class FakeSystemd(FakeSupervisor):
    program = "systemctl"
    variable = "FAKE_SYSTEMD_DIR"

    def call(self, words: Sequence[str]) -> tuple[int, str, str]:
        return Systemctl(self.environ).call(words)


class Script:
    """The control file of `job.py`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.write()

    def write(self, **wishes: object) -> None:
        self.path.write_text(json.dumps(wishes))

    @property
    def arguments(self) -> tuple[str, ...]:
        return (sys.executable, "-I", "-S", str(HERE / "job.py"), str(self.path))

    def events(self) -> list[str]:
        log = Path(f"{self.path}.log")
        return [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []

    def environment(self) -> dict[str, str]:
        return json.loads(Path(f"{self.path}.env").read_text())


def eventually(is_so: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Whether it came to be so within the time; looks often."""
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
