"""What a failed child process of the store is quoted with."""

from __future__ import annotations

import pytest

from swiftlmd.store.child import ChildFailed

TRACE = """Traceback (most recent call last):
  File "x.py", line 1, in <module>
    raise KeyError("rope")
KeyError: 'rope'
"""


@pytest.mark.parametrize(
    ("complaint", "cause"),
    [
        (TRACE, "KeyError: 'rope'"),
        (f"a warning\n{TRACE}", "KeyError: 'rope'"),
        (f"{TRACE}\nDuring handling another exception occurred:\n\n{TRACE}", "KeyError: 'rope'"),
        ("no space left", "no space left"),
        ("", "exit status 3"),
    ],
)
def test_a_traceback_is_quoted_by_its_last_line(complaint: str, cause: str) -> None:
    assert ChildFailed(3, complaint).cause == cause
