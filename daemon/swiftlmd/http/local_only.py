"""What no request over HTTP may carry, whoever sends it: paths, environment, hashes of keys.

The admin socket is the owner's alone and takes them. HTTP is reached by browsers, by keys that were
pasted into programs, and by other users of the machine.
"""

from __future__ import annotations

from collections.abc import Mapping

import betterproto2

from swiftlm_proto import messages as m
from swiftlmd.config.settings import OPTIONS, PER_MODEL, Option
from swiftlmd.config.values import plain
from swiftlmd.faults import Kind, ServiceError

_SHOW = m.CalibrationsRequestAction.SHOW


def check_for_http(message: betterproto2.Message, *, is_admin: bool) -> None:
    """Raises 403 for a message that HTTP may not carry, or only for the owner."""
    if isinstance(message, m.SetConfigRequest):
        _check_option(message.key, message.value)
    elif isinstance(message, m.AddKeyRequest) and message.admin:
        raise _local("a key that may administer is made", "swiftlmctl keys add NAME --admin")
    elif isinstance(message, m.LoadModelRequest | m.PlanModelRequest):
        draft = message.options.draft if message.options is not None else None
        for name in (message.model, draft or ""):
            _check_name(name, "load")
    elif isinstance(message, m.PullRequest):
        _check_name(message.model, "pull")
    if not is_admin and _disturbs(message):
        raise ServiceError(
            Kind.INVALID,
            "only the owner of this service may do that: run `swiftlmctl open` on its machine",
            code="owner_only",
            status=403,
        )


def _disturbs(message: betterproto2.Message) -> bool:
    """Whether the message does more than its operation usually does for a user of the service."""
    if isinstance(message, m.CalibrationsRequest):
        return message.action is not _SHOW  # it changes or removes files
    return isinstance(message, m.UnloadModelRequest) and message.force


def hide_environment(reply: m.ConfigReply) -> None:
    """Variables of engines may be secrets of other programs."""
    for entry in reply.entries:
        if entry.key == "engine.environment" and entry.value not in ("", "{}"):
            entry.value = "(set)"


def _check_option(key: str, value: str) -> None:
    option = _option(key)
    if option is None:
        return  # the configuration names the nearest one
    if option.local_only:
        raise _local(f"{option.key} is set", f"swiftlmctl config set {option.key} VALUE")
    if option.holds_models and any(map(is_path, _texts(plain(option, value)))):
        raise _local(f"{option.key} takes a path", f"swiftlmctl config set {option.key} PATH")


def _texts(value: object) -> list[str]:
    """The texts of an option's value: itself, or those of its list or table."""
    if isinstance(value, Mapping):
        return [str(item) for item in value.values()]
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]


def _option(key: str) -> Option | None:
    if key.startswith("model."):
        return PER_MODEL.get(key.rpartition(".")[2])
    return OPTIONS.get(key)


def _check_name(name: str, verb: str) -> None:
    if is_path(name):
        raise _local(f"{name[:100]!r} is a path, and paths are taken", f"swiftlmctl {verb} PATH")


def is_path(name: str) -> bool:
    """Whether `name` could mean a file: no model's name looks like that."""
    parts = name.replace("\\", "/").split("/")
    return (parts[0] in ("", "~") and len(parts) > 1) or name[:1] in ("~", ".") or ".." in parts


def _local(what: str, command: str) -> ServiceError:
    return ServiceError(
        Kind.INVALID,
        f"{what} on this machine only, not over HTTP: `{command}`",
        code="local_only",
        status=403,
    )
