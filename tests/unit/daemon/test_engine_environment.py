"""What an engine process starts with, and how its end is read."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from swiftlm_proto.exit_codes import EngineExit
from swiftlmd.engines.environment import engine_environment, find_openblas, usable_cores
from swiftlmd.engines.process import _meaning, remove_stale_sockets, shorten


@pytest.fixture
def openblas(tmp_path: Path) -> Path:
    library = tmp_path / "lib/x86_64-linux-gnu/openblas-pthread/libopenblas.so.0"
    library.parent.mkdir(parents=True)
    library.touch()
    return library


def test_linux_engines_preload_the_systems_openblas(tmp_path: Path, openblas: Path) -> None:
    env = engine_environment({"PATH": "/bin"}, {}, platform="linux", root=tmp_path)
    assert env["LD_PRELOAD"] == str(openblas)
    assert env["OPENBLAS_NUM_THREADS"] == str(usable_cores())
    assert env["PATH"] == "/bin"


def test_what_the_operator_set_is_left_alone(tmp_path: Path, openblas: Path) -> None:
    base = {"LD_PRELOAD": "/opt/mine.so", "OPENBLAS_NUM_THREADS": "7"}
    env = engine_environment(base, {"MLX_X": "1"}, platform="linux", root=tmp_path)
    assert env["LD_PRELOAD"] == "/opt/mine.so"
    assert env["OPENBLAS_NUM_THREADS"] == "7"
    assert env["MLX_X"] == "1"


def test_macos_engines_preload_nothing(tmp_path: Path, openblas: Path) -> None:
    env = engine_environment({}, {}, platform="darwin", root=tmp_path)
    assert "LD_PRELOAD" not in env
    assert "OPENBLAS_NUM_THREADS" not in env


def test_without_openblas_nothing_is_preloaded(tmp_path: Path) -> None:
    assert find_openblas(tmp_path) is None
    assert "LD_PRELOAD" not in engine_environment({}, {}, platform="linux", root=tmp_path)


def test_engines_never_reach_for_the_hub(tmp_path: Path) -> None:
    env = engine_environment({"HF_HUB_OFFLINE": "0"}, {}, root=tmp_path)
    assert env["HF_HUB_OFFLINE"] == env["TRANSFORMERS_OFFLINE"] == "1"


def test_secrets_and_the_supervisors_channels_stay_with_the_daemon(tmp_path: Path) -> None:
    base = {"HF_TOKEN": "hf_x", "NOTIFY_SOCKET": "/run/x", "LISTEN_FDS": "1", "HOME": "/h"}
    env = engine_environment(base, {}, root=tmp_path)
    assert env["HOME"] == "/h"
    assert not {"HF_TOKEN", "NOTIFY_SOCKET", "LISTEN_FDS"} & env.keys()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (-signal.SIGKILL, "lack of memory"),
        (-signal.SIGSEGV, "SIGSEGV"),
        (-250, "signal 250"),
        (EngineExit.GPU_FAULT, "GPU"),
        (EngineExit.MODEL_BROKEN, "broken"),
        (EngineExit.NO_DEVICE, "no device"),
        (99, "exit code 99"),
    ],
)
def test_every_way_to_end_has_its_words(code: int, said: str) -> None:
    assert said in _meaning(code)


def test_a_log_that_grew_too_long_keeps_its_end_in_the_same_file(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("".join(f"line {number}\n" for number in range(100_000)))
    inode = log.stat().st_ino
    with log.open("ab") as writer:
        shorten(log, 500_000)
        assert log.stat().st_ino == inode
        assert log.stat().st_size <= 256 * 1024
        writer.write(b"after\n")
    text = log.read_text()
    assert text.startswith("line ")
    assert text.endswith("line 99999\nafter\n")


def test_a_short_or_missing_log_is_left_alone(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    shorten(log, 10)
    log.write_text("short")
    shorten(log, 10)
    assert log.read_text() == "short"


def test_sockets_of_dead_engines_are_removed(tmp_path: Path) -> None:
    for name in ("engine-1-1.sock", "engine-2-7.sock", "ctl.sock"):
        (tmp_path / name).touch()
    remove_stale_sockets(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["ctl.sock"]


@pytest.mark.parametrize(
    "name",
    ["LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "DYLD_INSERT_LIBRARIES", "PYTHONPATH",
     "PYTHONHOME", "PYTHONSTARTUP", "pythonpath", "GCONV_PATH"],
)  # fmt: skip
def test_no_option_decides_what_code_a_child_runs(name, tmp_path):
    env = engine_environment({"PATH": "/bin"}, {name: "/evil", "MLX_X": "1"}, root=tmp_path)
    assert "/evil" not in env.values()
    assert env["MLX_X"] == "1"


def test_what_the_daemon_itself_was_started_with_stays(tmp_path):
    base = {"LD_PRELOAD": "/usr/lib/openblas.so", "PYTHONPATH": "/rooms"}
    env = engine_environment(base, {"LD_PRELOAD": "/evil"}, platform="linux", root=tmp_path)
    assert (env["LD_PRELOAD"], env["PYTHONPATH"]) == ("/usr/lib/openblas.so", "/rooms")
