"""Runs the engine room's converter as a child: a GGUF file becomes a model folder."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from swiftlm_engine.brain import leftovers
from swiftlmd.store import child
from swiftlmd.store.errors import PullFailed
from swiftlmd.store.jobs import Report
from swiftlmd.store.meter import Meter
from swiftlmd.store.types import PullProgress, Stage


@dataclass(frozen=True, slots=True)
class Conversion:
    source: Path  # a .gguf file, or a wheel with one inside
    out: Path
    dtype: str
    origin: str = ""  # kept in the folder as it is

    def command(self) -> tuple[str, ...]:
        paths = (str(self.source), str(self.out))
        options = ("--dtype", self.dtype, "--origin", self.origin)
        return ("-m", "swiftlm_engine.convert", *paths, *options)


@dataclass(frozen=True, slots=True)
class Quantisation:
    source: Path  # a model folder that is not quantised
    out: Path
    bits: int
    group_size: int

    def command(self) -> tuple[str, ...]:
        paths = (str(self.source), str(self.out))
        sizes = ("--bits", str(self.bits), "--group-size", str(self.group_size))
        return ("-m", "swiftlm_engine.convert.quantize", *paths, *sizes)


@dataclass(frozen=True, slots=True)
class Packing:
    """Records of a model's experts, in its own folder."""

    source: Path
    remove: bool

    @property
    def out(self) -> Path:
        return self.source

    def command(self) -> tuple[str, ...]:
        words = ("-m", "swiftlm_engine.streaming.packing", str(self.source))
        return (*words, "--remove") if self.remove else words


async def convert(
    job: Conversion | Quantisation | Packing,
    environ: Mapping[str, str],
    report: Report,
    check: Callable[[Planned], None] = lambda planned: None,
) -> None:
    """`out` appears whole or not at all; the last report's detail states what it cost.

    `check` sees what the work will take before it begins, and may refuse by raising.
    """
    await asyncio.to_thread(job.out.parent.mkdir, parents=True, exist_ok=True)
    reading = _ConversionReading(report, check)
    try:
        await child.run(*job.command(), on_report=reading.take, environ=environ)
    except child.ChildFailed as failed:
        raise PullFailed(
            f"{job.source.name} could not be {_done(job)}: {reading.message or failed.cause}",
            code="not_convertible",
            status=422,
        ) from failed
    finally:
        await asyncio.to_thread(_remove_leftovers, job.out)


@dataclass(frozen=True, slots=True)
class Planned:
    """What a quantisation will take, known from shapes alone."""

    disk_bytes: int
    memory_bytes: int

    def words(self) -> str:
        memory, disk = self.memory_bytes / 1e9, self.disk_bytes / 1e9
        return f"needs {memory:.1f} GB of memory and {disk:.1f} GB of disk"


class _ConversionReading:
    """The child's lines as reports."""

    def __init__(
        self,
        report: Report,
        check: Callable[[Planned], None],
    ) -> None:
        self.message = ""
        self._report = report
        self._check = check
        self._meter: Meter | None = None
        self._latest = PullProgress(Stage.CONVERT)

    def take(self, line: child.Report) -> None:
        match line.get("stage"):
            case "plan":
                planned = Planned(line["total_bytes"], line["peak_bytes"])
                self._check(planned)
                self._report(PullProgress(Stage.CONVERT, detail=planned.words()))
            case "convert":
                total = line["total_bytes"]
                self._meter = self._meter or Meter(Stage.CONVERT, total, time.monotonic)
                self._latest = self._meter.report(line["done_bytes"], line["detail"])
                self._report(self._latest)
            case "done":
                self._report(dataclasses.replace(self._latest, detail=_result(line)))
            case "error":
                self.message = line["message"]


def _result(line: child.Report) -> str:
    if "detail" in line:
        return str(line["detail"])
    if "losses" in line:
        return _loss(line["losses"])
    peak = line["peak_bytes"] / 1e9
    return f"{line['bits_per_weight']} bits per weight, {peak:.1f} GB of memory at most"


def _done(job: Conversion | Quantisation | Packing) -> str:
    return "packed" if isinstance(job, Packing) else "converted"


def _remove_leftovers(out: Path) -> None:
    """A child that was killed could not clean up."""
    leftovers.remove_leftovers(out.parent, out.name)
    for file in out.glob(".experts.swiftlm-pack*.swiftlm-tmp"):
        file.unlink(missing_ok=True)


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
