"""Which of our functions run for the first time while a switch is on and in which file,
written down by every process that starts here.

On `PYTHONPATH`; the folder is named by SWIFTLM_TRACE_FILES, the switch is the file `on` in it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from types import CodeType, FrameType

PLACE = os.environ.get("SWIFTLM_TRACE_FILES", "")
ROOMS = ("swiftlmd", "swiftlm_engine", "swiftlm_proto")

running = False
seen: set[CodeType] = set()


def note(frame: FrameType, event: str, _: object) -> None:
    code = frame.f_code
    if not running or event != "call" or code in seen or code.co_name == "<module>":
        return
    seen.add(code)
    name = code.co_filename
    room = next((part for part in name.split("/") if part in ROOMS), "")
    if room:
        with open(f"{PLACE}/{os.getpid()}", "a", encoding="utf-8") as out:
            out.write(f"{time.monotonic()} {name[name.index(f'/{room}/') + 1 :]}\n")


def watch() -> None:
    global running
    while True:
        running = os.path.exists(f"{PLACE}/on")
        time.sleep(0.02)


if PLACE:
    sys.setprofile(note)
    threading.setprofile(note)
    threading.Thread(target=watch, daemon=True).start()
