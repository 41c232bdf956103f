"""API keys as the configuration keeps them: hashed, so that a copied file lets nobody in."""

from __future__ import annotations

import hashlib

_PREFIX = "sha256:"


def key_hash(key: str) -> str:
    """`sha256:` and 64 hex digits; what is such a hash already stays as it is."""
    if key.startswith(_PREFIX):
        return key
    return _PREFIX + hashlib.sha256(key.encode()).hexdigest()


def bare_hash(key: str) -> str:
    return key_hash(key).removeprefix(_PREFIX)
