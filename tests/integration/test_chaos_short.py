"""A few kills at random moments; the soak does two hundred."""

from __future__ import annotations

from chaos import HEALTH_S, chaos
from live_daemon import home

SCRIPT = {"tokens": ["word "] * 40, "token_s": 0.01, "load_s": 0.2}


async def test_service_returns_after_kills_of_engine_daemon_and_both() -> None:
    async with home("tiny") as place:
        place.paths.config_file.write_text("# kept\n[log]\nlevel = 'info'\n")
        report = await chaos(place, SCRIPT, kills=5, seed=3)
        assert report.kills.total() == 5
        assert report.slowest_s < 2 * HEALTH_S
        assert place.paths.config_file.read_text().startswith("# kept")
