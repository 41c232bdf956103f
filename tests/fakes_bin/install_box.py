"""A machine to install on: a home, a PATH of fakes, a checkout that can be given new versions."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from fakes_bin.control import HERE, FakeLaunchd, FakeSupervisor, FakeSystemd

ROOT = HERE.parents[1]

# A Python whose `-m venv` takes no seconds, which stands for itself when asked for the one behind
# it, and which claims to be built for Apple silicon on a Mac; everything else is the real one's.
PYTHON = """\
#!/bin/sh
case "$*" in
  *' -c '*) exec echo "$0" ;;
  *' - macos') exec "{python}" -I -c '
import os, sys
uname = os.uname()
os.uname = lambda: type(uname)((*uname[:4], "arm64"))
sys.argv = ["-", "macos"]
exec(sys.stdin.read())' ;;
  *' -m venv '*)
    for venv; do :; done
    mkdir -p "$venv/bin" && printf '%s' "{plan}" >"$venv/plan" || exit 1
    printf '#!/bin/sh\\nexec "{python}" "{fake}" "%s" "$@"\\n' "$venv" >"$venv/bin/python3"
    chmod 755 "$venv/bin/python3"
    exit
    ;;
esac
exec "{python}" "$@"
"""

MAC = {
    "uname": "case $1 in -m) echo arm64 ;; *) echo Darwin ;; esac",
    "sysctl": "case $2 in hw.optional.arm64) echo 1 ;; *) echo 0 ;; esac",
    "sw_vers": "echo 15.1",
    "id": "echo 501",
}


class InstallBox:
    """`kind` is the supervisor it has: launchd (and then it is a Mac), systemd or none."""

    def __init__(self, kind: str) -> None:
        # Short: a socket's path has to fit; and with what breaks careless quoting.
        self.root = Path(tempfile.mkdtemp(prefix="box", dir="/tmp"))
        self.home = self.root / "ho me&"
        self.home.mkdir()
        self.bin = self.root / "bin"
        self.bin.mkdir()
        self.plan: dict[str, object] = {}
        self.mac = kind == "launchd"
        self.supervisor: FakeSupervisor | None = None
        self.environ = {
            "HOME": str(self.home),
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "SWIFTLM_SERVICE_MANAGER": kind,
        }
        self._make_python()
        if kind != "none":
            fake = FakeLaunchd if self.mac else FakeSystemd
            self.supervisor = fake(self.root / "sup", self.home)
            self.environ |= self.supervisor.environ
            self.environ["PATH"] = f"{self.supervisor.bin}:{self.environ['PATH']}"
        if self.mac:
            self.plan["platform"] = "darwin"
            for name, body in MAC.items():
                self.program(name, body)
        self.write_plan()
        self.checkout = self.root / "src"
        self._make_checkout()

    def write_plan(self, **changes: object) -> None:
        self.plan |= changes
        (self.root / "plan.json").write_text(json.dumps(self.plan))

    def program(self, name: str, body: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def version(self, number: str) -> None:
        """The checkout is now that version."""
        (self.checkout / "pyproject.toml").write_text(f'[project]\nversion = "{number}"\n')

    def install(
        self, *words: str, shell: str = "dash", **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """$INSTALL_SHELL stands for every shell (`make test-shells`)."""
        program, *options = os.environ.get("INSTALL_SHELL", shell).split()
        shell = shutil.which(program) or program
        return self.run([shell, *options, self.checkout / "install.sh", *words], environ)

    def run(
        self, command: list[str | Path], environ: dict[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """As its user would, with more in the environment; nobody is at a terminal."""
        return subprocess.run(
            command,
            env=self.environ | environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    def ctl(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The installed swiftlmctl, as its user would call it."""
        python = self.app / "current" / "bin" / "python3"
        return subprocess.run(
            [str(python), "-I", "-m", "swiftlmctl", *words],
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def app(self) -> Path:
        mac, linux = "Library/Application Support/swiftlm", ".local/share/swiftlm"
        return self.home / (mac if self.mac else linux)

    def current(self) -> str:
        """The version that is switched on; "" for none."""
        link = self.app / "current"
        return os.readlink(link).split("/")[1].rpartition("-")[0] if link.is_symlink() else ""

    def files(self) -> dict[str, tuple[int, int]]:
        """Every file of the home with its inode and time of change, logs and sockets left out."""
        found = {}
        for path in self.home.rglob("*"):
            if path.is_file() and path.suffix not in (".log", ".sock") and path.name != "lock":
                stat = path.lstat()
                found[str(path.relative_to(self.home))] = (stat.st_ino, stat.st_mtime_ns)
        return found

    def pip_calls(self) -> list[list[str]]:
        path = self.root / "pip.log"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def close(self) -> None:
        if self.supervisor is not None:
            self.supervisor.close()
        self.end_processes()
        shutil.rmtree(self.root, ignore_errors=True)

    def end_processes(self) -> None:
        """Kills whatever runs out of this box."""
        for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                ours = str(self.root).encode() in cmdline.read_bytes()
                if ours and int(cmdline.parent.name) != os.getpid():
                    os.kill(int(cmdline.parent.name), signal.SIGKILL)
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue

    def _make_python(self) -> None:
        text = PYTHON.format(
            python=sys.executable, fake=HERE / "venv_python.py", plan=self.root / "plan.json"
        )
        for name in ("python3.12", "python3.13", "python3.11", "python3.14", "python3"):
            (self.bin / name).write_text(text)
            (self.bin / name).chmod(0o755)

    def _make_checkout(self) -> None:
        for room in ("engine/swiftlm_engine", "daemon/swiftlmd"):
            (self.checkout / room).mkdir(parents=True)
        for room in ("proto/swiftlm_proto", "ctl/swiftlmctl"):  # which install.sh may run itself
            (self.checkout / room).parent.mkdir()
            (self.checkout / room).symlink_to(ROOT / room)
        shutil.copytree(ROOT / "locks", self.checkout / "locks")
        shutil.copy(ROOT / "install.sh", self.checkout)
        self.version("0.1.0")
