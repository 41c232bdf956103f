"""The group file of an engine that shall lead other ranks, and the secret they all must know."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path

from swiftlm_proto.paths import Paths
from swiftlmd.config.settings import Settings
from swiftlmd.faults import Kind, ServiceError


def group_arguments(settings: Settings, paths: Paths) -> list[str]:
    """What an engine's command line gets beside the usual; nothing for a model of one process.

    Raises `ServiceError` when no cluster is configured, or its files cannot be written.
    """
    if not settings.engine_cluster:
        return []
    if len(settings.cluster_hosts) < 2:
        message = "engine.cluster is on and cluster.hosts names fewer than two hosts"
        raise ServiceError(Kind.INVALID, message)
    secret, file = paths.state / "cluster-secret", paths.state / "cluster-group.json"
    group = {
        "hosts": list(settings.cluster_hosts),
        "address": settings.cluster_address,
        "secret_file": str(secret),
        "lost_after_s": settings.cluster_lost_after,
    }
    try:
        _keep_secret(secret)
        _write(file, json.dumps(group), os.O_CREAT | os.O_TRUNC)
    except OSError as error:
        raise ServiceError(Kind.INTERNAL, f"the group cannot be described: {error}") from error
    return ["--group", str(file)]


def _keep_secret(path: Path) -> None:
    """Makes one if there is none; other hosts get a copy from their owner."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write(path, secrets.token_hex(32), os.O_CREAT | os.O_EXCL)


def _write(path: Path, text: str, flags: int) -> None:
    with open(os.open(path, os.O_WRONLY | flags, 0o600), "w") as file:
        file.write(text)
