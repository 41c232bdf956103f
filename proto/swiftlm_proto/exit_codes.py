"""Exit codes of the programs as launchd, systemd and scripts read them; sysexits where one fits."""

from enum import IntEnum


class DaemonExit(IntEnum):
    """swiftlmd: 0 means "stay down", anything else "a restart can help"."""

    STAY_DOWN = 0
    CRASH = 1
    NO_DEVICE = 69
    GPU_FAULT = 70
    TEMPORARY = 75  # port or lock busy
    NOT_PERMITTED = 77
    BAD_CONFIG = 78
    RESTART = 79  # asked for; the supervisor starts it again


class EngineExit(IntEnum):
    """The engine process, read by the daemon that started it."""

    DONE = 0
    LOOP_DIED = 1
    NO_DEVICE = 69
    GPU_FAULT = 70
    RANK_LOST = 71
    MODEL_BROKEN = 72
    STOP_TIMED_OUT = 73
    PARENT_GONE = 74
    FILES_CHANGED = 75  # a new load reads them as they are now


class CtlExit(IntEnum):
    """swiftlmctl."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_RUNNING = 3
    NOT_INSTALLED = 4
    TIMEOUT = 5
    DENIED = 6
    VERSION_MISMATCH = 7
    DOES_NOT_FIT = 8  # `plan`: the answer is no


class SetupExit(IntEnum):
    """`swiftlmctl setup`, `swiftlmctl uninstall` and install.sh."""

    DONE = 0
    NOT_STARTED = 10
    USAGE = 64
    NO_SYSTEM = 69
    UNHEALTHY = 70
    NO_SERVICE = 71
    CANNOT_WRITE = 73
    IS_ROOT = 77


# An engine that ends with RANK_LOST says in its log, after this, which rank on which host it was.
GROUP_BROKEN = "the group is broken: "
