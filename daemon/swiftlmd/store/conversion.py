"""Runs the engine room's converter as a child: a GGUF file becomes a model folder."""

from __future__ import annotations

import asyncio
import glob
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from swiftlmd.store import child
from swiftlmd.store.entries import PullProgress, Stage
from swiftlmd.store.errors import PullFailed
from swiftlmd.store.jobs import Report
from swiftlmd.store.meter import Meter


@dataclass(frozen=True, slots=True)
class Conversion:
    source: Path  # a .gguf file, or a wheel with one inside
    out: Path
    dtype: str


async def convert(job: Conversion, environ: Mapping[str, str], report: Report) -> None:
    """`out` appears whole or not at all; the last report's detail states the loss."""
    await asyncio.to_thread(job.out.parent.mkdir, parents=True, exist_ok=True)
    meter: Meter | None = None
    message = ""

    def on_report(line: child.Report) -> None:
        nonlocal meter, message
        match line.get("stage"):
            case "convert":
                meter = meter or Meter(Stage.CONVERT, line["total_bytes"], time.monotonic)
                report(meter.report(line["done_bytes"], line["detail"]))
            case "done":
                report(PullProgress(Stage.CONVERT, detail=_loss(line["losses"])))
            case "error":
                message = line["message"]

    args = ("-m", "swiftlm_engine.convert", str(job.source), str(job.out), "--dtype", job.dtype)
    try:
        await child.run(*args, on_report=on_report, environ=environ)
    except child.ChildFailed as failed:
        raise PullFailed(
            f"{job.source.name} could not be converted: {message or failed}",
            code="not_convertible",
            status=422,
        ) from failed
    finally:
        _remove_leftovers(job.out)


def _remove_leftovers(out: Path) -> None:
    """A child that was killed could not clean up (its names: swiftlm_engine.convert.folder)."""
    for folder in out.parent.glob(f".{glob.escape(out.name)}.*.swiftlm-tmp"):
        shutil.rmtree(folder, ignore_errors=True)


def _loss(losses: list[child.Report]) -> str:
    """For people: which types were rounded, and by how much."""
    if not losses:
        return "no loss: every weight is the file's own"
    rounded = (
        f"{x['kind']} to {x['bits']} bits: {x['relative']:.2%}"
        if x["bits"]
        else f"{x['kind']}: {x['relative']:.4%}"
        for x in losses
    )
    return "rounding, relative to the weights: " + ", ".join(rounded)
