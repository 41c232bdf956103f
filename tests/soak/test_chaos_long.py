"""Two hundred kills under load (`make soak`): no orphan, no manual step, every request ends."""

from __future__ import annotations

import pytest
from chaos import HEALTH_S, chaos
from live_daemon import home

SCRIPT = {"tokens": ["word "] * 40, "token_s": 0.01, "load_s": 0.2}


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_two_hundred_kills_leave_nothing_to_mend() -> None:
    async with home("tiny") as place:
        report = await chaos(place, SCRIPT, kills=200, seed=1, longest_s=3.0)
        print(
            f"kills {dict(report.kills)}, requests {dict(report.endings)}, "
            f"slowest return {report.slowest_s:.1f} s"
        )
        assert report.slowest_s < 2 * HEALTH_S
