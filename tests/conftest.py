"""Shared by all tests: no network, no user's files, the real small model made once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("proto", "engine", "daemon", "ctl")

# Nothing in a test may ask a hub; the fake hub sets its own endpoint.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


@pytest.fixture(scope="session")
def room_path() -> str:
    """PYTHONPATH for child processes that run the checkout."""
    return ":".join(str(ROOT / room) for room in ROOMS)


@pytest.fixture(scope="session")
def smollm2(room_path: str) -> Path:
    """The real SmolLM2-135M-Instruct, 4-bit with float32 scales, converted once into .cache."""
    home = ROOT / ".cache" / "home"
    folder = home / "models" / "smollm2-135m"
    if not (folder / "config.json").exists():
        home.mkdir(parents=True, exist_ok=True)
        script = (
            "import asyncio, pathlib\n"
            "from swiftlm_proto.paths import under\n"
            "from swiftlmd.store import ModelStore, StoreOptions\n"
            "async def main():\n"
            f"    store = ModelStore(under(pathlib.Path({str(home)!r})), StoreOptions())\n"
            "    async for progress in store.pull('smollm2-135m'):\n"
            "        print(progress)\n"
            "asyncio.run(main())\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONPATH": room_path},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if not (folder / "config.json").exists():
            pytest.fail(f"SmolLM2 could not be made: {done.stdout[-500:]} {done.stderr[-2000:]}")
    return folder
