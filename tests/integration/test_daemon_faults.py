"""What the machine does to a daemon: no files left, no disk left, a home that cannot be written."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from live_daemon import Home, daemon, eventually, home, start
from tiny_models import make_model

from swiftlm_proto.exit_codes import DaemonExit
from swiftlmd.admin import self_check


@pytest.fixture
async def place() -> AsyncIterator[Home]:
    async with home("tiny") as found:
        yield found


async def test_a_daemon_out_of_file_descriptors_serves_again_when_they_are_back(
    place: Home,
) -> None:
    async with daemon(place) as live:
        assert (await live.chat())[0] == 200
        resource.prlimit(live.pid, resource.RLIMIT_NOFILE, (256, 256))
        idle = [await asyncio.open_connection("127.0.0.1", place.port) for _ in range(300)]
        assert (await live.chat())[0] == 200  # on the connection that it has
        for _, writer in idle:
            writer.close()
        await live.http.close()

        async def answers() -> bool:
            _, writer = await asyncio.open_connection("127.0.0.1", place.port)
            writer.close()
            return len(os.listdir(f"/proc/{live.pid}/fd")) < 100

        await eventually(answers, 10)
        assert live.child.returncode is None


@pytest.mark.skipif(not Path("/sys/kernel").exists(), reason="needs a folder nobody may write")
async def test_a_home_that_cannot_be_written_is_named_with_its_own_code(place: Home) -> None:
    place.environ["SWIFTLM_HOME"] = "/sys/swiftlm"  # refused to root, too
    live = await start(place)
    assert await live.exit_code() == DaemonExit.NOT_PERMITTED
    await live.close()
    assert "/sys/swiftlm" in (place.root / "output").read_text()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
async def test_a_full_disk_costs_log_lines_and_no_request(place: Home) -> None:
    place.paths.logs.mkdir(parents=True)
    for name in ("swiftlmd.log", "access.log"):
        (place.paths.logs / name).symlink_to("/dev/full")
    async with daemon(place) as live:
        for _ in range(3):
            assert (await live.chat())[0] == 200


def python(program: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def test_too_few_files_are_named_at_the_start(tmp_path: Path) -> None:
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64));"
        "from swiftlm_proto.paths import locate; from swiftlmd.main import serve;"
        "sys.exit(serve(locate(), {}, ['no-engine']))"
    )
    done = python(program, SWIFTLM_HOME=str(tmp_path))
    assert done.returncode == DaemonExit.NOT_PERMITTED
    assert "only 64 open files are allowed" in done.stderr
    assert "LimitNOFILE" in done.stderr


FEW_FILES = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (1000, 1000));"


@pytest.mark.parametrize("module", ["convert.quantize", "streaming.packing"])
def test_conversions_run_where_fewer_files_are_allowed_than_mlx_lm_sets(
    tmp_path: Path, module: str
) -> None:
    kind = "qwen3_moe" if "packing" in module else "llama"
    folder = make_model(kind, tmp_path / "model")
    words = [str(folder), *([str(tmp_path / "out")] if "quantize" in module else [])]
    program = (
        f"{FEW_FILES} import sys, runpy; sys.argv[1:] = {words!r};"
        f"runpy.run_module('swiftlm_engine.{module}', run_name='__main__')"
    )
    done = python(program)
    assert "maximum limit" not in done.stdout + done.stderr
    assert '"stage": "done"' in done.stdout, done.stdout + done.stderr


def test_so_does_the_check_of_mlx(monkeypatch: pytest.MonkeyPatch, room_path: str) -> None:
    monkeypatch.setenv("PYTHONPATH", room_path)
    checked = self_check._ONE_PRODUCT
    monkeypatch.setattr(self_check, "_ONE_PRODUCT", f"{FEW_FILES} {checked}")
    assert self_check.mlx_check().code is DaemonExit.STAY_DOWN


def test_an_engine_starts_where_fewer_files_are_allowed_than_mlx_lm_sets() -> None:
    """mlx_lm raises the limits to 2048 and 4096 at its import, or fails."""
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (1000, 1000));"
        "from swiftlm_engine.isolation.file_limit import bear_few_files; bear_few_files();"
        "import mlx_lm.utils; print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = python(program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "(1000, 1000)"
