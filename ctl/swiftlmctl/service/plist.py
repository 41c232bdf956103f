"""The launchd job as data: exactly the keys we want, and a check that nothing else slipped in."""

from __future__ import annotations

import plistlib
from typing import Any  # plist values

from swiftlm_proto.paths import MAX_SOCKET_PATH_BYTES
from swiftlmctl.service.base import EXIT_TIMEOUT_S
from swiftlmctl.service.job import LABEL, Job

# launchd's own default of 256 open files is too few for 300 clients.
_OPEN_FILES = 16384
_UMASK = 0o077
_SOCKET_MODE = 0o600
_PATH = "/opt/homebrew/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


def job_plist(job: Job) -> dict[str, Any]:
    plist: dict[str, Any] = {
        "Label": LABEL,
        "ProgramArguments": list(job.arguments),
        "RunAtLoad": True,
        # Exit 0 means "stay down"; a crash, a signal and any other code mean "again".
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": 10,
        # launchd's default of 5 s would cut every drain short.
        "ExitTimeOut": EXIT_TIMEOUT_S,
        # Background costs 8 x in decode speed.
        "ProcessType": "Interactive",
        # Background is what the user/UID domain (SSH, no screen) needs.
        "LimitLoadToSessionType": ["Aqua", "Background"],
        "WorkingDirectory": str(job.app),
        "EnvironmentVariables": _environment(job),
        "StandardOutPath": str(job.log),
        "StandardErrorPath": str(job.log),
        "SoftResourceLimits": {"NumberOfFiles": _OPEN_FILES},
        "Umask": _UMASK,
    }
    if job.control_socket is not None:
        plist["Sockets"] = {"control": _socket(job)}
    return plist


def encode(job: Job) -> bytes:
    return plistlib.dumps(job_plist(job), sort_keys=True)


def _environment(job: Job) -> dict[str, str]:
    environment = {"PATH": _PATH, "LANG": "en_US.UTF-8", "SWIFTLM_HOME": str(job.app)}
    if "HF_HOME" in job.places:
        environment["HF_HOME"] = job.places["HF_HOME"]
    return environment


def _socket(job: Job) -> dict[str, Any]:
    return {
        "SockFamily": "Unix",
        "SockType": "stream",
        "SockPathName": str(job.control_socket),
        "SockPathMode": _SOCKET_MODE,
    }


# Key -> the exact type of its value (bool is not int here, as it is not for launchd).
_SCHEMA: dict[str, type] = {
    "Label": str,
    "ProgramArguments": list,
    "RunAtLoad": bool,
    "KeepAlive": dict,
    "ThrottleInterval": int,
    "ExitTimeOut": int,
    "ProcessType": str,
    "LimitLoadToSessionType": list,
    "WorkingDirectory": str,
    "EnvironmentVariables": dict,
    "StandardOutPath": str,
    "StandardErrorPath": str,
    "SoftResourceLimits": dict,
    "Umask": int,
}
_OPTIONAL: dict[str, type] = {"Sockets": dict}
_PATHS = ("WorkingDirectory", "StandardOutPath", "StandardErrorPath")


def problems(plist: dict[str, Any]) -> list[str]:
    """What launchd, or we, would refuse in a job; empty when it is as it should be."""
    found = [f"{key} is missing" for key in _SCHEMA if key not in plist]
    for key, value in plist.items():
        kind = _SCHEMA.get(key) or _OPTIONAL.get(key)
        if kind is None:
            found.append(f"{key} is not a key of ours")
        elif type(value) is not kind:
            found.append(f"{key} is a {type(value).__name__}, not a {kind.__name__}")
    return found or _wrong_values(plist)


def _wrong_values(plist: dict[str, Any]) -> list[str]:
    found = []
    program = plist["ProgramArguments"][0] if plist["ProgramArguments"] else ""
    for name, path in [(key, plist[key]) for key in _PATHS] + [("program", program)]:
        # launchd expands nothing.
        if not path.startswith("/"):
            found.append(f"{name} is not an absolute path: {path!r}")
    if plist["Label"] != LABEL:
        found.append(f"Label is {plist['Label']!r}, not {LABEL!r}")
    if plist["KeepAlive"] != {"SuccessfulExit": False}:
        found.append("KeepAlive has other conditions than SuccessfulExit = false")
    if plist["Umask"] != _UMASK:
        found.append(f"Umask is {plist['Umask']}, not {_UMASK} (decimal)")
    for name, value in plist["EnvironmentVariables"].items():
        if type(value) is not str:
            found.append(f"the variable {name} is a {type(value).__name__}, not a string")
    return found + _wrong_socket(plist.get("Sockets", {}))


def _wrong_socket(sockets: dict[str, Any]) -> list[str]:
    if not sockets:
        return []
    control = sockets.get("control", {})
    found = []
    if control.get("SockPathMode") != _SOCKET_MODE:
        found.append(f"SockPathMode is not {_SOCKET_MODE} (decimal)")
    if len(str(control.get("SockPathName", "")).encode()) > MAX_SOCKET_PATH_BYTES:
        found.append(f"SockPathName is longer than {MAX_SOCKET_PATH_BYTES} bytes")
    return found
