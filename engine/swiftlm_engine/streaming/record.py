"""What streaming keeps from load to load: small files of JSON, never half written."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any  # JSON values


def write_record(path: Path, record: Any) -> None:
    """Whole or not at all. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}")
    try:
        temporary.write_text(json.dumps(record), encoding="utf-8")
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise
