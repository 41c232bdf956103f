"""The kinds of memory of the ledger: a plan prices each, an engine says what it holds of each."""

from __future__ import annotations

from enum import StrEnum


class EntryKind(StrEnum):
    """What bytes are for; the order is the order of every table."""

    WEIGHTS = "weights"
    EXPERTS = "experts"
    IMAGES = "image tower"
    KV = "kv"
    SCRATCH = "scratch"
    PREFIX_CACHE = "prefix cache"
    BUFFER_POOL = "buffer pool"
    WRITE_BUFFERS = "write buffers"
    PROCESS = "process"
    PAGE_CACHE = "page cache"
