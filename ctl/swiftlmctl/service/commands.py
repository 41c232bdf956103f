"""Runs a supervisor's command-line tool and keeps what it said."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from swiftlm_proto.exit_codes import CtlExit
from swiftlmctl.errors import CtlError

_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class CommandReply:
    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """What the tool said, for an error message."""
        return " ".join((self.err.strip() or self.out.strip()).split()) or f"exit code {self.code}"


Run = Callable[[Sequence[str]], CommandReply]


def run(arguments: Sequence[str]) -> CommandReply:
    try:
        done = subprocess.run(
            arguments,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError as e:
        raise CtlError(f"{arguments[0]} is not on this machine") from e
    except subprocess.TimeoutExpired as e:
        raise CtlError(
            f"`{' '.join(arguments)}` did not return in {_TIMEOUT_S:.0f} s", code=CtlExit.TIMEOUT
        ) from e
    return CommandReply(done.returncode, done.stdout, done.stderr)
