"""A job for the fakes to run, scripted by a JSON file: `python job.py SCRIPT`.

{"exit": 3} ends at once; {"exit": [1, 0]} takes one code for each start; {"term_s": 0.3} needs
that long after SIGTERM, {"term_exit": 1} then leaves with that code, {"deaf": true} ignores it.
Each start, signal and end is a line in SCRIPT.log.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

script = Path(sys.argv[1])
log = script.with_name(script.name + ".log")


def record(word: str) -> None:
    with open(log, "a") as file:
        file.write(f"{word} {os.getpid()}\n")


def next_exit(wishes: dict) -> int | None:
    wished = wishes.get("exit")
    if not isinstance(wished, list):
        return wished
    if not wished:
        return None
    code = wished.pop(0)
    script.write_text(json.dumps(wishes))
    return code


def terminated(number: int, frame: object) -> None:
    record("SIGTERM")
    if wishes.get("deaf"):
        return
    time.sleep(wishes.get("term_s", 0))
    record("end")
    os._exit(wishes.get("term_exit", 0))


wishes = json.loads(script.read_text()) if script.exists() else {}
signal.signal(signal.SIGTERM, terminated)
# Before the line in the log: whoever waits for that reads this next.
script.with_name(script.name + ".env").write_text(json.dumps(dict(os.environ)))
record("start")
if (code := next_exit(wishes)) is not None:
    sys.exit(code)
if path := os.environ.get("NOTIFY_SOCKET"):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.sendto(b"READY=1", path)
while True:
    signal.pause()
