"""Why the store could not do what it was asked, told apart by who must act."""

from __future__ import annotations

import errno

from swiftlm_proto import messages as m
from swiftlmd.faults import ServiceError


class PullFailed(ServiceError):
    """The model did not arrive; one line says what is missing and what to do."""

    def __init__(self, message: str, *, code: str = "pull_failed", status: int = 502) -> None:
        super().__init__(m.FaultKind.INTERNAL, message, code=code, status=status)


class PullCancelled(ServiceError):
    """Somebody stopped it; what has arrived is kept and the next pull goes on from there."""

    def __init__(self, name: str) -> None:
        super().__init__(
            m.FaultKind.ABORTED,
            f"the pull of '{name}' was cancelled; pull it again to go on from here",
            code="pull_cancelled",
        )


class DiskFull(ServiceError):
    """Told before the first byte, where sizes are known."""

    def __init__(self, message: str) -> None:
        super().__init__(m.FaultKind.INTERNAL, message, code="disk_full", status=507)


class DiskFailed(ServiceError):
    """The disk refused; whoever owns it must act."""

    def __init__(self, message: str) -> None:
        super().__init__(m.FaultKind.INTERNAL, message, code="disk_failed")


def disk_failed(what: str, error: OSError) -> ServiceError:
    """The fault for an error of the file system in the middle of some work."""
    where = f" ({error.filename})" if error.filename else ""
    message = f"{what}: {error.strerror or error}{where}"
    return DiskFull(message) if error.errno == errno.ENOSPC else DiskFailed(message)


class BadModelName(ServiceError):
    def __init__(self, message: str) -> None:
        super().__init__(m.FaultKind.INVALID, message, param="model", code="invalid_model_name")


class NameInUse(ServiceError):
    """Another job writes what this one would."""

    def __init__(self, name: str) -> None:
        message = f"'{name}' is being made by another job; wait for it, or give another --name"
        super().__init__(m.FaultKind.INVALID, message, param="model", code="name_in_use")


class NotRemovable(ServiceError):
    """The model is the user's own folder, or in use."""

    def __init__(self, message: str) -> None:
        super().__init__(m.FaultKind.INVALID, message, param="model", code="not_removable")


class NotRepairable(ServiceError):
    """A folder whose origin is not known."""

    def __init__(self, message: str) -> None:
        super().__init__(m.FaultKind.INVALID, message, param="model", code="not_repairable")


class NotEnoughMemory(ServiceError):
    def __init__(self, message: str) -> None:
        super().__init__(m.FaultKind.NOT_ENOUGH_MEMORY, message)
