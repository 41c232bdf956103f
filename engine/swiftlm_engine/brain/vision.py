"""Which models read images: the families whose image towers we run, and the extra they need.

The daemon prices a tower, and tells clients of it, by the rule by which the engine loads it.
"""

from __future__ import annotations

from importlib.util import find_spec

FAMILIES = (
    "gemma3",
    "gemma4",
    "mistral3",
    "pixtral",
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "qwen3_vl_moe",
    "qwen3_5",
    "qwen3_5_moe",
)
# What pip takes, and what is imported. The other packages that mlx-vlm names serve no image.
REQUIREMENTS = ("mlx-vlm>=0.7.10,<0.8", "pillow>=12,<14")
# Features of the pictures used last: chunks, choices and evicted prefixes do not encode them again.
FEATURE_BYTES = 64 << 20
# Pictures scaled for their model, in RAM: the turns of a conversation do not decode them again.
PREPARED_BYTES = 64 << 20
_PACKAGES = ("mlx_vlm", "PIL")


def is_installed() -> bool:
    """Whether this environment has the extra `vision`."""
    return all(find_spec(package) is not None for package in _PACKAGES)
