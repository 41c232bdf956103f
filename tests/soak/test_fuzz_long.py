"""Two thousand generated requests and sixty killed engines (`make soak`): no failure of ours, no
hang, and the daemon holds afterwards what it held before."""

from __future__ import annotations

import pytest
from killed_fuzz import KilledFuzz, all_routes, by_schemathesis, generated
from live_daemon import daemon, home

SCRIPT = {"tokens": ["word "] * 20, "token_s": 0.005, "load_s": 0.05}
REQUESTS, KILLS = 2000, 60
WARM_UP = 300


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("made_by", ["schemathesis", "us"])
async def test_generated_requests_and_kills_leave_nothing_behind(made_by: str) -> None:
    asked = generated(all_routes(), seed=60)
    if made_by == "schemathesis":
        pytest.importorskip("schemathesis", reason="`make setup` installs schemathesis")
        asked = by_schemathesis(all_routes(), 2 * WARM_UP + REQUESTS, seed=60)
    async with home("tiny") as place, daemon(place, SCRIPT, hub__offline=True) as live:
        fuzz = KilledFuzz(live, asked)
        await fuzz.run(WARM_UP, kills=3)
        before = await fuzz.holding()
        await fuzz.run(REQUESTS, kills=KILLS)
        after = await fuzz.holding()
    report = fuzz.report
    print(f"{report.statuses} in {report.statuses.total()} requests, {report.kills} kills")
    print(f"before {before}, after {after}")
    assert not report.wrong, "\n".join(report.wrong[:10])
    assert report.kills >= KILLS + 3
    assert report.statuses[200] > REQUESTS / 20
    assert report.statuses[400] > REQUESTS / 20
    assert after.rss < before.rss + 30 * 10**6
    assert after.files <= before.files + 4
    assert after.tasks <= before.tasks + 4
    assert after.threads <= before.threads + 4
