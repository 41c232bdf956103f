"""Where one marker stands before more than one syntax, the first character tells which."""

from collections.abc import Callable

from swiftlm_engine.text.tools.reader import CallReader


class SniffReader:
    """`choose` gets the first character that is no white space."""

    def __init__(self, choose: Callable[[str], CallReader]) -> None:
        self._choose = choose
        self._reader: CallReader | None = None
        self._held = ""

    def feed(self, text: str) -> str | None:
        if self._reader is None:
            self._held += text
            first = self._held.lstrip()[:1]
            if not first:
                return None
            self._reader = self._choose(first)
            text = self._held
        return self._reader.feed(text)

    def finish(self, cut: bool) -> None:
        if self._reader is None:
            self._reader = self._choose("{")
            self._reader.feed(self._held)
        self._reader.finish(cut)
