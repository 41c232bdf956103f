"""Families as parameters of a test: one per kind of cache in make test, every one in make soak."""

import pytest
from tiny_models import CACHE_KINDS, NAMES

EACH = [
    name if name in CACHE_KINDS else pytest.param(name, marks=pytest.mark.slow) for name in NAMES
]
