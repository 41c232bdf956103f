"""How a converting process talks to whoever started it, and ends with it."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from typing import Any

_WATCH_PARENT_S = 0.5


def say(**fields: Any) -> None:
    """One JSON line on stdout."""
    print(json.dumps(fields), flush=True)


def die_with_parent(clean_up: Callable[[], None] = lambda: None) -> None:
    """Whoever waits for the folder is gone; the next one starts over."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_PARENT_S)
        try:
            clean_up()
        finally:
            os._exit(74)

    threading.Thread(target=watch, daemon=True).start()
