"""The systemd user unit as text; every line that is not obvious has its reason here, not there."""

from __future__ import annotations

from swiftlm_proto.exit_codes import DaemonExit
from swiftlmctl.service.base import EXIT_TIMEOUT_S
from swiftlmctl.service.job import Job

# Codes that a restart cannot mend.
_STAY_DOWN = (DaemonExit.NO_DEVICE, DaemonExit.NOT_PERMITTED, DaemonExit.BAD_CONFIG)
_ENVIRONMENT = ("SWIFTLM_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "HF_HOME")


def unit_text(job: Job) -> str:
    """No MemoryDenyWriteExecute and no PrivateDevices: CUDA compiles at run time and needs /dev.

    No StateDirectory and its like either: the daemon keeps its own folders, where the CLI and the
    installer look for them too.
    """
    lines = [
        "[Unit]",
        "Description=swiftlm, a local LLM service",
        "StartLimitIntervalSec=600",
        "StartLimitBurst=5",
        "",
        "[Service]",
        "Type=notify",
        f"ExecStart={' '.join(_quoted(word) for word in job.arguments)}",
        f"WorkingDirectory={_escaped(str(job.app))}",
        *_environment(job),
        "Restart=on-failure",
        "RestartSec=10",
        f"RestartPreventExitStatus={' '.join(str(int(code)) for code in _STAY_DOWN)}",
        "TimeoutStartSec=180",
        f"TimeoutStopSec={EXIT_TIMEOUT_S}",
        "UMask=0077",
        "LimitNOFILE=16384",
        "NoNewPrivileges=true",
        "",
        "[Install]",
        "WantedBy=default.target",
        "",
    ]
    return "\n".join(lines)


def socket_text(job: Job) -> str:
    """The unit that holds the admin socket, where the daemon's clients look for it."""
    return "\n".join(
        [
            "[Unit]",
            "Description=swiftlm, the socket for administration",
            "",
            "[Socket]",
            f"ListenStream={_escaped(str(job.control_socket))}",
            "SocketMode=0600",
            "DirectoryMode=0700",
            "FileDescriptorName=control",
            "",
            "[Install]",
            "WantedBy=sockets.target",
            "",
        ]
    )


def _environment(job: Job) -> list[str]:
    known = [name for name in _ENVIRONMENT if name in job.places]
    return [f"Environment={_quoted(f'{name}={job.places[name]}')}" for name in known]


def _escaped(text: str) -> str:
    """`%` starts a specifier, everywhere in a unit."""
    return text.replace("%", "%%")


def _quoted(word: str) -> str:
    """One word of a command line: `$` would be expanded, a space would split it."""
    escaped = _escaped(word).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{escaped}"' if escaped != word or " " in word else word
