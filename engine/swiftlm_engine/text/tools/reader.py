"""What every family's reader of tool calls does for the text around it."""

from typing import Protocol


class CallReader(Protocol):
    """Reads from behind a start marker to where the calls are over. It never raises."""

    def feed(self, text: str) -> str | None:
        """None while the calls go on; then the text behind them."""

    def finish(self, cut: bool) -> None:
        """The text ends here: cut off, or because the model had no more to say."""
