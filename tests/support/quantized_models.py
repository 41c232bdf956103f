"""Tiny models with quantized weights, as `mlx_lm.convert -q` writes them."""

from __future__ import annotations

from pathlib import Path

from mlx_lm.utils import load_model, quantize_model, save_model
from tiny_models import make_model


def make_quantized(
    name: str, folder: Path, *, bits: int = 4, group_size: int = 32, mode: str = "affine", **config
) -> Path:
    """A model of `tiny_models`, packed."""
    make_model(name, folder, **config)
    model, stored = load_model(folder)
    model, stored = quantize_model(model, stored, group_size, bits, mode=mode)
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    save_model(folder, model)
    from mlx_lm.utils import save_config

    save_config(stored, config_path=folder / "config.json")
    return folder
