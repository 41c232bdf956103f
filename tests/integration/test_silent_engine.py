"""A stopped engine, seen from outside: every surface says so, and an unload takes no longer."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import live_daemon

from swiftlm_proto import messages as m


async def test_a_stopped_engine_is_known_everywhere_and_gone_soon() -> None:
    async with (
        live_daemon.home("tiny") as home,
        live_daemon.daemon(home, engine__stall=6) as daemon,
    ):
        await daemon.chat()

        async def page(path: str) -> tuple[int, Any]:
            async with daemon.http.get(f"{daemon.url}{path}") as reply:
                kind = reply.content_type
                body = await reply.json() if kind == "application/json" else await reply.text()
                return reply.status, body

        (model,) = [x for x in (await daemon.admin.status(m.StatusRequest())).models if x.pid]
        assert (await page("/health"))[0] == (await page("/ready"))[0] == 200
        os.kill(model.pid, signal.SIGSTOP)

        async def is_unhealthy() -> bool:
            return (await page("/health"))[0] == 503

        await live_daemon.eventually(is_unhealthy, 20)
        health, ready = (await page("/health"))[1], (await page("/ready"))
        assert health["models"][0]["silent_s"] > 3
        assert ready[0] == 503
        assert ready[1]["wedged_engines"] == 1
        metrics = (await page("/metrics"))[1]
        assert 'swiftlm_engine_unhealthy{model="tiny"} 1.0' in metrics
        assert "swiftlm_engine_silent_seconds" in metrics
        status = await daemon.admin.status(m.StatusRequest())
        (found,) = [each for each in status.models if each.pid]
        assert (found.condition, found.unhealthy) == ("stopped", True)
        begun = time.monotonic()
        await daemon.admin.unload(m.UnloadModelRequest(model="tiny", force=True))
        assert time.monotonic() - begun < 5
        assert not live_daemon.is_alive(model.pid)
