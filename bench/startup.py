"""The daemon without a model: how soon it is ready, how much it holds."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import psutil

from bench.servers import ours
from bench.table import Figure, Report

RUNS = 5


async def run() -> Report:
    report = Report("startup", ["", "measured", "target"])
    ready, resident = [], []
    for _ in range(RUNS):
        folder = Path(tempfile.mkdtemp(prefix="sb"))
        started = time.perf_counter()
        with ours(folder, models_preload="") as server:
            ready.append(time.perf_counter() - started)
            resident.append(psutil.Process(server.process.pid).memory_info().rss / 1e6)
    report.add("ready", Figure(tuple(ready), "s"), "< 1.5 s")
    report.add("resident", Figure(tuple(resident), "MB"), "< 80 MB")
    return report
