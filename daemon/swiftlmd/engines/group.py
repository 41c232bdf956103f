"""The group file of an engine that shall lead other ranks, and the secret they all must know."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Any

from swiftlm_proto.paths import Paths
from swiftlmd.config.edit import write_atomically
from swiftlmd.config.settings import Settings
from swiftlmd.engines.group_secret import keep_secret, secret_file
from swiftlmd.engines.placement import GroupPlacement
from swiftlmd.engines.process import plain
from swiftlmd.faults import Kind, ServiceError


def group_arguments(
    settings: Settings, paths: Paths, model: str, placed: GroupPlacement | None = None
) -> list[str]:
    """What an engine's command line gets beside the usual; nothing for a model of one process.

    Raises `ServiceError` when no cluster is configured, or its files cannot be written.
    """
    if not settings.engine_cluster:
        return []
    if len(settings.cluster_hosts) < 2:
        message = (
            "the model is to be split (cluster = true) and this machine is alone in its group; "
            "`swiftlmctl cluster add NAME`, or take that line out of config.toml"
        )
        raise ServiceError(Kind.INVALID, message)
    # One for each model: two may be loading at once.
    name = f"{plain(model)}-{hashlib.sha256(model.encode()).hexdigest()[:8]}.json"  # a/b, a-b
    secret, file = secret_file(paths), paths.state / "cluster-groups" / name
    group: dict[str, Any] = {  # Any: JSON values
        "hosts": list(settings.cluster_hosts),
        "address": settings.cluster_address,
        "secret_file": str(secret),
        "lost_after_s": settings.cluster_lost_after,
        "agents": dict(settings.cluster_agents),
    }
    if settings.engine_cluster_split != "auto":
        group["split"] = settings.engine_cluster_split
    if placed is not None:
        group |= {"split": placed.split, "fingerprint": placed.fingerprint}
        group["layers"] = [[each.start, each.stop] for each in placed.layers]
        if len(placed.limits) == len(settings.cluster_hosts):  # a forced load has no plan
            group["limits"] = [asdict(each) for each in placed.limits]
    try:
        keep_secret(secret)
        write_atomically(file, json.dumps(group))
    except OSError as error:
        raise ServiceError(Kind.INTERNAL, f"the group cannot be described: {error}") from error
    return ["--group", str(file)]
