"""install.sh for real, once: packages from the index, a real model, a real answer, and away again.

Takes a minute or two: it installs everything that a user's machine gets. pip's cache is kept in
the checkout, so that only the first run downloads.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from swiftlmctl.service.detached import alive

ROOT = Path(__file__).resolve().parents[2]


class Home:
    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="in stall", dir="/tmp"))
        self.app = self.path / ".local" / "share" / "swiftlm"
        self.environ = {
            "HOME": str(self.path),
            "PATH": os.environ["PATH"],
            # No supervisor: the machine's own would read another home.
            "SWIFTLM_SERVICE_MANAGER": "none",
            "PIP_CACHE_DIR": str(ROOT / ".cache" / "pip"),
            "PIP_COMPILE": "0",  # half a minute for modules of which few are imported here
            **{k: v for k, v in os.environ.items() if k.startswith(("PIP_", "SSL_", "HTTP"))},
        }
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.app.mkdir(parents=True)
        self.checkout = self.path / "checkout"  # nobody edits it while it is being installed
        self.checkout.mkdir()
        for name in ("install.sh", "pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, self.checkout)
        for name in ("proto", "engine", "daemon", "ctl", "locks"):
            shutil.copytree(ROOT / name, self.checkout / name)
        (self.app / "config.toml").write_text(f"[http]\nport = {self.port}\n")

    def install(self, *words: str, shell: str = "sh") -> subprocess.CompletedProcess[str]:
        return self._run([shell, str(self.checkout / "install.sh"), *words])

    def ctl(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self._run([str(self.path / ".local" / "bin" / "swiftlmctl"), *words])

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=1500,
            check=False,
        )


@pytest.fixture
def home() -> Iterator[Home]:
    made = Home()
    yield made
    if (made.app / "current").exists():
        made.install("--uninstall", "--purge", "--yes")
    shutil.rmtree(made.path, ignore_errors=True)


def test_one_command_ends_with_a_real_answer_and_another_takes_it_away(home: Home) -> None:
    done = home.install()
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "Paris" in done.stdout

    with urllib.request.urlopen(f"http://127.0.0.1:{home.port}/health", timeout=30) as reply:
        assert reply.status == 200
    status = json.loads(home.ctl("status", "--json").stdout)
    assert status["state"] == "ready"
    assert [m["model"] for m in status["models"] if m["state"] == "ready"] == ["smollm2-135m"]
    assert home.ctl("doctor").returncode == 0

    again = home.install()
    assert again.returncode == 0, again.stdout[-2000:] + again.stderr[-2000:]
    assert "nothing had to be changed" in again.stdout
    assert json.loads(home.ctl("status", "--json").stdout)["pid"] == status["pid"]

    gone = home.install("--uninstall", "--yes")
    assert gone.returncode == 0, gone.stdout[-2000:] + gone.stderr[-2000:]
    assert {path.name for path in home.app.iterdir()} == {"config.toml", "models"}
    pids = [status["pid"], *(m["pid"] for m in status["models"] if m["pid"])]
    assert not any(alive(pid) for pid in pids)
