"""Nothing is imported from the folder that a program of ours was started in."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import live_daemon
import pytest

from swiftlm_engine.cluster.launch import local_command
from swiftlm_engine.cluster.remote_follower import hire_command
from swiftlm_engine.cluster.transport import lend_command
from swiftlmctl.commands import config_file
from swiftlmd.admin import self_check
from swiftlmd.engines.process import engine_command
from swiftlmd.store import child

ROOT = Path(__file__).resolve().parents[2]
ROOMS = os.pathsep.join(str(ROOT / room) for room in ("proto", "engine", "daemon", "ctl"))
NAMES = (
    *("random", "json", "h2", "mlx", "numpy", "jinja2", "grpclib", "aiohttp", "typer", "tomlkit"),
    *("swiftlm_proto", "swiftlm_engine", "pip", "platform", "uvloop"),
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where each name that somebody may import leaves a mark."""
    found = tmp_path / "downloads"
    found.mkdir()
    for name in NAMES:
        mark = found / f"{name}.imported"
        text = f"open({str(mark)!r}, 'w').close(); raise SystemExit('imported {name}')"
        (found / f"{name}.py").write_text(text)
    monkeypatch.chdir(found)
    monkeypatch.setenv("PYTHONPATH", ROOMS)
    return found


def marks(folder: Path) -> list[str]:
    return [mark.name for mark in folder.glob("*.imported")]


def test_the_trap_works(folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "random"], capture_output=True, check=False)
    assert marks(folder) == ["random.imported"]


@pytest.mark.parametrize(
    "command",
    [
        pytest.param([*engine_command(), "--help"], id="engine"),
        pytest.param([*lend_command()[:-1], "--help"], id="lent host"),
        pytest.param([*local_command("127.0.0.1:1", 1, Path("secret")), "--help"], id="rank"),
        pytest.param([*hire_command("127.0.0.1:1", {}, Path("s"))[:6], "--x"], id="remote rank"),
        pytest.param([sys.executable, "-m", "swiftlmd", "--version"], id="daemon by hand"),
        pytest.param([sys.executable, "-m", "swiftlmctl", "--help"], id="ctl by hand"),
    ],
)
def test_a_program_takes_nothing_from_its_folder(folder: Path, command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert "imported " not in done.stderr
    assert marks(folder) == []


async def test_the_stores_children_take_nothing_from_it(folder: Path) -> None:
    lines: list[object] = []
    program = "import json, random, h2; print(json.dumps({'done': True}))"
    await child.run("-c", program, on_report=lines.append, environ=os.environ)
    assert lines == [{"done": True}]
    assert marks(folder) == []


def test_the_checks_and_the_offline_configuration_take_nothing_from_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def noted(command: list[str], **how: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", noted)
    self_check.mlx_check()
    config_file._program(["show"])
    assert {command[1] for command in commands} <= {"-P", "-I"}
    assert len(commands) == 2


async def test_a_daemon_and_its_engine_take_nothing_from_it(folder: Path) -> None:
    async with (
        live_daemon.home("tiny") as home,
        live_daemon.daemon(home, real=True, cwd=folder) as daemon,
        asyncio.timeout(60),
    ):
        status, _ = await daemon.chat()  # its files are no model: the engine says so, and ends
        assert status >= 400
        assert (home.paths.logs / "engine-tiny.log").exists()
    assert marks(folder) == []
