"""What every hub process does around its work: one request in, JSON lines out, one error line."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from huggingface_hub import constants

from swiftlmd.store.fetch.failure import FetchFailed, explained

_WATCH_PARENT_S = 0.5


def serve(work: Callable[[bytes], None], subject: Callable[[bytes], tuple[str, str]]) -> NoReturn:
    """Runs `work` on stdin's request; `subject` names the repository and revision for messages."""
    threading.Thread(target=_die_with_parent, args=(os.getppid(),), daemon=True).start()
    request = sys.stdin.buffer.read()
    try:
        work(request)
    except Exception as error:  # the process's root: whatever it is, the daemon gets one line
        fail(error, *subject(request))
    leave(0)


def fail(error: Exception, repo: str, revision: str) -> NoReturn:
    """Says why and ends, with every thread that still receives; what they have stays."""
    failure = error
    if not isinstance(failure, FetchFailed):
        failure = explained(error, repo, revision, constants.ENDPOINT)
    say(stage="error", reason=failure.reason, message=str(failure))
    leave(1)


def leave(code: int) -> NoReturn:
    sys.stdout.flush()
    os._exit(code)


def say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def _die_with_parent(parent: int) -> None:
    """A daemon that was killed must not leave a download behind."""
    while os.getppid() == parent:
        time.sleep(_WATCH_PARENT_S)
    os._exit(74)
