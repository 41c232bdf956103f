"""The daemon's end of the engine socket against a scripted engine process."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from live_daemon import eventually

from swiftlm_proto import messages as m
from swiftlm_proto.paths import under
from swiftlmd.config.settings import Settings
from swiftlmd.engines.engine import Engine, EngineLauncher
from swiftlmd.engines.placement import Placement
from swiftlmd.engines.process import spawn
from swiftlmd.faults import Kind, ServiceError

TESTS = Path(__file__).parents[1] / "support"
COMMAND = [sys.executable, str(TESTS / "fake_engine.py")]
REASON = m.Fault(kind=Kind.SHUTTING_DOWN, message="it was asked to go")


def environment(script: dict[str, Any]) -> dict[str, str]:
    rooms = [str(TESTS.parents[1] / "proto"), str(TESTS)]
    return {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": os.pathsep.join(rooms),
        "FAKE_ENGINE": json.dumps(script),
    }


@pytest.fixture
def folder() -> Any:
    with tempfile.TemporaryDirectory(prefix="sl", dir="/tmp") as name:
        yield Path(name)


async def launched(folder: Path, script: dict[str, Any]) -> Engine:
    launcher = EngineLauncher(under(folder), COMMAND, environment(script))
    placement = Placement(m.LoadRequest(model="x"), 0, True, "", "{}")
    return await launcher.launch(placement, Settings(), lambda _: None)


@asynccontextmanager
async def running(folder: Path, script: dict[str, Any]) -> AsyncIterator[Engine]:
    engine = await launched(folder, script)
    task = asyncio.create_task(engine.run())
    try:
        yield engine
    finally:
        engine.kill("the test is over")
        await task


async def answer(engine: Engine, request_id: str, **fields: Any) -> list[m.SequenceEvent]:
    request = m.GenerateRequest(request_id=request_id, text="hi", **fields)
    return [event async for event in engine.client.generate(request)]


def sockets(folder: Path) -> list[Path]:
    return list(folder.glob("*.sock"))


def text_of(events: list[m.SequenceEvent], index: int = 0) -> str:
    return "".join(e.delta.content for e in events if e.delta and e.index == index)


async def test_requests_at_once_get_their_own_words(folder: Path) -> None:
    async with running(folder, {"tokens": list("abcdef"), "token_s": 0.01}) as engine:
        answers = await asyncio.gather(
            *(answer(engine, f"r{n}", max_tokens=n) for n in range(1, 7))
        )
        assert [text_of(events) for events in answers] == ["abcdef"[:n] for n in range(1, 7)]
        assert all(events[0].started is not None for events in answers)


async def test_each_choice_ends_exactly_once(folder: Path) -> None:
    async with running(folder, {}) as engine:
        events = await answer(engine, "r", n=3)
        assert sorted(e.index for e in events if e.finished) == [0, 1, 2]
        assert [text_of(events, index) for index in range(3)] == ["one two three"] * 3


async def test_closing_the_iterator_ends_the_request_in_the_engine(folder: Path) -> None:
    async with running(folder, {"tokens": ["x"] * 1000, "token_s": 0.01}) as engine:
        events = engine.client.generate(m.GenerateRequest(request_id="r", text="hi"))
        await anext(events)
        assert engine.client.busy.is_set()
        await events.aclose()
        assert not engine.client.busy.is_set()

        async def nothing_runs() -> bool:
            return (await engine.client.stats(1.0)).running == 0

        await eventually(nothing_runs, 3)


async def test_a_request_that_is_left_while_it_is_sent_ends_in_the_engine(folder: Path) -> None:
    async with running(folder, {"tokens": ["x"] * 1000, "token_s": 0.01}) as engine:
        large = m.GenerateRequest(request_id="large", text="x" * (8 << 20))
        asked = asyncio.create_task(anext(engine.client.generate(large)))
        await asyncio.sleep(0)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await answer(engine, "small", max_tokens=1)  # goes out behind it

        async def nothing_runs() -> bool:
            return (await engine.client.stats(1.0)).running == 0

        await eventually(nothing_runs, 3)


async def test_a_request_that_cannot_be_written_ends_alone(folder: Path) -> None:
    async with running(folder, {"tokens": list("abcdef"), "token_s": 0.01}) as engine:
        good = asyncio.create_task(answer(engine, "good"))
        bad = [e async for e in engine.client.generate(m.GenerateRequest("bad", text="\udcff"))]
        assert [e.finished.fault.kind for e in bad] == [Kind.INVALID]
        assert text_of(await good) == "abcdef"


@pytest.mark.parametrize("code", [1, 70, -9, -11])
async def test_death_ends_every_choice_of_every_request_with_one_error(
    folder: Path, code: int
) -> None:
    script = {"tokens": ["x"] * 100, "token_s": 0.01, "exit_after_tokens": 20, "exit_code": code}
    engine = await launched(folder, script)
    task = asyncio.create_task(engine.run())
    answers = await asyncio.gather(answer(engine, "r1", n=2), answer(engine, "r2"))
    end = await task
    assert end.code == code
    for events, choices in zip(answers, (2, 1), strict=True):
        finished = [event for event in events if event.finished]
        assert sorted(event.index for event in finished) == list(range(choices))
        assert {event.finished.reason for event in finished} == {m.FinishedReason.ERROR}
        assert str(end.pid) in finished[0].finished.fault.message
    with pytest.raises(ServiceError):
        await answer(engine, "late")


async def test_stop_ends_requests_with_an_event_and_the_process_with_zero(folder: Path) -> None:
    engine = await launched(folder, {"tokens": ["x"] * 1000, "token_s": 0.01})
    task = asyncio.create_task(engine.run())
    asked = asyncio.create_task(answer(engine, "r"))
    await asyncio.sleep(0.1)
    end = await engine.stop(5.0, REASON)
    assert end.code == 0
    assert (await asked)[-1].finished.fault.kind is Kind.SHUTTING_DOWN
    assert await task == end


async def test_stop_goes_on_to_sigterm_and_then_to_sigkill(folder: Path) -> None:
    deaf = {"ignore_shutdown": True, "ignore_sigterm": True}
    for script, code in (({"ignore_shutdown": True}, -15), (deaf, -9)):
        engine = await launched(folder, script)
        task = asyncio.create_task(engine.run())
        assert (await engine.stop(0.3, REASON)).code == code
        await task


async def test_a_slow_but_willing_end_is_not_cut_short(folder: Path) -> None:
    engine = await launched(folder, {"shutdown_s": 1.0})
    task = asyncio.create_task(engine.run())
    assert (await engine.stop(5.0, REASON)).code == 0
    await task


async def test_a_failed_load_raises_its_fault_and_leaves_no_process(folder: Path) -> None:
    with pytest.raises(ServiceError, match="shard 2") as caught:
        await launched(folder, {"load_fault": "shard 2 is cut short"})
    assert caught.value.kind is Kind.MODEL_BROKEN
    assert sockets(folder) == []


async def test_a_cancelled_load_leaves_no_process(folder: Path) -> None:
    task = asyncio.create_task(launched(folder, {"load_s": 30}))
    await eventually(lambda: sockets(folder), 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sockets(folder) == []


async def test_a_program_that_cannot_start_says_why(folder: Path) -> None:
    with pytest.raises(ServiceError, match="could not be started"):
        await spawn(["/nowhere/python"], folder / "s", {}, folder / "log")
    process = await spawn(
        [sys.executable, "-c", "import nonsense_module"], folder / "s", {}, folder / "log"
    )
    with pytest.raises(ServiceError, match="nonsense_module"):
        await process.wait_listening(10.0)


async def test_questions_are_answered_and_whoever_asks_a_dying_engine_hears_why(
    folder: Path,
) -> None:
    async with running(folder, {}) as engine:
        reply = await engine.client.tokenize(m.TokenizeRequest(text="ab"))
        assert reply.ids == [97, 98]

        async def ask_until_it_fails() -> None:
            async with asyncio.timeout(5):
                while True:
                    await engine.client.tokenize(m.TokenizeRequest(text="ab"))

        engine.kill("it took too long")
        with pytest.raises(ServiceError, match="it took too long"):
            await ask_until_it_fails()
