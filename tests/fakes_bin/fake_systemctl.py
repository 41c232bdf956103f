"""A stateful `systemctl --user` for tests: reads the unit, runs it, keeps systemd's limits.

State lies in $FAKE_SYSTEMD_DIR; units are read from $XDG_CONFIG_HOME or $HOME/.config. A unit that
was not reloaded since it changed is run as it was. `no-bus` in modes.json: no manager answers.
$FAKE_SYSTEMD_SPEED divides every time.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

try:
    from fakes_bin import supervision
except ImportError:  # run as a program: this folder itself is on the path
    import supervision

# What `systemctl show` calls each phase.
ACTIVE = {
    "never": ("inactive", "dead"),
    "activating": ("activating", "start"),
    "running": ("active", "running"),
    "scheduled": ("activating", "auto-restart"),
    "stopped": ("inactive", "dead"),
    "failed": ("failed", "failed"),
    "terminating": ("deactivating", "stop-sigterm"),
}


class Refused(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class Systemctl:
    """One call; the words it prints are in `out`."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.root = Path(environ["FAKE_SYSTEMD_DIR"])
        self.speed = float(environ.get("FAKE_SYSTEMD_SPEED", "20"))
        self.home = environ["HOME"]
        config = Path(environ.get("XDG_CONFIG_HOME") or Path(self.home) / ".config")
        self.units = config / "systemd" / "user"
        self.wants = self.units / "default.target.wants"
        self.out: list[str] = []

    def call(self, words: Sequence[str]) -> tuple[int, str, str]:
        """Exit code, standard output and standard error."""
        with open(self.root / "calls.log", "a") as journal:
            journal.write(json.dumps(list(words)) + "\n")
        modes = self.root / "modes.json"
        if modes.exists() and "no-bus" in json.loads(modes.read_text()):
            return 1, "", "Failed to connect to bus: No medium found\n"
        options = {word for word in words if word.startswith("-")}
        verb, *units = [word for word in words if not word.startswith("-")]
        try:
            self._do(verb, units, options)
        except Refused as e:
            return e.code, "", e.text + "\n"
        return 0, "".join(f"{line}\n" for line in self.out), ""

    def _do(self, verb: str, units: list[str], options: set[str]) -> None:
        valued = dict(option.split("=", 1) for option in options if "=" in option)
        block = "--no-block" not in options
        actions = {
            "show-environment": lambda: self.out.append(f"HOME={self.home}"),
            "daemon-reload": self.daemon_reload,
            "enable": lambda: self.enable(units[0], "--now" in options),
            "disable": lambda: self.disable(units[0], "--now" in options),
            "start": lambda: self.start(units[0], block),
            "stop": lambda: self.stop(units[0]),
            "restart": lambda: self.restart(units[0], block),
            "reset-failed": lambda: self.reset_failed(units[0]),
            "kill": lambda: self.kill(units[0], valued["--signal"]),
            "show": lambda: self.show(units[0], valued["--property"].split(",")),
        }
        if "--user" not in options or verb not in actions:
            raise Refused(1, f"Unknown command verb {verb}.")
        actions[verb]()

    def known(self, unit: str) -> dict[str, list[str]] | None:
        """The unit as it was when systemd last read it."""
        stored = self.root / "read" / unit
        return json.loads(stored.read_text()) if stored.exists() else None

    def daemon_reload(self) -> None:
        place = self.root / "read"
        place.mkdir(exist_ok=True)
        for old in place.iterdir():
            old.unlink()
        for path in (*self.units.glob("*.service"), *self.units.glob("*.socket")):
            supervision.write(place / path.name, read_unit(path))

    def require(self, unit: str) -> dict[str, list[str]]:
        if self.known(unit) is None and (self.units / unit).exists():
            self.daemon_reload()
        fields = self.known(unit)
        if fields is None:
            raise Refused(5, f"Failed to start {unit}: Unit {unit} not found.")
        return fields

    def folder(self, unit: str) -> Path:
        return self.root / "jobs" / unit

    def status(self, unit: str) -> supervision.Status | None:
        return supervision.read_status(self.folder(unit))

    def enable(self, unit: str, now: bool) -> None:
        self.require(unit)
        self.wants.mkdir(parents=True, exist_ok=True)
        link = self.wants / unit
        if not link.is_symlink():
            link.symlink_to(self.units / unit)
        if now:
            self.start(unit, block=True)

    def disable(self, unit: str, now: bool) -> None:
        if not (self.units / unit).exists():
            raise Refused(1, f"Failed to disable unit: Unit file {unit} does not exist.")
        (self.wants / unit).unlink(missing_ok=True)
        if now:
            self.stop(unit)

    def start(self, unit: str, block: bool) -> None:
        spec = self.spec(self.require(unit))
        place = self.folder(unit)
        status = self.status(unit)
        if status is None:
            supervision.launch(place, spec)
        elif status.phase == "failed" and status.limited and not (place / "reset").exists():
            raise Refused(1, f"Failed to start {unit}: start request repeated too quickly")
        (place / "reset").unlink(missing_ok=True)
        supervision.order(place, "start")
        while block and (found := self.status(unit)) and found.phase == "activating":
            time.sleep(supervision.POLL_S)

    def stop(self, unit: str) -> None:
        if self.status(unit) is None:
            return
        supervision.order(self.folder(unit), "leave")
        while self.status(unit) is not None:
            time.sleep(supervision.POLL_S)

    def restart(self, unit: str, block: bool) -> None:
        self.stop(unit)
        self.start(unit, block)

    def reset_failed(self, unit: str) -> None:
        if self.known(unit) is None:
            raise Refused(1, f"Failed to reset failed state of unit {unit}: Unit not loaded.")
        if self.status(unit) is not None:
            (self.folder(unit) / "reset").touch()

    def kill(self, unit: str, name: str) -> None:
        found = self.status(unit)
        if found is None or not found.pid:
            raise Refused(1, f"Failed to kill unit {unit}: No main process to kill")
        os.kill(found.pid, getattr(signal, name))

    def show(self, unit: str, names: list[str]) -> None:
        found = self.status(unit) or supervision.Status()
        active, sub = ACTIVE[found.phase]
        why = "start-limit-hit" if found.limited else "exit-code"
        values = {
            "LoadState": "loaded" if self.known(unit) is not None else "not-found",
            "ActiveState": active,
            "SubState": sub,
            "MainPID": str(found.pid),
            "ExecMainStatus": str(abs(found.exit_code or 0)),
            "NRestarts": str(max(found.runs - 1, 0)),
            "UnitFileState": "enabled" if (self.wants / unit).is_symlink() else "disabled",
            "TimeoutStopUSec": "45s",
            "Result": why if found.phase == "failed" else "success",
        }
        self.out += [f"{name}={values[name]}" for name in names]

    def spec(self, fields: dict[str, list[str]]) -> supervision.Spec:
        def last(name: str, default: str = "") -> str:
            return fields.get(name, [default])[-1]

        env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": self.home}
        for line in fields.get("Environment", []):
            for word in shlex.split(plain(line)):
                name, _, value = word.partition("=")
                env[name] = value
        # A socket unit is played by a process that only stays: nobody is activated by it here.
        command = plain(last("ExecStart")) or "/bin/sleep 600"
        return supervision.Spec(
            argv=[word.replace("$$", "$") for word in shlex.split(command)],
            env=env,
            cwd=plain(last("WorkingDirectory", "/")),
            log=str(self.root / "journal.log"),
            umask=int(last("UMask", "0022"), 8),
            run_at_load=False,
            restart=last("Restart") == "on-failure",
            throttle_s=float(last("RestartSec", "0.1")),
            exit_timeout_s=float(last("TimeoutStopSec", "90")),
            speed=self.speed,
            never_restart=[int(code) for code in last("RestartPreventExitStatus").split()],
            burst=int(last("StartLimitBurst", "0")),
            interval_s=float(last("StartLimitIntervalSec", "0")),
            notify=last("Type") == "notify",
        )


def read_unit(path: Path) -> dict[str, list[str]]:
    fields: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if match := re.match(r"([A-Za-z]+)=(.*)$", line):
            fields.setdefault(match.group(1), []).append(match.group(2))
    return fields


def plain(text: str) -> str:
    return text.replace("%%", "%")
