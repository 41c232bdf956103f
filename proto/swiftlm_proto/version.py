"""The version of this installation, one answer for all programs."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version

CHECKOUT = "0.0.0+checkout"


def version() -> str:
    """The installed distribution's version; `CHECKOUT` when run from the source tree."""
    try:
        return installed_version("swiftlm")
    except PackageNotFoundError:
        return CHECKOUT
