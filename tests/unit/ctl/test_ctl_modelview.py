"""How one model is shown on the terminal."""

from __future__ import annotations

from datetime import datetime

from swiftlm_proto import messages as m
from swiftlmctl.views import model_table


def test_the_time_of_an_unload_is_a_time_and_no_count_of_seconds() -> None:
    at = datetime(2026, 3, 1, 14, 5, 9).timestamp()
    assert model_table.facts(m.ModelStatus(expires_at=at), None)["expires_at"] == (
        "2026-03-01 14:05:09"
    )


def test_a_model_that_stays_has_no_time_of_an_unload() -> None:
    assert "expires_at" not in model_table.facts(m.ModelStatus(model="a"), None)
