"""What the daemon asks the fetching process for."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

PART_SUFFIX = ".swiftlm-part"  # of a blob that is not complete


@dataclass(frozen=True, slots=True)
class Request:
    """Crosses the process border as one JSON object on stdin."""

    repo: str
    revision: str  # a branch, a tag or a commit
    include: tuple[str, ...]  # further files, as patterns
    cache: str  # the hub cache, in Hugging Face's layout
    recheck: bool = False  # read what is here again and fetch what is wrong
    parallel: int = 4
    patience_s: float = 120.0  # without a new byte, before giving up
    spare_bytes: int = 1 << 30  # must stay free on the disk
    weights: tuple[str, ...] = ()  # of the weight files only these; empty = all

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Request:
        fields = json.loads(text)
        lists = {name: tuple(fields[name]) for name in ("include", "weights")}
        return cls(**{**fields, **lists})
