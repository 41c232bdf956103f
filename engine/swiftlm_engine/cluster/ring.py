"""MLX's ring back end: every rank's address, then one group of ranks that add up arrays."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from typing import Any

import mlx.core as mx

from swiftlm_engine.generation import EngineFault, FaultKind


def free_address(host: str) -> str:
    """A port that was free a moment ago: MLX binds it itself, when all ranks are there."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return f"{host}:{probe.getsockname()[1]}"


def join_ring(addresses: list[str], rank: int) -> Any:
    """MLX's group; waits for the neighbours. MLX takes its settings from the environment only."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump([[address] for address in addresses], file)
        file.flush()
        os.environ |= {"MLX_HOSTFILE": file.name, "MLX_RANK": str(rank)}
        return mx.distributed.init(strict=True, backend="ring")


def check_heads(config: dict[str, Any], size: int) -> None:
    """mlx-lm divides heads without asking whether they divide. Raises `EngineFault`."""
    text = config.get("text_config", config)
    heads = text.get("num_attention_heads", 0)
    for name, count in (
        ("attention heads", heads),
        ("key-value heads", text.get("num_key_value_heads") or heads),
    ):
        if not count or count % size:
            raise EngineFault(
                FaultKind.UNSUPPORTED, f"{count} {name} cannot be split over {size} ranks"
            )


def shard(model: Any, config: dict[str, Any], group: Any) -> str:
    """Leaves this rank its share of the weights, lazily; returns a note for `status`."""
    if not hasattr(model, "shard"):
        raise EngineFault(
            FaultKind.UNSUPPORTED,
            f"mlx-lm cannot split family '{config.get('model_type')}' over several machines "
            "(no tensor parallelism); load it on one, or with --stream-experts",
        )
    check_heads(config, group.size())
    model.shard(group)
    return f"tensor parallel over {group.size()} ranks"
