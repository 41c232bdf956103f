"""What ended an engine process is named as it was: by a fault of its own, by us, or by others."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from live_daemon import eventually

from swiftlmd.engines.process import EngineProcess, ProcessEnd, spawn

PASSING = "2026-11-29 00:00:00,000 INFO grpclib.server: Request was cancelled"
EARLIER = "[METAL] Insufficient Memory\nValueError: of an earlier engine\n"


async def engine(folder: Path, program: str) -> EngineProcess:
    (folder / "engine.log").write_text(EARLIER)
    command = [sys.executable, "-c", program]
    return await spawn(command, folder / "e.sock", os.environ, folder / "engine.log")


async def end_of(folder: Path, program: str) -> ProcessEnd:
    return await (await engine(folder, program)).wait()


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (f"print({PASSING!r}); import os; os.kill(os.getpid(), 11)", "it was ended by SIGSEGV"),
        (
            f"print({PASSING!r}, flush=True); import faulthandler; faulthandler.enable(); "
            "faulthandler._sigsegv()",
            "it was ended by SIGSEGV; its log ends with: Fatal Python error: Segmentation fault",
        ),
        (
            f"print({PASSING!r}); raise ValueError('shard 2 is cut')",
            "its step loop failed; its log ends with: ValueError: shard 2 is cut",
        ),
        (
            "print('libc++abi: terminating: [METAL] lost', flush=True); import os; os.abort()",
            "it was ended by SIGABRT; its log ends with: libc++abi: terminating: [METAL] lost",
        ),
        (
            "print('loading'); import os; os.kill(os.getpid(), 9)",
            "it was killed (SIGKILL), perhaps by the system for lack of memory",
        ),
        (f"print({PASSING!r}); raise SystemExit(99)", "it ended with exit code 99"),
    ],
    ids=["signal", "stack", "exception", "library", "killed", "nothing said"],
)
async def test_an_end_is_named_by_what_tells_of_it(tmp_path: Path, program: str, said: str) -> None:
    assert str(await end_of(tmp_path, program)) == said


async def test_what_earlier_engines_wrote_is_no_hint(tmp_path: Path) -> None:
    end = await end_of(tmp_path, "raise SystemExit(70)")
    assert (end.meaning, end.hint) == ("the GPU reported a fault", "")


@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_an_end_that_was_our_doing_is_no_lack_of_memory(tmp_path: Path, how: str) -> None:
    program = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print('ready', flush=True); time.sleep(60)"
    )
    process = await engine(tmp_path, program)
    await eventually(lambda: "ready" in (tmp_path / "engine.log").read_text())
    if how == "kill":
        process.kill("no step of the model finished for 301 s")
        end = await process.wait()
    else:
        end = await process.stop(0.05)
    assert end.code == -signal.SIGKILL
    assert "memory" not in str(end)
    reason = "no step of the model finished" if how == "kill" else "it did not leave when"
    assert str(end).startswith(f"the daemon ended it: {reason}")
