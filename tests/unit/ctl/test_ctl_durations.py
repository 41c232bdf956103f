"""Times as they are typed."""

from __future__ import annotations

import pytest

from swiftlmctl.commands.durations import NEVER, keep_alive
from swiftlmctl.errors import CtlError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("90", 90), ("2h30m", 9000), ("never", NEVER), ("9" * 30, NEVER)],
)
def test_a_stay_is_seconds_or_for_ever(text: str, seconds: int) -> None:
    assert keep_alive(text) == seconds


@pytest.mark.parametrize("text", ["soon", "-1", "", "1.5h", "²"])
def test_what_is_no_time_is_refused_in_words(text: str) -> None:
    with pytest.raises(CtlError, match="is not a time"):
        keep_alive(text)
