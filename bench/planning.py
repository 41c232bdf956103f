"""Time to plan a checkpoint of 400 GB from its headers alone (a synthetic one, of holes)."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from bench.models import ROOT
from bench.table import Figure, Report
from swiftlm_engine.brain.facts import read_model
from swiftlm_engine.brain.plan import Accelerator, MachineLimits, PlanRequest, make_plan

RUNS = 5


async def run() -> Report:
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    from huge_models import write_huge  # the folder that the unit tests plan, too

    report = Report("planning", ["checkpoint", "files", "facts", "plan"])
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        folder = write_huge(Path(place))
        total = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        read, planned = [], []
        machine = MachineLimits(64 * 2**30, Accelerator.METAL, working_set_bytes=48 * 2**30)
        for _ in range(RUNS):
            started = time.perf_counter()
            facts = read_model(folder)
            read.append(time.perf_counter() - started)
            make_plan(facts, PlanRequest(), machine)
            planned.append(time.perf_counter() - started - read[-1])
        facts_s, plan_s = Figure(tuple(read), "s"), Figure(tuple(planned), "s")
        files = len(list(folder.glob("*.safetensors")))
        report.add(f"{total / 1e9:.0f} GB", files, facts_s, plan_s, facts=facts_s, plan=plan_s)
    return report
