"""What goes wrong in a verb: one exception with its exit code; `main` prints it and leaves."""

from __future__ import annotations

from swiftlm_proto.exit_codes import CtlExit, SetupExit


class CtlError(Exception):
    """`message` says what happened and to what; `hint` is what to do next."""

    def __init__(
        self, message: str, *, hint: str = "", code: CtlExit | SetupExit = CtlExit.FAILED
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code

    def text(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message
