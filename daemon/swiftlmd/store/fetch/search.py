"""Search the hub for models in MLX's format: `python -m swiftlmd.store.fetch.search`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from huggingface_hub import HfApi
from huggingface_hub.hf_api import ModelInfo

from swiftlmd.store.fetch.download import persistently
from swiftlmd.store.fetch.listing import LIBRARY
from swiftlmd.store.fetch.worker import say, serve

_PATIENCE_S = 20.0
_ITEM_BYTES = {
    "F64": 8, "I64": 8, "F32": 4, "U32": 4, "I32": 4, "U8": 1, "I8": 1, "BOOL": 1,
    "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "F4": 0.5,
}  # fmt: skip  # others: 2
_FORMAT = "mlx"


@dataclass(frozen=True, slots=True)
class SearchRequest:
    text: str
    limit: int


def main() -> None:
    serve(lambda text: search(SearchRequest(**json.loads(text))), lambda text: ("the search", ""))


def search(request: SearchRequest) -> None:
    def ask() -> list[ModelInfo]:
        return list(
            HfApi(library_name=LIBRARY).list_models(
                search=request.text,
                filter=_FORMAT,
                sort="downloads",
                limit=request.limit,
                expand=["downloads", "gated", "safetensors", "config", "cardData", "pipeline_tag"],
            )
        )

    for info in persistently(ask, _PATIENCE_S):
        say(stage="found", **_described(info))
    say(stage="done")


def _described(info: ModelInfo) -> dict[str, Any]:
    config = info.config if isinstance(info.config, dict) else {}
    settings = config.get("quantization") or config.get("quantization_config")
    bits = settings.get("bits") if isinstance(settings, dict) else None
    return {
        "repo": info.id,
        "downloads": info.downloads or 0,
        "gated": bool(info.gated),
        "licence": str(getattr(info.card_data, "license", None) or ""),
        "model_type": str(config.get("model_type") or ""),
        "quantization": f"{bits}-bit" if isinstance(bits, int) else "",
        "size_bytes": _size_bytes(info),
        "vision": info.pipeline_tag == "image-text-to-text",
    }


def _size_bytes(info: ModelInfo) -> int:
    """From the counts per dtype that the hub keeps; 0 when it has none."""
    counts = info.safetensors.parameters if info.safetensors else {}
    return int(sum(_ITEM_BYTES.get(dtype, 2) * count for dtype, count in counts.items()))


if __name__ == "__main__":
    main()
