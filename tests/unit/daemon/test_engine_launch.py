"""The start of an engine that comes to nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from swiftlm_proto import messages as m
from swiftlm_proto.paths import under
from swiftlmd.config.settings import Settings
from swiftlmd.engines import engine
from swiftlmd.engines.placement import Placement
from swiftlmd.faults import Kind, ServiceError


class Unkillable:
    """A process in the kernel's hands: it takes SIGKILL and does not end."""

    pid, alive = 42, True

    def __init__(self) -> None:
        self.killed_for = ""

    async def wait_listening(self, timeout_s: float) -> None:
        raise ServiceError(Kind.INTERNAL, "it never listened")

    def kill(self, reason: str) -> None:
        self.killed_for = reason

    async def wait(self) -> None:
        await asyncio.Event().wait()


async def test_a_load_whose_process_cannot_be_ended_hangs_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    process = Unkillable()

    async def spawned(*_: Any) -> Unkillable:
        return process

    monkeypatch.setattr(engine, "spawn", spawned)
    monkeypatch.setattr(engine, "_KILLED_S", 0.01)
    launcher = engine.EngineLauncher(under(tmp_path), ["engine"], {})
    placement = Placement(m.LoadRequest(model="a"), 1, True, "", "{}")
    async with asyncio.timeout(2):
        with pytest.raises(ServiceError, match="it never listened"):
            await launcher.launch(placement, Settings(), lambda event: None)
    assert process.killed_for == "its load was given up"
    assert "survives SIGKILL" in caplog.text
