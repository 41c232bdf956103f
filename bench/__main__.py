"""`python -m bench [NAME ...]`: runs the benchmarks and prints one table each."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import time
from pathlib import Path

from bench.options import OPTIONS

NAMES = (
    "decode",
    "serving",
    "overtake",
    "prefix_writes",
    "agent",
    "constrained",
    "startup",
    "memory",
    "planning",
    "calibration",
    "idle_sockets",
    "gguf_text",
    "peers",
    "before",
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--model", type=Path, help="a folder; SmolLM2-135M, dense, if not given")
    parser.add_argument("--tokens", type=int, help="per answer, in most benchmarks")
    parser.add_argument("--rounds", type=int, help="of `serving`")
    parser.add_argument("--widths", type=int, nargs="+", default=[], help="clients of `serving`")
    parser.add_argument("--out", type=Path, default=Path(".cache/bench"))
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(NAMES):
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}")
    OPTIONS.model = arguments.model and arguments.model.resolve()
    OPTIONS.num_tokens = arguments.tokens
    OPTIONS.rounds, OPTIONS.widths = arguments.rounds, tuple(arguments.widths)
    for name in arguments.names or NAMES:
        started = time.monotonic()
        report = asyncio.run(importlib.import_module(f"bench.{name}").run())
        report.save(arguments.out)
        print(report, f"({time.monotonic() - started:.0f} s)\n", sep="\n", flush=True)


if __name__ == "__main__":
    main()
