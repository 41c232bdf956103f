"""launchctl's verbs and what its exit codes and `print` text mean.

The text of `print` is not a stable interface: only the first occurrence one tab deep counts, since
nested blocks repeat names such as `state`.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

from swiftlmctl.service.commands import CommandReply, Run, run


class Code(IntEnum):
    OK = 0
    NO_SUCH_PROCESS = 3
    # Means nothing by itself: loaded, draining, disabled, wrong session or a bad plist.
    IO = 5
    FILE_EXISTS = 17
    IN_PROGRESS = 36
    ALREADY = 37
    NO_DOMAIN = 112
    NOT_FOUND = 113
    DISABLED = 119
    WRONG_DOMAIN = 125
    WRONG_SESSION = 134


DRAINING = "SIGTERMed"
_FIELD = re.compile(r"^\t([a-z][a-z ]*) = (.*)$")


@dataclass(frozen=True, slots=True)
class Printed:
    """What `launchctl print` said about a loaded job."""

    fields: dict[str, str] = field(default_factory=dict)

    @property
    def state(self) -> str:
        return self.fields.get("state", "")

    @property
    def pid(self) -> int:
        return self._number("pid")

    @property
    def runs(self) -> int:
        return self._number("runs")

    @property
    def exit_timeout_s(self) -> int:
        return self._number("exit timeout")

    @property
    def last_exit(self) -> str:
        return self.fields.get("last exit code", "")

    @property
    def draining(self) -> bool:
        return self.state == DRAINING

    def _number(self, name: str) -> int:
        match = re.match(r"\d+", self.fields.get(name, ""))
        return int(match.group()) if match else 0


def parse_print(text: str) -> Printed:
    fields: dict[str, str] = {}
    for line in text.splitlines():
        if match := _FIELD.match(line):
            fields.setdefault(match.group(1), match.group(2))
    return Printed(fields)


class Launchctl:
    """One method for each verb; the reply's code is for the caller to judge."""

    def __init__(self, run: Run = run, program: str = "") -> None:
        self._run = run
        self._program = program or _program()

    def enable(self, target: str) -> CommandReply:
        return self._verb("enable", target)

    def disable(self, target: str) -> CommandReply:
        return self._verb("disable", target)

    def bootstrap(self, domain: str, plist: Path) -> CommandReply:
        return self._verb("bootstrap", domain, str(plist))

    def bootout(self, target: str) -> CommandReply:
        # Without a label this would log the user out.
        if target.count("/") != 2:
            raise ValueError(f"not a service target: {target!r}")
        return self._verb("bootout", target)

    def kickstart(self, target: str, *, kill: bool = False) -> CommandReply:
        return self._verb("kickstart", *(["-k"] if kill else []), target)

    def kill(self, signal: str, target: str) -> CommandReply:
        return self._verb("kill", signal, target)

    def print(self, target: str) -> Printed | None:
        """None when no such job is loaded (or there is no such domain)."""
        reply = self._verb("print", target)
        return parse_print(reply.out) if reply.code == Code.OK else None

    def domain_exists(self, domain: str) -> bool:
        return self._verb("print", domain).code == Code.OK

    def session(self) -> str:
        """Aqua at the screen, Background over SSH."""
        return self._verb("managername").out.strip()

    def is_disabled(self, domain: str, label: str) -> bool:
        reply = self._verb("print-disabled", domain)
        return re.search(rf'"{re.escape(label)}" => (disabled|true)\b', reply.out) is not None

    def _verb(self, *words: str) -> CommandReply:
        return self._run([self._program, *words])


def _program() -> str:
    # A launchd job and a cron job have no useful PATH; the real one is always here.
    fixed = Path("/bin/launchctl")
    return str(fixed) if fixed.exists() else shutil.which("launchctl") or str(fixed)
