"""The real daemon as a program, except that its engines are `fake_engine.py`."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from swiftlm_proto.paths import locate
from swiftlmd.main import serve


def main() -> None:
    signal.signal(signal.SIGUSR2, lambda number, frame: _count_tasks())
    flags = dict(word.split("=", 1) for word in sys.argv[1:])
    command = [sys.executable, str(Path(__file__).with_name("fake_engine.py"))]
    sys.exit(serve(locate(), flags, command))


def _count_tasks() -> None:
    """For tests that ask whether tasks are left behind."""
    (locate().state / "tasks").write_text(str(len(asyncio.all_tasks())))


if __name__ == "__main__":
    main()
